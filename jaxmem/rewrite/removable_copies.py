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

from jaxmem.graph import ComputationGraph, reachable, successors_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
  """The copies of a module's entry.

  Attributes:
    removable: Id -> bytes of those that can become bitcasts, all at once.
    kept_bytes: Why the others stay -> their bytes: "relayout" changes the
      layout, "order" has a reader behind the update, "in-place" is read
      elsewhere by the update itself, "other" copies no donated parameter.
  """

  removable: dict[int, int]
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
    self._successors = [{*s} for s in successors_of(entry.predecessors)]
    # Donated parameter -> the output that takes its place.
    self._updates: dict[Value, Value] = {}
    for parameter in self._analysis.donated:
      values = self._analysis.buffer_of(parameter).values
      if len(values) == 2:
        (output,) = (v for v in values if v is not parameter)
        if output.instruction.id in self._index:
          self._updates[parameter] = output

  def find(self) -> Copies:
    copies = [i for i in self._instructions if i.opcode == "copy"]
    copies.sort(key=lambda i: (-self._value(i).size_bytes, self._index[i.id]))
    found = Copies(removable={}, kept_bytes={})
    for copy in copies:
      size_bytes = self._value(copy).size_bytes
      reason = self._why_kept(copy)
      if reason:
        kept_bytes = found.kept_bytes.get(reason, 0) + size_bytes
        found.kept_bytes[reason] = kept_bytes
      else:
        found.removable[copy.id] = size_bytes
    return found

  def _value(self, instruction: Instruction) -> Value:
    return self._trees[instruction.id][()]

  def _why_kept(self, copy: Instruction) -> str:
    """Why a copy stays; "" if it can go, and its readers then come first."""
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
      return "other"
    if not shapes.same_shape(copy.shape, operand.shape):
      return "relayout"
    if not self._updates_in_place(output, (parameter, value)):
      return "in-place"
    writer = self._index[output.instruction.id]
    readers = {
      self._index[place.instruction.id]
      for held in (parameter, value)
      for place in (*held.positions, *held.uses)
      if place.instruction.id in self._index
    }
    readers -= {writer, self._index[copy.id]}
    behind = reachable([writer], self._successors.__getitem__)
    if not readers.isdisjoint(behind):
      return "order"
    for reader in readers:
      self._successors[reader].add(writer)
    return ""

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
