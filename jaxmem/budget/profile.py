"""The profile of a plan: bytes live while each step, and each second run, runs.

A plan is a set of events (unit, step): the unit runs again just before the
step. Before one step units run in `BudgetProblem.run_order`, so that one may
feed another. Every use reads the latest run of its value that comes before it,
or the original.

Time is a number line of keys. A run of a unit before step s has key
s * pitch + rank + 2, step s itself s * pitch + num_units + 2, where pitch is
num_units + 3: before all runs, s * pitch is the end of copies to the host, and
s * pitch + 1 the start or end of copies back. What is there at the start has
key -1, what stays to the end has key num_steps * pitch.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
from collections.abc import Iterable

import numpy as np

from jaxmem.budget.problem import BudgetProblem

Event = tuple[int, int]
# Of one version of a value: from the key of its producer to that of its last
# reader, both included.
Interval = tuple[int, int]
# Of one key.
_NO_BYTES = np.zeros((4, 1), np.int64)


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Transfer:
  """A value that goes to the host and comes back.

  Attributes:
    value: The value; its copy to the host starts when it is made.
    store_done: The step before which the copy to the host has ended.
    fetch_start: The step before which the copy back starts.
    fetch_done: The step before which it has ended; readers from then on see
      what came back.
  """

  value: int
  store_done: int
  fetch_start: int
  fetch_done: int


class Profile:
  """Live bytes of a plan that changes one event at a time.

  Attributes:
    problem: The problem.
    pitch: Keys per step.
    runs: For each unit, the steps before which it runs again, ascending.
    transfers: For each value that moves, how; one move each.
    intervals: For each value, its versions, ascending.
    seconds: What all events and moves cost.
  """

  def __init__(
    self,
    problem: BudgetProblem,
    events: Iterable[Event] = (),
    transfers: Iterable[Transfer] = (),
  ):
    self.problem = problem
    num_units = len(problem.units)
    self.pitch = num_units + 3
    self.end = problem.num_steps * self.pitch
    self.runs: list[list[int]] = [[] for _ in problem.units]
    self.transfers: dict[int, Transfer] = {}
    self.seconds = 0.0
    self.keys = [self.step_key(s) for s in range(problem.num_steps)]
    rows = np.zeros((4, problem.num_steps), np.int64)
    rows[3] = problem.extra_bytes
    self._set_rows(rows)
    self._live: np.ndarray | None = None
    self._sizes = [v.size_bytes for v in problem.values]
    self._first = [
      -1 if v.producer is None else self.step_key(v.producer)
      for v in problem.values
    ]
    self._uses = [
      [self.step_key(u) for u in v.uses] + [self.end] * v.is_result
      for v in problem.values
    ]
    self._sharers = _sharers(problem)
    self._saved_at: dict[int, int] = {}
    self.intervals: list[tuple[Interval, ...]] = [() for _ in problem.values]
    for value in range(len(problem.values)):
      self._set_intervals(value, self._find_intervals(value))
    self._settle_shares({k for k in self.keys if self.pairs_at(k)})
    for transfer in transfers:
      self.move(transfer)
    for event in events:
      self.add(*event)

  def copy(self) -> Profile:
    """Returns a plan of its own with the same events."""
    other = copy.copy(self)
    other.runs = [[*steps] for steps in self.runs]
    other.transfers = dict(self.transfers)
    other.keys = [*self.keys]
    other.intervals = [*self.intervals]
    other._set_rows(self._rows.copy())
    other._uses = [[*uses] for uses in self._uses]
    other._saved_at = dict(self._saved_at)
    return other

  # Keys.

  def step_key(self, step: int) -> int:
    """Returns the key of a step."""
    return step * self.pitch + self.pitch - 1

  def run_key(self, unit: int, before: int) -> int:
    """Returns the key of a run."""
    return before * self.pitch + self.problem.rank[unit] + 2

  def step_at(self, key: int) -> int:
    """Returns the step of a key: itself, or what the run comes before."""
    return key // self.pitch

  # What others read.

  @property
  def events(self) -> tuple[Event, ...]:
    """All events, sorted by unit."""
    return tuple((u, s) for u, steps in enumerate(self.runs) for s in steps)

  @property
  def live(self) -> np.ndarray:
    """Live bytes at each of `keys`, int64."""
    if self._live is None:
      changes = self._starts.copy()
      changes[1:] -= self._ends[:-1]
      live = changes.cumsum() + self._extra - self._saved
      self._live = live
      return live
    return self._live

  @property
  def peak_bytes(self) -> int:
    """The most bytes live at once."""
    return int(self.live.max(initial=0))

  def excess(self, limit_bytes: int) -> int:
    """Returns the bytes above a limit, summed over all steps and runs."""
    return int(np.maximum(self.live - limit_bytes, 0).sum())

  def has(self, unit: int, before: int) -> bool:
    """Whether the plan holds an event."""
    steps = self.runs[unit]
    at = bisect.bisect_left(steps, before)
    return at < len(steps) and steps[at] == before

  def uses(self, value: int) -> list[int]:
    """Returns the keys of all readers of a value, ascending."""
    return self._uses[value]

  def producers(self, value: int) -> list[int]:
    """Returns when versions of a value begin to be read, ascending.

    The first is the original, the others are runs that make it again and the
    end of its copy back from the host.
    """
    unit = self.problem.unit_of[value]
    found = [self._first[value]]
    if unit >= 0:
      found += [self.run_key(unit, s) for s in self.runs[unit]]
    if value in self.transfers:
      bisect.insort(found, self.transfers[value].fetch_done * self.pitch + 1)
    return found

  def is_moving(self, unit: int) -> bool:
    """Whether an output of a unit goes to the host, so that it runs once."""
    if not self.transfers:
      return False
    outputs = self.problem.units[unit].outputs
    return not self.transfers.keys().isdisjoint(outputs)

  def is_useless(self, unit: int, before: int) -> bool:
    """Whether nobody reads what a run makes."""
    key = self.run_key(unit, before)
    return not any(
      start == key and end > key
      for value in self.problem.units[unit].outputs
      for start, end in self.intervals[value]
    )

  # Changes.

  def add(self, unit: int, before: int) -> None:
    """Adds an event.

    Raises:
      ValueError: If it is there already, or the unit may not run there.
    """
    made = self.problem.units[unit]
    if not made.step < before <= self.problem.latest_run[unit]:
      raise ValueError(
        f"a run of {made.value} must come after step {made.step} and before"
        f" step {self.problem.latest_run[unit]}, got {before}."
      )
    if self.has(unit, before):
      raise ValueError(f"{made.value} already runs before step {before}.")
    if self.is_moving(unit):
      raise ValueError(f"{made.value} moves: it is not made again.")
    bisect.insort(self.runs[unit], before)
    key = self.run_key(unit, before)
    at = bisect.bisect_left(self.keys, key)
    self._count_moving(-1)
    self.keys.insert(at, key)
    before_it, after_it = self._rows[:, :at], self._rows[:, at:]
    self._set_rows(np.hstack((before_it, _NO_BYTES, after_it)))
    self._count_moving(1)
    for value in made.inputs:
      bisect.insort(self._uses[value], key)
    self.seconds += made.seconds
    self._update(unit, key)

  def remove(self, unit: int, before: int) -> None:
    """Takes an event back.

    Raises:
      ValueError: If the plan does not hold it.
    """
    self.runs[unit].remove(before)
    made = self.problem.units[unit]
    key = self.run_key(unit, before)
    for value in made.inputs:
      uses = self._uses[value]
      del uses[bisect.bisect_left(uses, key)]
    self.seconds -= made.seconds
    self._update(unit, key)
    at = bisect.bisect_left(self.keys, key)
    self._count_moving(-1)
    del self.keys[at]
    self._saved_at.pop(key, None)
    before_it, after_it = self._rows[:, :at], self._rows[:, at + 1 :]
    self._set_rows(np.hstack((before_it, after_it)))
    self._count_moving(1)

  def move(self, transfer: Transfer) -> None:
    """Adds a copy to the host and back.

    Raises:
      ValueError: If the value moves already, or the times make no sense.
    """
    value = transfer.value
    stored = self.problem.values[value]
    first = stored.producer
    times = (transfer.store_done, transfer.fetch_start, transfer.fetch_done)
    last = stored.overwritten_at
    if last is None:
      last = self.problem.num_steps - 1
    if first is None:
      raise ValueError(f"{stored.name!r} is there at the start: it stays.")
    if not first < times[0] <= times[1] <= times[2] <= last:
      raise ValueError(
        f"a copy of {stored.name!r} must come after step {first} and before"
        f" step {last}, in order, got {times}."
      )
    unit = self.problem.unit_of[value]
    if value in self.transfers or (unit >= 0 and self.runs[unit]):
      raise ValueError(f"{stored.name!r} moves, or is made again, already.")
    self.transfers[value] = transfer
    self.seconds += self.problem.move_seconds
    bisect.insort(self._uses[value], transfer.store_done * self.pitch)
    self._refresh([value], set())

  def unmove(self, value: int) -> None:
    """Takes a copy to the host and back out of the plan."""
    transfer = self.transfers.pop(value)
    self.seconds -= self.problem.move_seconds
    self._uses[value].remove(transfer.store_done * self.pitch)
    self._refresh([value], set())

  def _set_rows(self, rows: np.ndarray) -> None:
    """Sets what begins, ends, is shared and comes on top at each key."""
    self._rows = rows
    self._starts, self._ends, self._saved, self._extra = rows

  def _update(self, unit: int, key: int) -> None:
    made = self.problem.units[unit]
    self._refresh((*made.outputs, *made.inputs), {key})

  def _refresh(self, values: Iterable[int], touched: set[int]) -> None:
    for value in values:
      before = self.intervals[value]
      after = self._find_intervals(value)
      if before == after:
        continue
      self._set_intervals(value, after)
      if self._sharers[value]:
        for interval in set(before) ^ set(after):
          touched.update(interval)
    self._settle_shares(touched)

  def _find_intervals(self, value: int) -> tuple[Interval, ...]:
    """Assigns every use to the latest producer before it."""
    producers, uses = self.producers(value), self._uses[value]
    found = []
    at, num_uses = 0, len(uses)
    for index, start in enumerate(producers):
      last = start
      if index + 1 == len(producers):
        if at < num_uses:
          last = uses[-1]
      else:
        until = bisect.bisect_left(uses, producers[index + 1], at)
        if until > at:
          last = uses[until - 1]
        at = until
      is_read = last > start
      if index == 0 and not is_read and (start < 0 or self._may_drop(value)):
        continue
      if start >= 0 and start % self.pitch == 1:
        # What comes back takes memory from when its copy starts.
        start = self.transfers[value].fetch_start * self.pitch + 1
      found.append((start, last))
    return tuple(found)

  def _may_drop(self, value: int) -> bool:
    return self.problem.values[value].is_droppable

  def _set_intervals(self, value: int, intervals: tuple[Interval, ...]) -> None:
    size = self._sizes[value]
    if size:
      self._count(self.intervals[value], -size)
      self._count(intervals, size)
    self.intervals[value] = intervals
    self._live = None

  def _count(self, intervals: tuple[Interval, ...], size: int) -> None:
    for start, end in intervals:
      self._starts[bisect.bisect_left(self.keys, start)] += size
      if end < self.end:
        self._ends[bisect.bisect_right(self.keys, end) - 1] += size

  def _count_moving(self, sign: int) -> None:
    """Adds or subtracts what moves: it may begin or end between keys."""
    for value in self.transfers:
      self._count(self.intervals[value], sign * self._sizes[value])

  # Sharing.

  def pairs_at(self, key: int) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of values that may share at a key."""
    step, slot = divmod(key, self.pitch)
    if slot == self.pitch - 1:
      return self.problem.steps[step].shares
    if slot < 2:
      return ()
    return self.problem.units[self.problem.run_order[slot - 2]].shares

  def _settle_shares(self, keys: Iterable[int]) -> None:
    """Counts anew what outputs share with operands that die."""
    for key in keys:
      if not 0 <= key < self.end:
        continue
      saved = self._shared_bytes(key)
      if saved != self._saved_at.get(key, 0):
        self._saved_at[key] = saved
        self._saved[bisect.bisect_left(self.keys, key)] = saved
    self._live = None

  def _shared_bytes(self, key: int) -> int:
    pairs = self.pairs_at(key)
    if not pairs:
      return 0
    saved, used = 0, set()
    for operand, output in pairs:
      if (
        operand not in used
        and output not in used
        and any(end == key > start for start, end in self.intervals[operand])
        and any(start == key for start, _ in self.intervals[output])
      ):
        used |= {operand, output}
        saved += min(self._sizes[operand], self._sizes[output])
    return saved


def _sharers(problem: BudgetProblem) -> list[bool]:
  """For each value, whether any share names it."""
  found = [False] * len(problem.values)
  for step in problem.steps:
    for pair in step.shares:
      for value in pair:
        found[value] = True
  for unit in problem.units:
    for pair in unit.shares:
      for value in pair:
        found[value] = True
  return found
