"""Fits a plan into a limit by the best move at a time, then deletes.

A move closes one gap: the span between two neighbouring readers of a value,
over which it is not kept but made again just before the later one. Inputs that
are dead by then are either made again as well, recursively, or kept longer.
A move's worth is by how much it lowers the bytes above the limit, summed over
the profile, per second that it costs.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxmem.budget.closures import Closures, Extension
from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Event, Profile, Transfer

_REFRESH = 100
_GROUPS = (2, 3, 4, 6)
_TRIES = 6
# A run that needs more joint moves than this hardly ever fits.
_MAX_JOINS = 16
# Seconds that no run costs less than, so that scores are finite.
_LEAST_S = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Style:
  """How a run of the greedy search judges.

  Attributes:
    depth: How many runs may feed each other.
    exponent: Of the bytes in a move's worth.
    seconds: What each unit costs in this run's eyes; None: what it costs.
  """

  depth: int = 8
  exponent: float = 1.0
  seconds: tuple[float, ...] | None = None


class _Gap(NamedTuple):
  """A value, and the keys of the neighbours between which it is not kept."""

  value: int
  start: int
  end: int


class _Move(NamedTuple):
  gain: int
  seconds: float
  events: tuple[Event, ...]


class Start:
  """What the runs for one problem begin with, made once for all of them.

  Args:
    problem: The problem.
    transfers: What goes to the host and back in any case.
  """

  def __init__(
    self, problem: BudgetProblem, transfers: Sequence[Transfer] = ()
  ):
    self.problem = problem
    self.transfers = tuple(transfers)
    self._profile = Profile(problem, transfers=transfers)
    self._closures = Closures(self._profile)

  def profile(self) -> Profile:
    """Returns a plan without events."""
    return self._profile.copy()

  def closures(self, profile: Profile) -> Closures:
    """Returns closures on a plan without events."""
    return Closures(profile, self._closures)


def clean(profile: Profile) -> None:
  """Removes events that nobody reads, and those that fed only them."""
  changed = True
  while changed:
    changed = False
    for unit, before in sorted(
      profile.events, key=lambda e: profile.run_key(*e), reverse=True
    ):
      if profile.is_useless(unit, before):
        profile.remove(unit, before)
        changed = True


def delete(
  profile: Profile, limit_bytes: int, seconds: Sequence[float] | None = None
) -> None:
  """Removes events, dearest per byte first, as long as the rest fits.

  Args:
    profile: Is changed; its peak stays within the limit, or does not rise.
    limit_bytes: The limit.
    seconds: What each unit costs; by default what the problem says.
  """
  problem = profile.problem
  limit = max(limit_bytes, profile.peak_bytes)
  cost = seconds or [u.seconds for u in problem.units]
  size = [
    1 + sum(problem.values[v].size_bytes for v in u.outputs)
    for u in problem.units
  ]
  for unit, before in sorted(
    profile.events, key=lambda e: (-cost[e[0]] / size[e[0]], e)
  ):
    profile.remove(unit, before)
    if profile.peak_bytes > limit:
      profile.add(unit, before)
  clean(profile)


class _Search:
  """Adds events until a profile fits, or nothing more helps."""

  def __init__(self, start: Start, limit_bytes: int, style: Style):
    self._profile = profile = start.profile()
    self._problem = profile.problem
    self._limit = limit_bytes
    self._style = style
    self._sizes = [v.size_bytes for v in self._problem.values]
    self._seconds = [
      max(s, _LEAST_S)
      for s in style.seconds or [u.seconds for u in self._problem.units]
    ]
    self._heap: list[tuple[float, _Gap]] = []
    # All gaps of a value, until one of its readers or producers changes.
    self._gaps_of: dict[int, list[_Gap]] = {}
    # What was found out about gaps since the profile changed last.
    self._moves: dict[_Gap, _Move] = {}
    self._banned: set[object] = set()
    self._closures = start.closures(profile)
    self._candidates = [
      v
      for v, unit in enumerate(self._problem.unit_of)
      if unit >= 0
      and self._sizes[v]
      and self._problem.values[v].uses
      and not profile.is_moving(unit)
    ]
    self._is_candidate = frozenset(self._candidates)
    self._excess = profile.excess(limit_bytes)
    self._seen_live = np.zeros(0)
    self._keys_over: list[int] = []

  def run(self) -> Profile:
    """Returns the profile in the end, whether it fits or not."""
    accepted = since_ban = num_joins = 0
    self._push_all()
    while self._excess > 0:
      if not self._heap:
        if accepted == 0 and since_ban and self._banned:
          # What did not help then may help after what came since.
          self._banned.clear()
          since_ban = 0
        elif accepted == 0:
          num_joins += 1
          if num_joins > _MAX_JOINS or not self._join():
            break
        self._push_all()
        accepted = 0
        continue
      gap, move = self._pop()
      if move is None:
        continue
      if not self._try(move):
        self._banned.add(gap)
        continue
      accepted += 1
      since_ban += 1
      if accepted >= _REFRESH:
        self._push_all()
        accepted = 0
      else:
        for value in self._changed_by(move):
          if value in self._is_candidate:
            self._push(value)
    return self._profile

  # The queue of moves.

  def _push_all(self) -> None:
    self._heap.clear()
    for value in self._candidates:
      self._push(value)

  def _push(self, value: int) -> None:
    for gap in self._gaps(value):
      move = self._evaluate((gap,), self._style.depth)
      if move is not None:
        self._enqueue(gap, move)

  def _enqueue(self, gap: _Gap, move: _Move) -> None:
    self._moves[gap] = move
    heapq.heappush(self._heap, (-self._worth(move), gap))

  def _pop(self) -> tuple[_Gap | None, _Move | None]:
    """Takes the best gap, if it is still as good as it was."""
    _, gap = heapq.heappop(self._heap)
    if gap in self._banned:
      return None, None
    move = self._moves.get(gap)
    if move is None and gap in self._all_gaps(gap.value) and self._is_over(gap):
      move = self._evaluate((gap,), self._style.depth)
    if move is None:
      return None, None
    worth = self._worth(move)
    if self._heap and -worth > self._heap[0][0] * 0.999:
      self._enqueue(gap, move)
      return None, None
    return gap, move

  def _worth(self, move: _Move) -> float:
    return float(move.gain) ** self._style.exponent / move.seconds

  def _changed_by(self, move: _Move) -> Iterable[int]:
    units = self._problem.units
    found: dict[int, None] = {}
    for unit, _ in move.events:
      found.update(dict.fromkeys((*units[unit].outputs, *units[unit].inputs)))
    return found

  def _try(self, move: _Move) -> bool:
    """Makes a move; takes it back if it does not lower the excess."""
    for event in move.events:
      self._profile.add(*event)
    excess = self._profile.excess(self._limit)
    if excess < self._excess:
      self._excess = excess
      self._closures.forget()
      self._moves.clear()
      for value in self._changed_by(move):
        self._gaps_of.pop(value, None)
      return True
    for event in move.events:
      self._profile.remove(*event)
    return False

  # Gaps and moves.

  def _gaps(self, value: int) -> Iterator[_Gap]:
    """Gaps of a value over which too many bytes are live."""
    for gap in self._all_gaps(value):
      if self._is_over(gap) and gap not in self._banned:
        yield gap

  def _all_gaps(self, value: int) -> list[_Gap]:
    """Gaps of a value that no run closes already."""
    found = self._gaps_of.get(value)
    if found is None:
      found = self._gaps_of[value] = [*self._find_gaps(value)]
    return found

  def _find_gaps(self, value: int) -> Iterator[_Gap]:
    profile, unit = self._profile, self._problem.unit_of[value]
    producers = profile.producers(value)
    made = frozenset(producers)
    keys = sorted([*profile.uses(value), *producers])
    for start, end in itertools.pairwise(keys):
      before = profile.step_at(end)
      # Runs before the step of the later reader or the one after the earlier
      # one would free nothing.
      if (
        before > profile.step_at(start) + 1
        and end not in made
        and not profile.has(unit, before)
      ):
        yield _Gap(value, start, end)

  def _is_over(self, gap: _Gap) -> bool:
    """Whether too much is live in a gap."""
    over = self._over()
    first = bisect.bisect_right(over, gap.start)
    return first < len(over) and over[first] < gap.end

  def _over(self) -> list[int]:
    """Returns the keys at which too much is live."""
    live = self._profile.live
    if live is not self._seen_live:
      self._seen_live = live
      keys = self._profile.keys
      self._keys_over = [keys[n] for n in np.flatnonzero(live > self._limit)]
    return self._keys_over

  def _range(self, start: int, end: int) -> tuple[int, int]:
    """Positions of the keys strictly between two keys."""
    keys = self._profile.keys
    return bisect.bisect_right(keys, start), bisect.bisect_left(keys, end)

  def _evaluate(self, gaps: Sequence[_Gap], depth: int) -> _Move | None:
    """Estimates what closing gaps is worth; None if not possible or nothing."""
    profile = self._profile
    events: dict[Event, None] = {}
    changes: list[Extension] = []
    extended: dict[tuple[int, int], int] = {}
    for gap in gaps:
      unit = self._problem.unit_of[gap.value]
      before = profile.step_at(gap.end)
      found = self._closures.find(unit, before, depth)
      if found is None:
        return None
      events.update(dict.fromkeys(found[0]))
      for value, start, end in found[1]:
        key = value, start
        extended[key] = max(extended.get(key, 0), end)
      changes.append(
        (-self._sizes[gap.value], gap.start, profile.run_key(unit, before))
      )
    if not events:
      return None
    for (value, start), end in extended.items():
      changes.append((self._sizes[value], start, end))
    gain = self._gain(changes)
    if gain <= 0:
      return None
    seconds = sum(self._seconds[unit] for unit, _ in events)
    return _Move(gain, seconds, tuple(events))

  def _gain(self, changes: Sequence[tuple[int, int, int]]) -> int:
    """By how much the excess falls if sizes are added between keys."""
    spans = [(c[0], *self._range(c[1], c[2])) for c in changes]
    low = min(s[1] for s in spans)
    high = max(s[2] for s in spans)
    old = self._profile.live[low:high] - self._limit
    new = old.copy()
    for size, start, end in spans:
      if end > start:
        new[start - low : end - low] += size
    return int(np.maximum(old, 0).sum() - np.maximum(new, 0).sum())

  # Joint moves.

  def _join(self) -> bool:
    """Closes several gaps at once that keep the same input alive."""
    for _ in range(_TRIES):
      best = self._best_group()
      if best is None:
        return False
      group, move = best
      if self._try(move):
        return True
      self._banned.add(group)
    return False

  def _best_group(self) -> tuple[tuple[_Gap, ...], _Move] | None:
    groups = self._groups()
    best = None
    for (_, depth), gaps in groups.items():
      if len(gaps) < 2:
        continue
      unit_of = self._problem.unit_of
      gaps.sort(
        key=lambda g: -self._sizes[g.value] / self._seconds[unit_of[g.value]]
      )
      for count in sorted({*_GROUPS, len(gaps)}):
        group = tuple(gaps[:count])
        if count > len(gaps) or group in self._banned:
          continue
        move = self._evaluate(group, depth)
        if move is not None and (
          best is None or self._worth(move) > self._worth(best[1])
        ):
          best = group, move
    return best

  def _groups(self) -> dict[tuple[int, int], list[_Gap]]:
    """Gaps by (value that closing them keeps alive, depth)."""
    groups = collections.defaultdict(list)
    for value in self._candidates:
      unit = self._problem.unit_of[value]
      for gap in self._gaps(value):
        for depth in (1, self._style.depth):
          before = self._profile.step_at(gap.end)
          found = self._closures.find(unit, before, depth)
          if found is None:
            continue
          for kept in dict.fromkeys(e[0] for e in found[1]):
            groups[kept, depth].append(gap)
    return groups


def solve(
  start: Start, limit_bytes: int, style: Style | None = None
) -> Profile:
  """Returns the plan of one greedy run; it may not fit.

  Args:
    start: The problem, and what goes to the host.
    limit_bytes: The limit.
    style: How to judge moves.
  """
  style = style or Style()
  profile = _Search(start, limit_bytes, style).run()
  clean(profile)
  delete(profile, limit_bytes, style.seconds)
  return profile
