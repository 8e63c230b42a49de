"""The profile of a plan: bytes live while each step, and each second run, runs.

A plan is a set of events (unit, step): the unit runs again just before the
step. Before one step units run in `BudgetProblem.run_order`, so that one may
feed another. Every use reads the latest run of its value that comes before it,
or the original. Time is the number line of `key_line.KeyLine`.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
from collections.abc import Callable, Iterable

from jaxmem.budget.key_line import KeyLine
from jaxmem.budget.live_bytes import Interval, LiveBytes
from jaxmem.budget.problem import BudgetProblem

Event = tuple[int, int]


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
    line: The keys of all that can happen.
    memory: The keys of steps and runs, and what is live there.
    runs: For each unit, the steps before which it runs again, ascending.
    transfers: For each value that moves, how; one move each.
    uses: For each value, the keys of all its readers, ascending.
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
    self.line = line = KeyLine(problem)
    self.runs: list[list[int]] = [[] for _ in problem.units]
    self.transfers: dict[int, Transfer] = {}
    self.seconds = 0.0
    steps = [line.step_key(s) for s in range(problem.num_steps)]
    self.memory = LiveBytes(steps, problem.extra_bytes, line.end)
    self.uses = [
      [line.step_key(u) for u in v.uses] + [line.end] * v.is_result
      for v in problem.values
    ]
    self.intervals: list[tuple[Interval, ...]] = [() for _ in problem.values]
    for value in range(len(problem.values)):
      self._set_intervals(value, self._find_intervals(value))
    self._settle_shares({k for k in steps if line.pairs_at(k)})
    for transfer in transfers:
      self.move(transfer)
    for event in events:
      self.add(*event)

  def copy(self) -> Profile:
    """Returns a plan of its own with the same events."""
    other = copy.copy(self)
    other.runs = [[*steps] for steps in self.runs]
    other.transfers = dict(self.transfers)
    other.intervals = [*self.intervals]
    other.memory = self.memory.copy()
    other.uses = [[*uses] for uses in self.uses]
    return other

  # What others read.

  @property
  def events(self) -> tuple[Event, ...]:
    """All events, sorted by unit."""
    return tuple((u, s) for u, steps in enumerate(self.runs) for s in steps)

  @property
  def peak_bytes(self) -> int:
    """The most bytes live at once."""
    return int(self.memory.live.max(initial=0))

  def has(self, unit: int, before: int) -> bool:
    """Whether the plan holds an event."""
    steps = self.runs[unit]
    at = bisect.bisect_left(steps, before)
    return at < len(steps) and steps[at] == before

  def producers(self, value: int) -> list[int]:
    """Returns when versions of a value begin to be read, ascending.

    The first is the original, the others are runs that make it again and the
    end of its copy back from the host.
    """
    unit = self.problem.unit_of[value]
    line = self.line
    found = [line.made_at[value]]
    if unit >= 0:
      found += [line.run_key(unit, s) for s in self.runs[unit]]
    if value in self.transfers:
      bisect.insort(found, line.fetch_key(self.transfers[value].fetch_done))
    return found

  def is_moving(self, unit: int) -> bool:
    """Whether an output of a unit goes to the host, so that it runs once."""
    if not self.transfers:
      return False
    outputs = self.problem.units[unit].outputs
    return not self.transfers.keys().isdisjoint(outputs)

  def is_useless(self, unit: int, before: int) -> bool:
    """Whether nobody reads what a run makes."""
    key = self.line.run_key(unit, before)
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
    key = self.line.run_key(unit, before)
    self._change_keys(self.memory.insert, key)
    for value in made.inputs:
      bisect.insort(self.uses[value], key)
    self.seconds += made.seconds
    self._update(unit, key)

  def remove(self, unit: int, before: int) -> None:
    """Takes an event back.

    Raises:
      ValueError: If the plan does not hold it.
    """
    self.runs[unit].remove(before)
    made = self.problem.units[unit]
    key = self.line.run_key(unit, before)
    for value in made.inputs:
      uses = self.uses[value]
      del uses[bisect.bisect_left(uses, key)]
    self.seconds -= made.seconds
    self._update(unit, key)
    self._change_keys(self.memory.remove, key)

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
    bisect.insort(self.uses[value], self.line.store_key(transfer.store_done))
    self._refresh([value], set())

  def unmove(self, value: int) -> None:
    """Takes a copy to the host and back out of the plan."""
    transfer = self.transfers.pop(value)
    self.seconds -= self.problem.move_seconds
    self.uses[value].remove(self.line.store_key(transfer.store_done))
    self._refresh([value], set())

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
      if self.problem.may_share[value]:
        for interval in set(before) ^ set(after):
          touched.update(interval)
    self._settle_shares(touched)

  def _find_intervals(self, value: int) -> tuple[Interval, ...]:
    """Assigns every use to the latest producer before it."""
    producers, uses = self.producers(value), self.uses[value]
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
      if (
        index == 0
        and not is_read
        and (start < 0 or self.problem.values[value].is_droppable)
      ):
        continue
      if start >= 0 and start % self.line.pitch == 1:
        # A value that comes back takes memory from when its copy starts.
        start = self.line.fetch_key(self.transfers[value].fetch_start)
      found.append((start, last))
    return tuple(found)

  def _set_intervals(self, value: int, intervals: tuple[Interval, ...]) -> None:
    size = self.problem.sizes[value]
    if size:
      self.memory.count(self.intervals[value], -size)
      self.memory.count(intervals, size)
    self.intervals[value] = intervals

  def _change_keys(self, change: Callable[[int], None], key: int) -> None:
    """Adds or takes out a key; what moves may begin or end about it."""
    low, high = self.memory.neighbours(key)
    moving = [
      value
      for value in self.transfers
      if any(
        low < edge < high
        for versions in self.intervals[value]
        for edge in versions
      )
    ]
    sizes = self.problem.sizes
    for value in moving:
      self.memory.count(self.intervals[value], -sizes[value])
    change(key)
    for value in moving:
      self.memory.count(self.intervals[value], sizes[value])

  # Sharing.

  def _settle_shares(self, keys: Iterable[int]) -> None:
    """Counts anew what outputs share with operands that die."""
    for key in keys:
      if 0 <= key < self.line.end:
        self.memory.set_shared(key, self._shared_bytes(key))

  def _shared_bytes(self, key: int) -> int:
    pairs = self.line.pairs_at(key)
    if not pairs:
      return 0
    sizes = self.problem.sizes
    shared, used = 0, set()
    for operand, output in pairs:
      if (
        operand not in used
        and output not in used
        and any(end == key > start for start, end in self.intervals[operand])
        and any(start == key for start, _ in self.intervals[output])
      ):
        used |= {operand, output}
        shared += min(sizes[operand], sizes[output])
    return shared
