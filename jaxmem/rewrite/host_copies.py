"""Copies of values to the host's memory and back, on GPUs.

XLA:GPU keeps in the host's pinned memory what has memory space 5 in its
layout, and moves data there and back with asynchronous pairs: copy-start and
copy-done, on a stream of their own. Where a pair stands in the schedule is when
the copy is started and when it is waited for. XLA:CPU has no such space, and
no copy-start.
"""

from __future__ import annotations

from jaxmem_hlo.module import shapes
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.rewrite.module_editor import ModuleEditor

HOST_MEMORY_SPACE = 5

_U32 = 8
# One stream in each direction, to the host or not: the link works in both at
# once.
_QUEUES = {
  True: b'{"operation_queue_id":"1"}',
  False: b'{"operation_queue_id":"2"}',
}


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


def start_copy(
  editor: ModuleEditor, source: int, shape: hlo_pb2.Shape, *, to_host: bool
) -> hlo_pb2.Instruction:
  """Returns an instruction that starts a copy to the host, or back.

  Args:
    editor: Gives names and ids.
    source: Id of the instruction that holds the value.
    shape: Of the value, in any memory.
    to_host: Whether the copy goes to the host.
  """
  context = hlo_pb2.Shape(element_type=_U32)
  context.layout.SetInParent()
  copied = hlo_pb2.Shape(
    element_type=shapes.TUPLE, tuple_shapes=[shape, shape, context]
  )
  target, held, _ = copied.tuple_shapes
  target.layout.memory_space = HOST_MEMORY_SPACE if to_host else 0
  held.layout.memory_space = 0 if to_host else HOST_MEMORY_SPACE
  return hlo_pb2.Instruction(
    name=editor.fresh_name("offload-start" if to_host else "fetch-start"),
    opcode="copy-start",
    id=editor.fresh_id(),
    shape=copied,
    operand_ids=[source],
    backend_config=_QUEUES[to_host],
  )


def end_copy(
  editor: ModuleEditor, started: hlo_pb2.Instruction
) -> hlo_pb2.Instruction:
  """Returns the instruction that waits for a copy and then holds the value."""
  shape = started.shape.tuple_shapes[0]
  to_host = shape.layout.memory_space == HOST_MEMORY_SPACE
  return hlo_pb2.Instruction(
    name=editor.fresh_name("offload-done" if to_host else "fetch-done"),
    opcode="copy-done",
    id=editor.fresh_id(),
    shape=shape,
    operand_ids=[started.id],
  )
