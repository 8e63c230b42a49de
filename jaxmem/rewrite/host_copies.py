"""Copies of values to the host's memory and back, on GPUs.

XLA:GPU keeps in the host's pinned memory what has memory space 5 in its
layout, and moves data there and back with asynchronous pairs: copy-start and
copy-done, on a stream of their own. Where a pair stands in the schedule is when
the copy is started and when it is waited for. XLA:CPU has no such space, and
no copy-start.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem_hlo.buffers import BufferAnalysis
from jaxmem_hlo.module import (
  HOST_MEMORY_SPACE,
  Instruction,
  Module,
  shapes,
)
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.rewrite.module_editor import ModuleEditor

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


def fetch_arguments(module: Module) -> Module:
  """Returns a module that copies arguments from the host before it reads them.

  Compiling for a described device, XLA is not told which arguments are in the
  host's memory: kernels would read them there, and no copy on the device would
  be counted. Which these are shows in the results that donated arguments
  become. On a real device XLA makes the copies itself.

  Args:
    module: A scheduled module for a GPU.

  Returns:
    The module with a copy of each such argument, right before its first
    reader; the module itself if it has none, or copies them already.

  Raises:
    UnsupportedModuleError: If the module holds something unknown.
  """
  arguments = _arguments_on_host(module)
  if not arguments:
    return module
  editor = ModuleEditor(module)
  waiting = {a.id: a for a in arguments}
  fetched: dict[int, int] = {}
  entry: list[hlo_pb2.Instruction] = []
  for instruction in module.schedule(module.entry.id):
    proto = hlo_pb2.Instruction()
    proto.CopyFrom(instruction.proto)
    if not _passes_on(instruction):
      for operand in dict.fromkeys(instruction.operands):
        if operand in waiting:
          shape = waiting.pop(operand).shape
          entry.append(start_copy(editor, operand, shape, to_host=False))
          entry.append(end_copy(editor, entry[-1]))
          fetched[operand] = entry[-1].id
      proto.operand_ids[:] = [fetched.get(o, o) for o in instruction.operands]
    entry.append(proto)
  return editor.finish(entry)


def _arguments_on_host(module: Module) -> Sequence[Instruction]:
  if not any(i.opcode == "copy-start" for i in module.entry.instructions):
    return ()
  trees = BufferAnalysis(module).dataflow.trees
  read = {
    operand
    for instruction in module.entry.instructions
    if not _passes_on(instruction)
    for operand in instruction.operands
  }
  return [
    p
    for p in module.entry.parameters
    if p.id in read
    and not p.shape.tuple_shapes
    and not p.shape.layout.memory_space
    and trees[p.id][()].memory_space
  ]


def _passes_on(instruction: Instruction) -> bool:
  """Whether an instruction hands on what is on the host, without reading it."""
  return instruction.opcode in ("tuple", "copy-start")
