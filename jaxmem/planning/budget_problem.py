"""Builds a `BudgetProblem` from a scheduled module.

What may run again, and until when a value can be read, is what
`rewrite.recompute_rules` says: the rewriter has to keep these rules, and the
choice has to know them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from jaxmem_hlo.module import Instruction, shapes

from jaxmem.budget import BudgetProblem, Step, StoredValue, Unit
from jaxmem.graph import Buffer, ComputationGraph, Sharing, may_share_on_heap
from jaxmem.rewrite import RecomputeRules, edits, fusion_parts, recompute_rules

Slots = Literal["occupied", "free"]


def from_module(
  rules: RecomputeRules,
  entry: ComputationGraph,
  seconds: Mapping[int, float],
  slots: Slots = "occupied",
  sharing: Sharing = "heap",
  move_seconds: float = 0.0,
) -> BudgetProblem:
  """Builds the problem of choosing recomputes for a module's entry.

  Args:
    rules: What may run twice in the module.
    entry: The graph of its entry computation, with any sharing and of the same
      analysis. The steps of the problem are its nodes, in their order.
    seconds: Instruction id -> estimated seconds. What is missing costs none.
    slots: "occupied": donated arguments and results take no part, as if no
      temporary ever lay in their memory. "free": they count while they hold
      something, so that their empty memory serves temporaries. XLA's
      assignment lies between the two.
    sharing: Which values count as placed on operands that die: those that XLA
      places so on its heap, or "any" that it could, if it did not mind whether
      the operand is picked out of a tuple.
    move_seconds: What it costs to start the copies of a value that moves.

  Returns:
    The problem. Without edits, and with any sharing, its profile is
    `liveness.live_bytes` of the nodes; of the graph without slots if they are
    occupied.
  """
  builder = _Builder(rules, entry, seconds, slots, sharing)
  return builder.build(move_seconds)


class _Builder:
  def __init__(
    self,
    rules: RecomputeRules,
    entry: ComputationGraph,
    seconds: Mapping[int, float],
    slots: Slots,
    sharing: Sharing,
  ):
    self._rules = rules
    self._module = rules.module
    self._trees = rules.analysis.dataflow.trees
    self._entry = entry
    self._seconds = seconds
    self._are_slots_free = slots == "free"
    self._may_share_any = sharing == "any"
    self._number = {v: n for n, v in enumerate(entry.values)}
    # Maps an instruction's id to the step that it is.
    self._steps = {i.id: n for n, i in enumerate(entry.instructions)}
    # A value that is no larger may lie in the memory of a donated argument or
    # a result, where sharing has wider rules.
    self._largest_slot = max(
      (b.size_bytes for b in entry.graph.buffers if _is_slot(b)), default=0
    )

  def build(self, move_seconds: float) -> BudgetProblem:
    graph = self._entry.graph
    steps = [
      Step(
        instruction=instruction.id,
        seconds=self._seconds.get(instruction.id, 0.0),
        extra_bytes=node.extra_bytes,
        shares=self._counted(node.shares),
        name=node.name,
      )
      for node, instruction in zip(
        graph.nodes, self._entry.instructions, strict=True
      )
    ]
    units = [
      unit
      for step, instruction in enumerate(self._entry.instructions)
      for unit in self._units(step, instruction)
    ]
    # Where nothing runs, what goes in and comes out is there all the same.
    nothing = Step(instruction=-1, name="nothing")
    return BudgetProblem(
      steps=tuple(steps) or (nothing,),
      values=tuple(
        self._stored(number, buffer)
        for number, buffer in enumerate(graph.buffers)
      ),
      units=tuple(units),
      slot_bytes=graph.base_bytes if self._are_slots_free else 0,
      move_seconds=move_seconds,
    )

  # Values.

  def _stored(self, number: int, buffer: Buffer) -> StoredValue:
    uses = tuple(t for t in buffer.touchers if t != buffer.definer)
    counts = self._are_slots_free or not _is_slot(buffer)
    value = self._entry.values[number]
    position = value.position
    writer = self._rules.overwriters.get(value)
    is_part = bool(position.index) and self._is_split(position.instruction)
    return StoredValue(
      name=buffer.name,
      size_bytes=buffer.size_bytes if counts else 0,
      producer=buffer.definer,
      uses=uses,
      is_result=buffer.live_at_end,
      overwritten_at=None if writer is None else self._steps[writer.id],
      is_droppable=is_part and bool(uses),
      moves_as=self._moves_as(number) if counts else None,
      source=buffer.source,
    )

  def _moves_as(self, number: int) -> edits.Value | None:
    """How edits name a value that may go to the host; None if it may not."""
    value = self._entry.values[number]
    named = recompute_rules.named_value(self._module, value)
    if named is None or self._rules.why_not_moved(named):
      return None
    return named if self._is_renamed_only(number) else None

  def _is_renamed_only(self, number: int) -> bool:
    """Whether no instruction but renamings passes a value on."""
    value = self._entry.values[number]
    places = {
      p.instruction.id
      for p in value.positions
      if p.instruction.id in self._steps
    }
    return places == {value.instruction.id}

  def _counted(
    self, shares: Sequence[tuple[int, int]]
  ) -> tuple[tuple[int, int], ...]:
    buffers = self._entry.graph.buffers
    return tuple(
      pair
      for pair in shares
      if (self._are_slots_free or not any(_is_slot(buffers[v]) for v in pair))
      and self._may_share(*pair)
    )

  def _may_share(self, old: int, new: int) -> bool:
    """Whether XLA may place a value on one that dies, now or when edited.

    A second run of a part of a fusion has no tuple to pick its value out of.
    """
    read, made = self._entry.values[old], self._entry.values[new]
    analysis = self._rules.analysis
    return (
      self._may_share_any
      or made.size_bytes <= self._largest_slot
      or analysis.buffer_of(read) is analysis.buffer_of(made)
      or may_share_on_heap(
        analysis,
        read,
        made,
        read.instruction.id in made.instruction.operands
        or self._is_split(read.instruction),
      )
    )

  # Units.

  def _is_split(self, instruction: Instruction) -> bool:
    return fusion_parts.can_split(self._module, instruction)

  def _units(self, step: int, instruction: Instruction) -> Iterator[Unit]:
    own = {
      index: self._number[value]
      for index, value in self._trees[instruction.id].items()
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
    return self._entry.graph.nodes[step].shares

  def _is_read(self, number: int) -> bool:
    buffer = self._entry.graph.buffers[number]
    return len(buffer.touchers) > 1 or buffer.live_at_end

  def _inputs(
    self, instruction: Instruction, operands: Sequence[int]
  ) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for operand in operands:
      tree = self._trees[instruction.operands[operand]]
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
      for value in self._trees[operand].values()
    )


def _is_slot(buffer: Buffer) -> bool:
  """Whether a buffer is a donated argument's, or a result's own."""
  return buffer.live_at_start or buffer.live_at_end


def _fraction(
  fusion: Instruction, output: int, operands: Sequence[int]
) -> float:
  """Of the bytes that a fusion reads and writes, those of one output."""
  by_id = fusion.computation.by_id
  read = [shapes.top_level_bytes(by_id[o].shape) for o in fusion.operands]
  written = [shapes.top_level_bytes(s) for s in fusion.shape.tuple_shapes]
  part = written[output] + sum(read[o] for o in operands)
  return part / max(1, sum(read) + sum(written))
