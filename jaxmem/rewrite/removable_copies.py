"""Copies of donated parameters that an order makes needless.

XLA copies a donated parameter before it schedules, wherever it cannot know
that the update in place comes after every read. An order in which it does come
after makes the copy a mere second name. Three things must hold: the copy keeps
the layout; every reader of the parameter and of the copy can run before the
instruction that writes the parameter's buffer anew (edges see to it); and that
instruction, if it reads the old value itself, reads each element only where it
writes it.
"""

from __future__ import annotations

import dataclasses

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import Value, aliasing
from jaxmem_hlo.module import Instruction, shapes

from jaxmem.graph import ComputationGraph


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemovableCopy:
  """A copy that can become a bitcast.

  Attributes:
    copy: The copy.
    writer: The instruction that writes the parameter's buffer anew.
    readers: Nodes of the entry that must run before the writer.
    size_bytes: Bytes of the copy.
  """

  copy: Instruction
  writer: int
  readers: frozenset[int]
  size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
  """The copies of a module's entry.

  Attributes:
    removable: Those that can be removed, all of them at once.
    kept_bytes: Why the others stay -> their bytes: "relayout" changes the
      layout, "order" has a reader behind the update, "in-place" is read
      elsewhere by the update itself, "other" copies no donated parameter.
  """

  removable: tuple[RemovableCopy, ...]
  kept_bytes: dict[str, int]


def find_copies(model: AssignmentModel, entry: ComputationGraph) -> Copies:
  """Finds the copies that can all be removed together.

  Args:
    model: The assignment model of the module.
    entry: The graph of its entry computation.
  """
  return _Finder(model, entry).find()


class _Finder:
  def __init__(self, model: AssignmentModel, entry: ComputationGraph):
    self._model = model
    self._analysis = model.analysis
    self._trees = model.analysis.dataflow.trees
    self._index = {i.id: n for n, i in enumerate(entry.instructions)}
    self._instructions = entry.instructions
    self._successors: list[set[int]] = [set() for _ in entry.instructions]
    for n, predecessors in enumerate(entry.predecessors):
      for before in predecessors:
        self._successors[before].add(n)
    self._updates = self._find_updates()
    self._kept: dict[str, int] = {}

  def find(self) -> Copies:
    copies = [i for i in self._instructions if i.opcode == "copy"]
    copies.sort(key=lambda i: (-self._value(i).size_bytes, self._index[i.id]))
    removable = [c for c in map(self._try, copies) if c is not None]
    return Copies(removable=tuple(removable), kept_bytes=self._kept)

  def _value(self, instruction: Instruction) -> Value:
    return self._trees[instruction.id][()]

  def _find_updates(self) -> dict[Value, Value]:
    """Donated parameter -> the output that takes its place."""
    updates = {}
    for parameter in self._analysis.donated:
      values = self._analysis.buffer_of(parameter).values
      if len(values) == 2:
        (output,) = (v for v in values if v is not parameter)
        if output.instruction.id in self._index:
          updates[parameter] = output
    return updates

  def _keep(self, reason: str, copy: Instruction) -> None:
    size_bytes = self._value(copy).size_bytes
    self._kept[reason] = self._kept.get(reason, 0) + size_bytes

  def _try(self, copy: Instruction) -> RemovableCopy | None:
    value = self._value(copy)
    operand = self._model.module.instruction(copy.operands[0])
    parameter = self._value(operand)
    output = self._updates.get(parameter)
    if (
      output is None
      or len(self._analysis.buffer_of(value).values) > 1
      or value.is_live_out
      or output.instruction is copy
    ):
      self._keep("other", copy)
    elif not shapes.same_shape(copy.shape, operand.shape):
      self._keep("relayout", copy)
    elif not self._updates_in_place(output, (parameter, value)):
      self._keep("in-place", copy)
    else:
      return self._order(copy, parameter, output)
    return None

  def _updates_in_place(self, output: Value, old: tuple[Value, Value]) -> bool:
    """Whether the writer reads old elements only where it writes them."""
    writer = output.instruction
    return all(
      self._trees[operand].get(()) not in old
      or aliasing.is_elementwise_update(
        self._model.module, writer, number, output.position.index
      )
      for number, operand in enumerate(writer.operands)
    )

  def _order(
    self, copy: Instruction, parameter: Value, output: Value
  ) -> RemovableCopy | None:
    writer = self._index[output.instruction.id]
    readers = {
      self._index[place.instruction.id]
      for value in (parameter, self._value(copy))
      for place in (*value.positions, *value.uses)
      if place.instruction.id in self._index
    }
    readers -= {writer, self._index[copy.id]}
    if not readers.isdisjoint(self._descendants(writer)):
      self._keep("order", copy)
      return None
    for reader in readers:
      self._successors[reader].add(writer)
    return RemovableCopy(
      copy=copy,
      writer=writer,
      readers=frozenset(readers),
      size_bytes=self._value(copy).size_bytes,
    )

  def _descendants(self, node: int) -> set[int]:
    found: set[int] = set()
    stack = [node]
    while stack:
      for after in self._successors[stack.pop()]:
        if after not in found:
          found.add(after)
          stack.append(after)
    return found
