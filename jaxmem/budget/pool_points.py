"""When things may happen in plans of a pool: rows of bytes, points of values.

A row is a key of a step or of an event of the pool, whether that event happens
or not. A point of a value is a key at which it is made or read, originally or
by an event of the pool.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Event, Profile, Transfer


@dataclasses.dataclass(frozen=True, slots=True)
class ValuePoints:
  """Where a value is made and read.

  Attributes:
    keys: Ascending; the first is that of the original.
    made_by: Event index where an event makes it, else -1.
    read_by: Event index where an event reads it, else -1.
  """

  keys: tuple[int, ...]
  made_by: tuple[int, ...]
  read_by: tuple[int, ...]


class PoolPoints:
  """Rows and points of all plans that a pool allows.

  Args:
    problem: The problem.
    pool: Events that may happen.
    transfers: What goes to the host and back in every plan.

  Attributes:
    empty: The plan without events.
    events: Those of the pool that may happen, sorted.
    rows: Keys, ascending.
    of_value: For each value that an event makes or reads, its points. What
      comes back from the host is made by event `len(events)`.
  """

  def __init__(
    self,
    problem: BudgetProblem,
    pool: Sequence[Event],
    transfers: Sequence[Transfer],
  ):
    self.empty = Profile(problem, transfers=transfers)
    self.events = [
      e for e in sorted(set(pool)) if not self.empty.is_moving(e[0])
    ]
    keys = [self.empty.line.run_key(*e) for e in self.events]
    self.rows = sorted([*self.empty.memory.keys, *keys])
    self.of_value = {
      value: self._points(value, touched)
      for value, touched in sorted(self._touched(keys).items())
    }

  def row(self, key: int) -> int:
    """Returns the first row that is not before a key."""
    return bisect.bisect_left(self.rows, key)

  def fixed_bytes(self) -> np.ndarray:
    """Returns bytes at each row of what no event touches, int64 `[num_rows]`.

    These are values, and the extra bytes of steps.
    """
    problem = self.empty.problem
    fixed = np.zeros(len(self.rows) + 1, np.int64)
    for value, intervals in enumerate(self.empty.intervals):
      if value not in self.of_value:
        for start, end in intervals:
          fixed[self.row(start)] += problem.sizes[value]
          fixed[bisect.bisect_right(self.rows, end)] -= problem.sizes[value]
    fixed = np.cumsum(fixed)[:-1]
    for step, extra in enumerate(problem.extra_bytes.tolist()):
      fixed[self.row(self.empty.line.step_key(step))] += extra
    return fixed

  def arrival(self, value: int) -> tuple[int, int] | None:
    """Returns the rows over which a value comes back, before anyone reads it.

    None if it does not go to the host.
    """
    transfer = self.empty.transfers.get(value)
    if transfer is None:
      return None
    pitch = self.empty.line.pitch
    return (
      self.row(transfer.fetch_start * pitch),
      self.row(transfer.fetch_done * pitch),
    )

  def _touched(
    self, keys: Sequence[int]
  ) -> dict[int, list[tuple[int, int, int]]]:
    """For each value, (key, maker, reader) of the events that touch it."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for event, (unit, _) in enumerate(self.events):
      made = self.empty.problem.units[unit]
      for value in made.outputs:
        found.setdefault(value, []).append((keys[event], event, -1))
      for value in made.inputs:
        found.setdefault(value, []).append((keys[event], -1, event))
    return found

  def _points(
    self, value: int, by_events: Sequence[tuple[int, int, int]]
  ) -> ValuePoints:
    original, *fetched = self.empty.producers(value)
    touched = [(original, -1, -1), *by_events]
    touched += [(key, len(self.events), -1) for key in fetched]
    touched += [(use, -1, -1) for use in self.empty.uses[value]]
    return ValuePoints(*zip(*sorted(touched), strict=True))
