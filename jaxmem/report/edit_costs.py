"""What a byte limit cost, edit by edit: bytes at the peak, and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import Value, schedule
from jaxmem_hlo.module import COLLECTIVES, Instruction, Module

from jaxmem import cost
from jaxmem.report import layout
from jaxmem.report.plan_data import EditCost
from jaxmem.rewrite import SUFFIX, Edits, edits

_Key = tuple[str, int]


def edit_costs(
  ordered: AssignmentModel, made: Edits, planned: Module, rates: cost.Rates
) -> list[EditCost]:
  """Returns what each edit of a module frees and takes.

  All second runs of one instruction are one edit.

  Args:
    ordered: The buffers of the module before it was edited, in the order that
      edits were made on.
    made: The edits.
    planned: The edited module, as it runs.
    rates: Of the device.
  """
  freed = _freed_bytes(ordered, made)
  spent = _spent_seconds(ordered.module, planned, rates)
  by_id = ordered.module.entry.by_id
  # What was asked for and made nothing, since nobody would read it, is left
  # out; nothing that runs is.
  rows = []
  for kind, instruction_id in sorted(freed.keys() | spent.keys()):
    instruction = by_id[instruction_id]
    key = kind, instruction_id
    rows.append(
      EditCost(
        kind=_kind(kind, instruction),
        name=instruction.name,
        source=ordered.module.source(instruction),
        freed_bytes=freed.get(key, 0),
        extra_s=spent.get(key, 0.0),
      )
    )
  return rows


def completed(
  rows: Sequence[EditCost], saved_bytes: int, extra_s: float
) -> tuple[EditCost, ...]:
  """Returns rows that add up, those that free most first.

  Args:
    rows: What is known of single edits; those of nothing are left out.
    saved_bytes: What all is to add up to.
    extra_s: Likewise.
  """
  rest = EditCost(
    kind="all else",
    name="packing, a peak elsewhere, originals and copies that are gone",
    source="",
    freed_bytes=saved_bytes - sum(r.freed_bytes for r in rows),
    extra_s=extra_s - sum(r.extra_s for r in rows),
  )
  ranked = sorted(rows, key=lambda r: (-r.freed_bytes, -r.extra_s, r.name))
  return tuple(r for r in (*ranked, rest) if r.freed_bytes or r.extra_s)


def _kind(kind: str, instruction: Instruction) -> str:
  is_gather = instruction.opcode.removesuffix("-start") in COLLECTIVES
  return "gather again" if kind == "recompute" and is_gather else kind


def _freed_bytes(ordered: AssignmentModel, made: Edits) -> dict[_Key, int]:
  """Returns what is away at the peak of the schedule without edits."""
  assignment = ordered.assign()
  placed = layout.describe(ordered.module, assignment)
  live = {b.name: b for b in placed.at_peak()}
  timeline = schedule.Timeline(ordered.module)
  peak = placed.peak_step
  freed: dict[_Key, int] = {}
  for kind, named, away, back in _absences(ordered, made, timeline):
    buffer = live.get(named.name)
    key = kind, named.instruction.id
    freed.setdefault(key, 0)
    if buffer is not None and away <= peak < back:
      freed[key] += buffer.size_bytes
      del live[named.name]
  return freed


def _absences(
  ordered: AssignmentModel, made: Edits, timeline: schedule.Timeline
) -> Iterator[tuple[str, Value, int, int]]:
  """Yields kind and value of edits, and the half-open steps that it is away."""
  times = timeline.times
  trees = ordered.analysis.dataflow.trees
  by_id = ordered.module.entry.by_id

  def begin(instruction_id: int) -> int:
    # What an instruction runs lies before it on the flattened schedule.
    callees = by_id[instruction_id].callees
    spans = [timeline.spans[c][0] for c in callees if c in timeline.spans]
    return min([times[instruction_id], *spans])

  def value_of(named: edits.Value) -> Value:
    index = () if named.output is None else (named.output,)
    return trees[named.instruction][index]

  for again in made.recomputes:
    value, back = value_of(again.value), begin(again.before)
    read = [times[use.instruction.id] for use in value.uses]
    read.append(times[again.value.instruction])
    yield "recompute", value, 1 + max(t for t in read if t < back), back
  for move in made.offloads:
    away, back = begin(move.store_done), begin(move.fetch_start)
    yield "offload", value_of(move.value), away, back


def _spent_seconds(
  ordered: Module, planned: Module, rates: cost.Rates
) -> dict[_Key, float]:
  """Returns how long second runs take, and copies to the host and back."""
  originals = {i.name: i.id for i in ordered.entry.instructions}
  trace = cost.ScheduleTimer(planned, rates).trace(planned)
  entry = planned.entry
  spent: dict[_Key, float] = {}
  for instruction in entry.instructions:
    first, _, _ = instruction.name.rpartition(f".{SUFFIX}")
    if instruction.name not in originals and first in originals:
      key = "recompute", originals[first]
      spent[key] = spent.get(key, 0.0) + trace.seconds.get(instruction.id, 0.0)
  for transfer in trace.transfers:
    start = entry.by_id.get(transfer.start)
    if start is None or start.name in originals:
      continue
    source = start
    while source.opcode in ("copy-start", "copy-done", "get-tuple-element"):
      source = entry.by_id[source.operands[0]]
    if source.id in ordered.entry.by_id:
      key = "offload", source.id
      seconds = trace.seconds[transfer.start] + trace.seconds[transfer.done]
      spent[key] = spent.get(key, 0.0) + seconds
  return spent
