"""Copies of values to the host's memory and back, on GPUs.

XLA:GPU keeps in the host's pinned memory what has memory space 5 in its
layout, and moves data there and back with asynchronous pairs: copy-start and
copy-done, on a stream of their own. Where a pair stands in the schedule is when
the copy is started and when it is waited for. XLA:CPU has no such space, and
no copy-start.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxmem_hlo.module import shapes
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.rewrite.module_editor import ModuleEditor

HOST_MEMORY_SPACE = 5

_U32 = 8
# One stream in each direction: the link works in both at once.
_STORE_QUEUE = b'{"operation_queue_id":"1"}'
_FETCH_QUEUE = b'{"operation_queue_id":"2"}'


def check_platform(platform: str | None) -> None:
  """Checks that a platform can move values to the host.

  Args:
    platform: "cpu", "cuda", or None if it is not known.

  Raises:
    ValueError: If it has no memory besides the host's, or is not known.
  """
  if platform == "cpu":
    raise ValueError(
      "offload needs a device with a memory of its own, got platform 'cpu': its"
      " memory is the host's, so there is nothing to offload to; leave the"
      " offloads out, or plan for a GPU target."
    )
  if platform != "cuda":
    raise ValueError(
      f"offload needs platform 'cuda', got {platform!r}; name the platform of"
      " the module."
    )


class Transfer:
  """The four instructions that move one value out and back in, in order.

  Args:
    editor: Gives names and ids.
    emit: Takes each instruction when it is due in the schedule.
  """

  def __init__(
    self, editor: ModuleEditor, emit: Callable[[hlo_pb2.Instruction], None]
  ):
    self._editor = editor
    self._emit = emit
    self._device = hlo_pb2.Shape()
    self._host = hlo_pb2.Shape()
    self._last = 0

  def start_store(self, source: int, shape: hlo_pb2.Shape) -> None:
    """Starts the copy to the host.

    Args:
      source: Id of the instruction that holds the value.
      shape: Of the value, on the device.
    """
    self._set_shapes(shape)
    self._start("offload-start", source, self._host, self._device, _STORE_QUEUE)

  def end_store(self) -> None:
    """Waits for the copy to the host; the device's memory is free then."""
    self._done("offload-done", self._host)

  def begin_on_host(self, source: int, shape: hlo_pb2.Shape) -> None:
    """Takes a value that is on the host, in the place of what was stored.

    Args:
      source: Id of the instruction that holds the value.
      shape: Of the value, on the device.
    """
    self._set_shapes(shape)
    self._last = source

  def start_fetch(self) -> None:
    """Starts the copy back."""
    self._start(
      "fetch-start", self._last, self._device, self._host, _FETCH_QUEUE
    )

  def end_fetch(self) -> hlo_pb2.Instruction:
    """Waits for the copy back; returns the instruction that holds it."""
    return self._done("fetch-done", self._device)

  def _set_shapes(self, shape: hlo_pb2.Shape) -> None:
    self._device.CopyFrom(shape)
    self._device.layout.memory_space = 0
    self._host.CopyFrom(shape)
    self._host.layout.memory_space = HOST_MEMORY_SPACE

  def _start(
    self,
    name: str,
    operand: int,
    target: hlo_pb2.Shape,
    source: hlo_pb2.Shape,
    config: bytes,
  ) -> None:
    context = hlo_pb2.Shape(element_type=_U32)
    context.layout.SetInParent()
    shape = hlo_pb2.Shape(
      element_type=shapes.TUPLE, tuple_shapes=[target, source, context]
    )
    self._make(name, "copy-start", shape, operand, config)

  def _done(self, name: str, shape: hlo_pb2.Shape) -> hlo_pb2.Instruction:
    return self._make(name, "copy-done", shape, self._last, b"")

  def _make(
    self,
    name: str,
    opcode: str,
    shape: hlo_pb2.Shape,
    operand: int,
    config: bytes,
  ) -> hlo_pb2.Instruction:
    proto = hlo_pb2.Instruction(
      name=self._editor.fresh_name(name),
      opcode=opcode,
      id=self._editor.fresh_id(),
      shape=shape,
      operand_ids=[operand],
      backend_config=config,
    )
    self._last = proto.id
    self._emit(proto)
    return proto
