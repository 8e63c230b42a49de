"""The events on XLA's heap: what is defined, shared and freed, and when."""

from __future__ import annotations

from collections.abc import Callable

from jaxmem_hlo.assignment import packing
from jaxmem_hlo.buffers import BufferAnalysis, LiveRange, LogicalBuffer, Value


class HeapTrace:
  """Replays definitions and deaths in time order, as XLA's simulator does.

  Time on the heap counts events, not instructions.

  Attributes:
    leader: Value -> the value whose place it takes (itself, if its own).
    size: Leader -> bytes.

  Args:
    analysis: The module's buffers.
    shares_place: Whether a value may take the place of a dying operand, given
      the operand and the value.
    buffers: Those on the heap.
    ranges: Live range of every value.
    length: Length of the timeline.
  """

  def __init__(
    self,
    analysis: BufferAnalysis,
    shares_place: Callable[[Value, Value], bool],
    buffers: list[LogicalBuffer],
    ranges: dict[Value, LiveRange],
    length: int,
  ):
    self._analysis = analysis
    self._shares_place = shares_place
    values = [v for b in buffers for v in b.values]
    self._members = set(values)
    self._ends = {v: ranges[v].end for v in values}
    values.sort(key=lambda v: (ranges[v].start, ranges[v].end, v.id))
    self._defined: list[list[Value]] = [[] for _ in range(length + 1)]
    self._freed: list[list[Value]] = [[] for _ in range(length + 1)]
    for value in values:
      self._defined[ranges[value].start].append(value)
      self._freed[ranges[value].end].append(value)
    self.leader: dict[Value, Value] = {}
    self.size: dict[Value, int] = {}
    self._first: dict[LogicalBuffer, Value] = {}
    self._start: dict[Value, int] = {}
    self._end: dict[Value, int] = {}
    self._clock = 0
    self._replay()

  def blocks(self) -> list[packing.Block]:
    """Returns what has to be placed, keyed by the leader's id."""
    times: dict[Value, list[tuple[int, int]]] = {}
    for value, leader in self.leader.items():
      span = (self._start[value], self._end[value])
      if value is leader:
        times.setdefault(leader, []).insert(0, span)
      else:
        times.setdefault(leader, []).append(span)
    return [
      packing.Block(leader.id, self.size[leader], spans)
      for leader, spans in times.items()
      if self.size[leader] > 0
    ]

  def _tick(self) -> int:
    self._clock += 1
    return self._clock - 1

  def _replay(self) -> None:
    for time in range(len(self._defined)):
      for value in self._defined[time]:
        self._define(value, time)
      for value in self._freed[time]:
        self._free(value)

  def _define(self, value: Value, time: int) -> None:
    buffer = self._analysis.buffer_of(value)
    if buffer in self._first:
      self._share(value, self._first[buffer])
      return
    operand = self._dying_operand(value, buffer, time)
    if operand is not None:
      self._free(operand)
      self._freed[time].remove(operand)
      self._share(value, operand)
      return
    self._first[buffer] = value
    self.leader[value] = value
    self.size[value] = buffer.size_bytes
    self._start[value] = self._tick() if buffer.size_bytes else 0

  def _share(self, value: Value, other: Value) -> None:
    leader = self.leader[other]
    self.leader[value] = leader
    self._start[value] = self._tick() if self.size[leader] else 0

  def _free(self, value: Value) -> None:
    self._end[value] = self._tick() if self.size[self.leader[value]] else 0

  def _dying_operand(
    self, value: Value, buffer: LogicalBuffer, time: int
  ) -> Value | None:
    if len(buffer.values) > 1:
      return None
    trees = self._analysis.dataflow.trees
    for operand in value.instruction.operands:
      for candidate in trees[operand].values():
        if (
          candidate in self._members
          and self._ends[candidate] == time
          and len(self._analysis.buffer_of(candidate).values) == 1
          and candidate in self._freed[time]
          and self._shares_place(candidate, value)
        ):
          return candidate
    return None
