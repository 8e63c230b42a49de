"""Arguments on the host, read through copies, where XLA does not know of them.

Compiling for a described device, XLA is not told which arguments are in the
host's memory: kernels would read them there, and no copy on the device would
be counted. Which these are shows in the results that donated arguments become.
On a real device XLA makes the copies itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem_hlo.buffers import BufferAnalysis
from jaxmem_hlo.module import Instruction, Module
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.rewrite.host_copies import end_copy, start_copy
from jaxmem.rewrite.module_editor import ModuleEditor


def fetch_arguments(module: Module) -> Module:
  """Returns a module that copies arguments from the host before it reads them.

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
