"""What XLA still knows of the operations that its instructions stand for."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator

from jaxmem_hlo.buffers import Dataflow, Use, Value
from jaxmem_hlo.module import (
  RENAMES,
  Computation,
  Instruction,
  Module,
  ShapeIndex,
  collective_of,
)

from jaxmem.report import origins

# So many instructions are asked before one counts as unknown.
_MAX_ASKED = 64
# What of a program runs after the forward pass.
_LATER = ("backward", "recomputed")
# What only passes on, or lays out anew, what it reads.
_COPIES = frozenset(
  {
    "bitcast",
    "convert",
    "copy",
    "get-tuple-element",
    "parameter",
    "reshape",
    "transpose",
    "tuple",
  }
)


class OperationNames:
  """The names of a module's operations; those of fusions are in their bodies.

  Args:
    module: A scheduled module.
  """

  def __init__(self, module: Module):
    self._module = module
    self._known: dict[tuple[int, ShapeIndex], Instruction] = {}

  @functools.cached_property
  def is_differentiated(self) -> bool:
    """Whether any operation is the backward pass of another."""
    return any(
      origins.part(i.proto.metadata.op_name) == "backward"
      for c in self._module.computations
      for i in c.instructions
    )

  def named(self, instruction: Instruction, index: ShapeIndex) -> Instruction:
    """Returns what has the name of the operation that makes an output.

    Args:
      instruction: The instruction.
      index: Of the output.

    Returns:
      The instruction itself, one in its fusion, or the nearest operand with a
      name; the instruction itself again, if there is none.
    """
    key = instruction.id, index
    if key not in self._known:
      self._known[key] = self._named(instruction, index)
    return self._known[key]

  def _named(self, instruction: Instruction, index: ShapeIndex) -> Instruction:
    if _has_name(instruction) and not index:
      return instruction
    body = self._fused(instruction)
    if body is None:
      # A copy is of what its operand is.
      is_copy = instruction.opcode in _COPIES - {"parameter", "tuple"}
      start = [instruction, *(self._operands(instruction) if is_copy else ())]
      return _first_named(start) or instruction
    return self._named_in(body, index) or instruction

  def _named_in(
    self, body: Computation, index: ShapeIndex
  ) -> Instruction | None:
    """Returns the named instruction of a fusion nearest to an output."""
    root = body.root
    if root.opcode == "tuple" and index:
      root = body.by_id[root.operands[index[0]]]
    found, queue, seen = None, deque([root]), 0
    while queue and found is None and seen < _MAX_ASKED:
      inner = queue.popleft()
      seen += 1
      found = _first_named([inner])
      queue.extend(self._operands(inner))
    return found

  def _fused(self, instruction: Instruction) -> Computation | None:
    if instruction.opcode != "fusion":
      return None
    return self._module.by_id[instruction.callees[0]]

  def _operands(self, instruction: Instruction) -> list[Instruction]:
    return [instruction.computation.by_id[o] for o in instruction.operands]

  def part(self, instruction: Instruction, index: ShapeIndex) -> origins.Part:
    """Returns which part of the program makes an output."""
    return origins.part(self.named(instruction, index).proto.metadata.op_name)

  def source(self, instruction: Instruction, index: ShapeIndex) -> str:
    """Returns the lines that an output comes from, or a scope, or nothing."""
    return self._module.source(self.named(instruction, index))

  def is_known(self, instruction: Instruction, index: ShapeIndex) -> bool:
    """Whether anything is known of what makes an output."""
    return _has_name(self.named(instruction, index))


class Operations(OperationNames):
  """The same, and which operations read a value.

  Args:
    dataflow: The values of a scheduled module.
  """

  def __init__(self, dataflow: Dataflow):
    super().__init__(dataflow.module)
    self._trees = dataflow.trees

  def readers(self, values: Iterable[Value]) -> set[origins.Part]:
    """Returns which parts of the program read any of some values.

    Of fusions the operations that read them count, not the others.
    """
    uses = self.uses(values)
    return {part for use in uses for part in self._parts_reading(use)}

  def uses(self, values: Iterable[Value]) -> Iterator[Use]:
    """Yields the reads of some values.

    Behind copies, exchanges with other devices, and operations without a name,
    reads of what these make.
    """
    queue = list(values)
    seen = set(queue)
    while queue:
      for use in queue.pop().uses:
        reader = use.instruction
        if reader.opcode in RENAMES:
          continue  # Who reads what these pass on is a reader of the value.
        passes_on = (
          self.copied(reader)
          or collective_of(self._module, reader) is not None
          or not self._parts_reading(use)
        )
        if not passes_on:
          yield use
          continue
        made = set(self._trees[reader.id].values()) - seen
        seen |= made
        queue += made

  def _parts_reading(self, use: Use) -> set[origins.Part]:
    body = self._fused(use.instruction)
    inner: list[Instruction] = []
    if body is not None:
      parameter = body.parameters[use.operand_number]
      inner = [i for i in body.users[parameter.id] if _has_name(i)]
    return {
      self.part(reader, ())
      for reader in inner or [use.instruction]
      if self.is_known(reader, ())
    }

  def is_read_later(self, values: Iterable[Value]) -> bool:
    """Whether values are read where anything of the backward pass runs.

    XLA makes parts of the forward pass again in kernels of the backward one.
    """
    for use in self.uses(values):
      body = self._fused(use.instruction)
      inner = [] if body is None else body.instructions
      for reader in (use.instruction, *inner):
        if origins.part(reader.proto.metadata.op_name) in _LATER:
          return True
    return False

  def copied(self, instruction: Instruction) -> bool:
    """Whether an instruction only lays out, or converts, its one operand."""
    if len(instruction.operands) != 1:
      return False
    body = self._fused(instruction)
    inner = [instruction] if body is None else body.instructions
    return instruction.opcode in _COPIES | {"fusion"} and all(
      i.opcode in _COPIES for i in inner
    )


def _first_named(instructions: Iterable[Instruction]) -> Instruction | None:
  return next((i for i in instructions if _has_name(i)), None)


def _has_name(instruction: Instruction) -> bool:
  """Whether an instruction has an operation's name; parameters have others."""
  has_any = bool(instruction.proto.metadata.op_name)
  return has_any and instruction.opcode != "parameter"
