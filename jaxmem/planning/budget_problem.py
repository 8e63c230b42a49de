"""Builds a `BudgetProblem` from a scheduled module.

What may run again, and until when a value can be read, is what
`rewrite.recompute_rules` says: the rewriter has to keep these rules, and the
choice has to know them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Instruction, shapes

from jaxmem.budget import BudgetProblem, Step, StoredValue, Unit
from jaxmem.graph import Buffer, ComputationGraph, Sharing
from jaxmem.rewrite import RecomputeRules, edits, fusion_parts, recompute_rules

Slots = Literal["occupied", "free"]


def from_module(
  model: AssignmentModel,
  entry: ComputationGraph,
  order: Sequence[int],
  seconds: Mapping[int, float],
  slots: Slots = "occupied",
  sharing: Sharing = "heap",
  rules: RecomputeRules | None = None,
  move_seconds: float = 0.0,
) -> BudgetProblem:
  """Builds the problem of choosing recomputes for a module's entry.

  Args:
    model: The assignment model of the module.
    entry: The graph of its entry computation, with any sharing.
    order: Nodes of the graph in execution order.
    seconds: Instruction id -> estimated seconds. What is missing costs none.
    slots: "occupied": donated arguments and results take no part, as if no
      temporary ever lay in their memory. "free": they count while they hold
      something, so that their empty memory serves temporaries. XLA's
      assignment lies between the two.
    sharing: Which values count as placed on operands that die: those that XLA
      places so on its heap, or "any" that it could, if it did not mind whether
      the operand is picked out of a tuple.
    rules: What may run twice in the module, if that is known already.
    move_seconds: What it costs to start the copies of a value that moves.

  Returns:
    The problem. Without edits, and with any sharing, its profile is
    `liveness.live_bytes` of the order; of the graph without slots if they are
    occupied.
  """
  rules = rules or recompute_rules.recomputable(model.module, model.analysis)
  builder = _Builder(model, entry, order, seconds, slots, sharing, rules)
  return builder.build(move_seconds)


class _Builder:
  def __init__(
    self,
    model: AssignmentModel,
    entry: ComputationGraph,
    order: Sequence[int],
    seconds: Mapping[int, float],
    slots: Slots,
    sharing: Sharing,
    rules: RecomputeRules,
  ):
    self._module = model.module
    self._analysis = model.analysis
    self._dataflow = model.analysis.dataflow
    self._entry = entry
    self._seconds = seconds
    self._are_slots_free = slots == "free"
    self._may_share_any = sharing == "any"
    self._order = tuple(order)
    self._step_of = {node: step for step, node in enumerate(order)}
    self._values = entry.values
    self._number = {v: n for n, v in enumerate(self._values)}
    self._node_ids = {i.id for i in entry.instructions}
    self._rules = rules
    self._overwritten = self._find_overwriters()
    # What is no larger may lie in a slot, where sharing has wider rules.
    self._largest_slot = max(
      (b.size_bytes for b in entry.graph.buffers if self._is_slot(b)), default=0
    )

  def build(self, move_seconds: float) -> BudgetProblem:
    graph = self._entry.graph
    steps = []
    for node_number in self._order:
      node = graph.nodes[node_number]
      instruction = self._entry.instructions[node_number]
      steps.append(
        Step(
          instruction=instruction.id,
          seconds=self._seconds.get(instruction.id, 0.0),
          extra_bytes=node.extra_bytes,
          shares=self._counted(node.shares),
          name=node.name,
        )
      )
    units = [
      unit
      for step, node_number in enumerate(self._order)
      for unit in self._units(step, self._entry.instructions[node_number])
    ]
    return BudgetProblem(
      steps=tuple(steps),
      values=tuple(
        self._stored(number, buffer)
        for number, buffer in enumerate(graph.buffers)
      ),
      units=tuple(units),
      slot_bytes=graph.base_bytes if self._are_slots_free else 0,
      move_seconds=move_seconds,
    )

  # Values.

  def _find_overwriters(self) -> dict[int, int]:
    """Values -> the step that writes over them."""
    found = recompute_rules.find_overwriters(self._analysis)
    step_of = {
      instruction.id: self._step_of[node]
      for node, instruction in enumerate(self._entry.instructions)
    }
    return {
      self._number[value]: step_of[writer.id]
      for value, writer in found.items()
      if value in self._number
    }

  def _is_slot(self, buffer: Buffer) -> bool:
    return buffer.live_at_start or buffer.live_at_end

  def _stored(self, number: int, buffer: Buffer) -> StoredValue:
    steps = sorted(self._step_of[t] for t in buffer.touchers)
    producer = None
    if buffer.definer is not None:
      producer = self._step_of[buffer.definer]
      steps.remove(producer)
    counts = self._are_slots_free or not self._is_slot(buffer)
    position = self._values[number].position
    is_part = bool(position.index) and self._is_split(position.instruction)
    return StoredValue(
      name=buffer.name,
      size_bytes=buffer.size_bytes if counts else 0,
      producer=producer,
      uses=tuple(steps),
      is_result=buffer.live_at_end,
      overwritten_at=self._overwritten.get(number),
      is_droppable=is_part and bool(steps),
      moves_as=self._moves_as(number) if counts else None,
      source=buffer.source,
    )

  def _moves_as(self, number: int) -> edits.Value | None:
    """How edits name a value that may go to the host; None if it may not."""
    value = self._values[number]
    named = recompute_rules.named_value(self._module, value)
    if named is None or self._rules.why_not_moved(named):
      return None
    return named if self._is_renamed_only(number) else None

  def _is_renamed_only(self, number: int) -> bool:
    """Whether no instruction but renamings passes a value on."""
    value = self._values[number]
    places = {
      p.instruction.id
      for p in value.positions
      if p.instruction.id in self._node_ids
    }
    return places == {value.instruction.id}

  def _counted(
    self, shares: Sequence[tuple[int, int]]
  ) -> tuple[tuple[int, int], ...]:
    buffers = self._entry.graph.buffers
    return tuple(
      pair
      for pair in shares
      if (
        self._are_slots_free or not any(self._is_slot(buffers[v]) for v in pair)
      )
      and self._may_share(*pair)
    )

  def _may_share(self, old: int, new: int) -> bool:
    """Whether XLA may place a value on one that dies, now or when edited.

    On the heap it looks only at operands that make the value themselves, not at
    those that pick it out of a tuple. A run of a part of a fusion has no tuple.
    """
    read, made = self._values[old], self._values[new]
    return (
      self._may_share_any
      or made.size_bytes <= self._largest_slot
      or read.instruction.id in made.instruction.operands
      or self._analysis.buffer_of(read) is self._analysis.buffer_of(made)
      or self._is_split(read.instruction)
    )

  # Units.

  def _is_split(self, instruction: Instruction) -> bool:
    return fusion_parts.can_split(self._module, instruction)

  def _units(self, step: int, instruction: Instruction) -> Iterator[Unit]:
    own = {
      index: self._number[value]
      for index, value in self._dataflow.trees[instruction.id].items()
      if value in self._number
    }
    if self._is_split(instruction):
      for index, number in own.items():
        if index and self._may_run_again(instruction, index[0], number):
          yield self._part(step, instruction, index[0], number)
      return
    # A run makes all outputs anew; edits name one, the one that is read.
    read = [i for i, n in own.items() if self._is_read(n)]
    if len(read) != 1 or len(read[0]) > 1:
      return
    output = read[0][0] if read[0] else None
    if self._may_run_again(instruction, output, own[read[0]]):
      yield Unit(
        step=step,
        outputs=tuple(own.values()),
        inputs=self._inputs(instruction, range(len(instruction.operands))),
        seconds=self._seconds.get(instruction.id, 0.0),
        value=edits.Value(instruction=instruction.id, output=output),
        shares=self._counted(self._shares(step)),
      )

  def _part(
    self, step: int, fusion: Instruction, output: int, number: int
  ) -> Unit:
    operands = fusion_parts.needed_operands(self._module, fusion, (output,))
    inputs = self._inputs(fusion, operands)
    return Unit(
      step=step,
      outputs=(number,),
      inputs=inputs,
      seconds=self._seconds.get(fusion.id, 0.0)
      * _fraction(fusion, output, operands),
      value=edits.Value(instruction=fusion.id, output=output),
      shares=tuple(
        (a, b)
        for a, b in self._counted(self._shares(step))
        if a in inputs and b == number
      ),
    )

  def _shares(self, step: int) -> tuple[tuple[int, int], ...]:
    return self._entry.graph.nodes[self._order[step]].shares

  def _is_read(self, number: int) -> bool:
    buffer = self._entry.graph.buffers[number]
    return len(buffer.touchers) > 1 or buffer.live_at_end

  def _inputs(
    self, instruction: Instruction, operands: Sequence[int]
  ) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for operand in operands:
      tree = self._dataflow.trees[instruction.operands[operand]]
      for value in tree.values():
        if value in self._number:
          found[self._number[value]] = None
    return tuple(found)

  def _may_run_again(
    self, instruction: Instruction, output: int | None, number: int
  ) -> bool:
    """Whether a value may be made again and is passed on by renaming alone."""
    named = edits.Value(instruction=instruction.id, output=output)
    if self._rules.why_not(named):
      return False
    if not self._is_renamed_only(number):
      return False
    return not any(
      value.memory_space
      for operand in instruction.operands
      for value in self._dataflow.trees[operand].values()
    )


def _fraction(
  fusion: Instruction, output: int, operands: Sequence[int]
) -> float:
  """Of the bytes that a fusion reads and writes, those of one output."""
  by_id = fusion.computation.by_id
  read = [shapes.top_level_bytes(by_id[o].shape) for o in fusion.operands]
  written = [shapes.top_level_bytes(s) for s in fusion.shape.tuple_shapes]
  part = written[output] + sum(read[o] for o in operands)
  return part / max(1, sum(read) + sum(written))
