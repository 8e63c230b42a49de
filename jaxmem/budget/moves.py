"""Moves of the greedy search: what closing gaps takes, and what it is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jaxmem.budget.closures import Closures, Extension
from jaxmem.budget.gaps import Gap
from jaxmem.budget.live_bytes import Excess
from jaxmem.budget.profile import Event, Profile

# No run costs less than so many seconds, so that every worth is finite.
_LEAST_S = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Style:
  """How a run of the greedy search judges moves.

  Attributes:
    depth: How many runs may feed each other.
    exponent: Of the bytes in a move's worth.
    seconds: What each unit costs in this run's eyes; None: what it costs.
  """

  depth: int
  exponent: float = 1.0
  seconds: tuple[float, ...] | None = None


class Move(NamedTuple):
  """Events that close a gap, or several.

  Attributes:
    gain: By how many bytes the excess over the limit falls, summed over the
      plan.
    seconds: What the events cost.
    events: The events.
  """

  gain: int
  seconds: float
  events: tuple[Event, ...]


class MoveFinder:
  """Finds the moves that close gaps of a plan.

  Args:
    profile: The plan.
    closures: Of that plan.
    excess: Of that plan, over the limit.
    style: How to judge.
  """

  def __init__(
    self, profile: Profile, closures: Closures, excess: Excess, style: Style
  ):
    self._line = profile.line
    self._memory = profile.memory
    self._closures = closures
    self._excess = excess
    self._exponent = style.exponent
    self._sizes = profile.problem.sizes
    self._unit_of = profile.problem.unit_of
    self._seconds = [
      max(s, _LEAST_S)
      for s in style.seconds or [u.seconds for u in profile.problem.units]
    ]

  @property
  def work(self) -> int:
    """How many closures, and inputs of these, were looked into so far."""
    return self._closures.work

  def forget(self) -> None:
    """Has to be called when the plan has changed."""
    self._closures.forget()

  def worth(self, move: Move) -> float:
    """Returns what a move gains per second, bytes raised to the exponent."""
    return float(move.gain) ** self._exponent / move.seconds

  def bytes_per_s(self, gap: Gap) -> float:
    """Returns the bytes of a gap's value per second of a run that makes it."""
    value = gap.value
    return self._sizes[value] / self._seconds[self._unit_of[value]]

  def kept_values(self, gap: Gap, depth: int) -> Iterable[int]:
    """Returns what closing a gap keeps longer; nothing if it cannot be closed.

    Args:
      gap: The gap.
      depth: How many runs may feed each other.
    """
    before = self._line.step_at(gap.end)
    found = self._closures.find(self._unit_of[gap.value], before, depth)
    if found is None:
      return ()
    return dict.fromkeys(e[0] for e in found.extensions)

  def find(self, gaps: Sequence[Gap], depth: int) -> Move | None:
    """Returns what closes gaps; None if it is not possible or gains nothing.

    Args:
      gaps: The gaps.
      depth: How many runs may feed each other.
    """
    line = self._line
    events: dict[Event, None] = {}
    changes: list[Extension] = []
    extended: dict[tuple[int, int], int] = {}
    for gap in gaps:
      unit = self._unit_of[gap.value]
      before = line.step_at(gap.end)
      found = self._closures.find(unit, before, depth)
      if found is None:
        return None
      events.update(found.events)
      for value, start, end in found.extensions:
        key = value, start
        extended[key] = max(extended.get(key, 0), end)
      changes.append(
        (-self._sizes[gap.value], gap.start, line.run_key(unit, before))
      )
    if not events:
      return None
    for (value, start), end in extended.items():
      changes.append((self._sizes[value], start, end))
    gain = self._gain(changes)
    if gain <= 0:
      return None
    seconds = sum(self._seconds[unit] for unit, _ in events)
    return Move(gain, seconds, tuple(events))

  def _gain(self, changes: Sequence[tuple[int, int, int]]) -> int:
    """By how much the excess falls if sizes are added between keys."""
    spans = [(c[0], *self._memory.between(c[1], c[2])) for c in changes]
    low = min(s[1] for s in spans)
    high = max(s[2] for s in spans)
    left = self._memory.live[low:high] - self._excess.limit_bytes
    for size, start, end in spans:
      if end > start:
        left[start - low : end - low] += size
    return self._excess.between(low, high) - int(np.maximum(left, 0).sum())
