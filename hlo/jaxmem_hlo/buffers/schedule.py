"""The flattened timeline of a schedule and the live ranges on it.

XLA lays all computations that the schedule runs on one timeline: a loop's
condition and body come before the loop itself, and the callee of a call or a
conditional before its caller. That of an asynchronous start comes behind it,
since jaxlib 0.12; until then, before it. Times are positions on that line. Live
ranges here are inclusive at both ends, as XLA's are: a value that is read at
time t and one defined at t are both live at t.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from jaxmem_hlo.buffers.dataflow import Value, while_computations
from jaxmem_hlo.buffers.logical_buffers import BufferAnalysis
from jaxmem_hlo.module import Computation, Instruction, Module, xla_version


class ScheduleError(ValueError):
  """A schedule that XLA could not run."""


@dataclasses.dataclass(slots=True)
class LiveRange:
  """When a value is live: times `start` to `end`, both included.

  Attributes:
    start: Time of the definition.
    end: Time of the last read or appearance.
  """

  start: int
  end: int


class Timeline:
  """The flattened schedule of a module.

  Attributes:
    times: Instruction id -> time.
    spans: Computation id -> half-open [start, end) of its instructions.
    length: Number of instructions on the line.

  Args:
    module: The module.
    orders: Computation id -> instruction ids, where they differ from the
      module's own schedule.
  """

  def __init__(
    self,
    module: Module,
    orders: Mapping[int, Sequence[int]] | None = None,
  ):
    self._module = module
    self._orders = orders or {}
    self.times: dict[int, int] = {}
    self.spans: dict[int, tuple[int, int]] = {}
    self._flatten(module.entry)
    self.length = len(self.times)

  def _sequence(self, computation: Computation) -> list[Instruction]:
    if computation.id in self._orders:
      return [computation.by_id[i] for i in self._orders[computation.id]]
    return self._module.schedule(computation.id)

  def _flatten(self, computation: Computation) -> None:
    start = len(self.times)
    is_async_later = xla_version.is_at_least(0, 12)
    before = {"call", "conditional"}
    if not is_async_later:
      before.add("async-start")
    for instruction in self._sequence(computation):
      if instruction.opcode == "while":
        body, condition = while_computations(self._module, instruction)
        self._flatten(condition)
        self._flatten(body)
      elif instruction.opcode in before:
        self._flatten_callees(instruction)
      self.times[instruction.id] = len(self.times)
      if instruction.opcode == "async-start" and is_async_later:
        self._flatten_callees(instruction)
    self.spans[computation.id] = (start, len(self.times))

  def _flatten_callees(self, instruction: Instruction) -> None:
    for callee in instruction.callees:
      self._flatten(self._module.by_id[callee])


def live_ranges(
  analysis: BufferAnalysis, timeline: Timeline
) -> dict[Value, LiveRange]:
  """Returns when each value is live.

  Values of one buffer follow each other: each ends at the latest where the
  next one starts.

  Args:
    analysis: The module's buffers.
    timeline: A schedule of the same module.
  """
  ranges = {
    value: _live_range(timeline, value, readers, is_kept)
    for value, (readers, is_kept) in analysis.readers.items()
  }
  _extend_async(analysis, timeline, ranges)
  for buffer in analysis.buffers:
    if len(buffer.values) > 1:
      _normalize([ranges[v] for v in buffer.values])
  return ranges


def _live_range(
  timeline: Timeline, value: Value, readers: Collection[int], is_kept: bool
) -> LiveRange:
  times, spans = timeline.times, timeline.spans
  instruction = value.instruction
  if instruction.opcode == "parameter":
    start = spans[instruction.computation.id][0]
  else:
    start = times[instruction.id]
  end = -1
  for position in value.positions:
    where = position.instruction
    computation = where.computation
    if computation.root is where:
      time = spans[computation.id][1]
    else:
      time = times[where.id]
    end = max(end, time)
  if is_kept:
    end = timeline.length
  elif readers:
    end = max(end, max(map(times.__getitem__, readers)))
  return LiveRange(start, end)


def _extend_async(
  analysis: BufferAnalysis,
  timeline: Timeline,
  ranges: dict[Value, LiveRange],
) -> None:
  """Values inside an asynchronous computation live until it is done."""
  dataflow = analysis.dataflow
  for computation in dataflow.computations:
    caller = dataflow.callers.get(computation.id)
    if caller is None or caller.opcode != "async-start":
      continue
    outer = caller.computation
    done = [u for u in outer.users[caller.id] if u.opcode == "async-done"]
    end = max((timeline.times[d.id] for d in done), default=timeline.length)
    for value in dataflow.values:
      if value.instruction.computation is computation:
        ranges[value].end = max(ranges[value].end, end)


def _normalize(ranges: list[LiveRange]) -> None:
  ranges = sorted(ranges, key=lambda r: (r.start, r.end))
  for first, second in itertools.pairwise(ranges):
    second.end = max(first.end, second.end)
    first.end = min(first.end, second.start)


def join_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
  """Returns the union of ranges as disjoint ones, ascending.

  Ranges of which one starts where the other ends are joined, too.
  """
  joined: list[tuple[int, int]] = []
  for start, end in sorted(ranges):
    if joined and start <= joined[-1][1]:
      joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
    else:
      joined.append((start, end))
  return joined


def check_schedule(computation: Computation, order: Sequence[int]) -> None:
  """Checks that an order runs every instruction once, operands first.

  Args:
    computation: The computation.
    order: Instruction ids in execution order.

  Raises:
    ScheduleError: Naming the first instruction that is missing, repeated or
      too early.
  """
  done: set[int] = set()
  for instruction_id in order:
    instruction = computation.by_id.get(instruction_id)
    if instruction is None:
      raise ScheduleError(
        f"{instruction_id} is not an instruction of {computation.name}."
      )
    if instruction_id in done:
      raise ScheduleError(f"{instruction.name} is scheduled twice.")
    for needed in (*instruction.operands, *instruction.control_predecessors):
      if needed not in done:
        raise ScheduleError(
          f"{instruction.name} is scheduled before"
          f" {computation.by_id[needed].name}, which it needs."
        )
    done.add(instruction_id)
  missing = computation.by_id.keys() - done
  if missing:
    names = sorted(computation.by_id[i].name for i in missing)
    raise ScheduleError(f"{names[0]} is not in the schedule.")
