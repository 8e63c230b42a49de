"""The profile of a plan: bytes live while each step, and each second run, runs.

A plan is a set of events (unit, step): the unit runs again just before the
step. Before one step, units run in the order of their numbers, which is the
order of their first runs, so that one may feed another. Every use reads the
latest run of its value that comes before it, or the original.

Time is a number line of keys. Step s has key s * pitch + num_units; a run of
unit u before step s has key s * pitch + u; pitch is num_units + 1. What is
there at the start has key -1, what stays to the end has key num_steps * pitch.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np

from jaxmem.budget.problem import BudgetProblem

Event = tuple[int, int]
# Of one version of a value: from the key of its producer to that of its last
# reader, both included.
Interval = tuple[int, int]


class Profile:
  """Live bytes of a plan that changes one event at a time.

  Attributes:
    problem: The problem.
    pitch: Keys per step.
    runs: For each unit, the steps before which it runs again, ascending.
    intervals: For each value, its versions, ascending.
    seconds: What all events cost.
  """

  def __init__(self, problem: BudgetProblem, events: Iterable[Event] = ()):
    self.problem = problem
    num_units = len(problem.units)
    self.pitch = num_units + 1
    self.end = problem.num_steps * self.pitch
    self.runs: list[list[int]] = [[] for _ in problem.units]
    self.seconds = 0.0
    self.keys = [s * self.pitch + num_units for s in range(problem.num_steps)]
    self._starts = np.zeros(problem.num_steps, np.int64)
    self._ends = np.zeros(problem.num_steps, np.int64)
    self._saved = np.zeros(problem.num_steps, np.int64)
    self._extra = problem.extra_bytes.copy()
    self._live: np.ndarray | None = None
    self._key_array: np.ndarray | None = None
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
    for event in events:
      self.add(*event)

  # Keys.

  def step_key(self, step: int) -> int:
    """Returns the key of a step."""
    return step * self.pitch + self.pitch - 1

  def run_key(self, unit: int, before: int) -> int:
    """Returns the key of a run."""
    return before * self.pitch + unit

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
      live = np.cumsum(self._starts)
      live[1:] -= np.cumsum(self._ends[:-1])
      live += self._extra
      live -= self._saved
      self._live = live
    return self._live

  @property
  def key_array(self) -> np.ndarray:
    """`keys` as int64."""
    if self._key_array is None:
      self._key_array = np.array(self.keys, np.int64)
    return self._key_array

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
    """Returns the keys of the original and of all runs that make a value."""
    unit = self.problem.unit_of[value]
    first = [self._first[value]]
    if unit < 0:
      return first
    return first + [self.run_key(unit, s) for s in self.runs[unit]]

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
    bisect.insort(self.runs[unit], before)
    key = self.run_key(unit, before)
    at = bisect.bisect_left(self.keys, key)
    self.keys.insert(at, key)
    self._starts = np.insert(self._starts, at, 0)
    self._ends = np.insert(self._ends, at, 0)
    self._saved = np.insert(self._saved, at, 0)
    self._extra = np.insert(self._extra, at, 0)
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
    del self.keys[at]
    self._saved_at.pop(key, None)
    self._starts = np.delete(self._starts, at)
    self._ends = np.delete(self._ends, at)
    self._saved = np.delete(self._saved, at)
    self._extra = np.delete(self._extra, at)

  def _update(self, unit: int, key: int) -> None:
    made = self.problem.units[unit]
    touched = {key}
    for value in (*made.outputs, *made.inputs):
      before = self.intervals[value]
      after = self._find_intervals(value)
      if before == after:
        continue
      self._set_intervals(value, after)
      if self._sharers[value]:
        for interval in set(before) ^ set(after):
          touched.update(interval)
    self._settle_shares(touched)
    self._key_array = None

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
        self._ends[bisect.bisect_left(self.keys, end)] += size

  # Sharing.

  def pairs_at(self, key: int) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of values that may share at a key."""
    step, unit = divmod(key, self.pitch)
    if unit == self.pitch - 1:
      return self.problem.steps[step].shares
    return self.problem.units[unit].shares

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
