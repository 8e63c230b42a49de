"""Logical buffers: the values that XLA must keep at one address.

Values share a buffer when an operation writes in place, when a loop carries
one into the other, when a conditional returns either, and when a donated
input becomes an output.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from jaxmem_hlo.buffers import aliasing
from jaxmem_hlo.buffers.dataflow import Dataflow, Value, while_computations
from jaxmem_hlo.module import Instruction, Module


@dataclasses.dataclass(slots=True, eq=False)
class LogicalBuffer:
  """Values at one address.

  Attributes:
    id: The id of its first value.
    values: The values, ordered by id.
    size_bytes: Bytes of the largest value.
    memory_space: XLA's memory space.
    is_live_out: Whether the entry computation returns one of the values.
  """

  id: int
  values: list[Value]
  size_bytes: int = 0
  memory_space: int = 0
  is_live_out: bool = False

  def add(self, value: Value) -> None:
    """Adds a value.

    A scheduled module may not say of a donated argument that it is on the
    host, only of the result that it becomes: one such value is enough.
    """
    self.values.append(value)
    self.memory_space = max(self.memory_space, value.memory_space)
    self.size_bytes = max(self.size_bytes, value.size_bytes)
    self.is_live_out |= value.is_live_out


class BufferAnalysis:
  """The logical buffers of a module.

  Attributes:
    module: The module.
    dataflow: Its values.
    buffers: All buffers, ordered by their first value.
    writes: (read value, written value, instruction) of every in-place write,
      loop carries and donation not included.
  """

  def __init__(self, module: Module):
    self.module = module
    self.dataflow = Dataflow(module)
    self.writes: list[tuple[Value, Value, Instruction]] = []
    self._parent: dict[Value, Value] = {}
    for computation in self.dataflow.computations:
      for instruction in computation.instructions:
        self._unite_instruction(instruction)
    self._unite_donations()
    self.buffers, self._buffer_of = self._collect()

  def buffer_of(self, value: Value) -> LogicalBuffer:
    """Returns the buffer that holds a value."""
    return self._buffer_of[value]

  @functools.cached_property
  def donated(self) -> set[Value]:
    """Entry parameter values whose buffer becomes an output."""
    trees = self.dataflow.trees
    parameters = self.module.entry.parameters
    return {
      trees[parameters[number].id][index]
      for number, index in self.module.donations
    }

  def is_slot(self, buffer: LogicalBuffer) -> bool:
    """Whether a buffer is that of a donated parameter or of an output."""
    return buffer.is_live_out or not self.donated.isdisjoint(buffer.values)

  @functools.cached_property
  def largest_slot_bytes(self) -> int:
    """Bytes of the largest of these buffers; 0 if there is none."""
    return max(
      (b.size_bytes for b in self.buffers if self.is_slot(b)), default=0
    )

  @functools.cached_property
  def readers(self) -> dict[Value, tuple[frozenset[int], bool]]:
    """Value -> ids of instructions that read it, and whether it stays.

    The value of a parameter that is not donated stays to the end.
    """
    return {
      value: (
        frozenset(self._readers(value)),
        value.instruction.opcode == "parameter"
        and value.instruction.computation is self.module.entry
        and value not in self.donated,
      )
      for value in self.dataflow.values
    }

  def _readers(self, value: Value) -> Iterator[int]:
    for use in value.uses:
      reader = use.instruction
      if reader.opcode == "call":
        continue  # The reads inside the callee count.
      if reader.opcode == "while":
        # The initial value ends where the body starts to own it.
        body, _ = while_computations(self.module, reader)
        reader = body.parameters[0]
      yield reader.id

  def _unite_instruction(self, instruction: Instruction) -> None:
    if instruction.opcode == "while":
      self._unite_while(instruction)
    elif instruction.opcode == "conditional":
      self._unite_conditional(instruction)
    else:
      self._unite_in_place(instruction)

  def _unite_while(self, instruction: Instruction) -> None:
    trees = self.dataflow.trees
    body, condition = while_computations(self.module, instruction)
    for index, value in trees[instruction.id].items():
      self._unite(value, trees[instruction.operands[0]][index])
      self._unite(value, trees[body.parameters[0].id][index])
      self._unite(value, trees[body.root.id][index])
      self._unite(value, trees[condition.parameters[0].id][index])

  def _unite_conditional(self, instruction: Instruction) -> None:
    trees = self.dataflow.trees
    for callee in instruction.callees:
      root = self.module.by_id[callee].root
      for index, value in trees[instruction.id].items():
        self._unite(value, trees[root.id][index])

  def _unite_in_place(self, instruction: Instruction) -> None:
    trees = self.dataflow.trees
    for pair in aliasing.in_place_pairs(self.module, instruction):
      operand = instruction.operands[pair.operand_number]
      read = trees[operand][pair.operand_index]
      written = trees[instruction.id][pair.output_index]
      self._unite(read, written)
      self.writes.append((read, written, instruction))

  def _unite_donations(self) -> None:
    trees = self.dataflow.trees
    entry = self.module.entry
    for (number, index), output in self.module.donations.items():
      self._unite(
        trees[entry.parameters[number].id][index],
        trees[entry.root.id][output],
      )

  def _find(self, value: Value) -> Value:
    root = value
    while self._parent.get(root, root) is not root:
      root = self._parent[root]
    while self._parent.get(value, value) is not root:
      self._parent[value], value = root, self._parent.get(value, value)
    return root

  def _unite(self, a: Value, b: Value) -> None:
    a, b = self._find(a), self._find(b)
    if a is not b:
      first, second = (a, b) if a.id < b.id else (b, a)
      self._parent[second] = first

  def _collect(
    self,
  ) -> tuple[list[LogicalBuffer], dict[Value, LogicalBuffer]]:
    groups: dict[Value, LogicalBuffer] = {}
    buffer_of = {}
    for value in self.dataflow.values:
      root = self._find(value)
      if root not in groups:
        groups[root] = LogicalBuffer(root.id, [])
      buffer = groups[root]
      buffer.add(value)
      buffer_of[value] = buffer
    for buffer in groups.values():
      for value in buffer.values:
        value.memory_space = buffer.memory_space
    return list(groups.values()), buffer_of
