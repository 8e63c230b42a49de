"""Fits a plan into a limit by the best move at a time, then deletes.

A move closes one gap: the span between two neighbouring readers of a value,
over which it is not kept but made again just before the later one. Inputs that
are dead by then are either made again as well, recursively, or kept longer.
A move's worth is by how much it lowers the bytes above the limit, summed over
the profile, per second that it costs.
"""

from __future__ import annotations

import collections
import functools
import heapq
from collections.abc import Iterable, Sequence

from jaxmem.budget.closures import Closures
from jaxmem.budget.gaps import Gap, Gaps
from jaxmem.budget.live_bytes import Excess
from jaxmem.budget.moves import Move, MoveFinder, Style
from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Profile, Transfer
from jaxmem.budget.tuning import TUNING

_TUNING = TUNING.greedy


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
    # By limit and style, the runs that see true costs: many ask for the same.
    self._solved: dict[tuple[int, Style], Profile] = {}

  def profile(self) -> Profile:
    """Returns a plan without events."""
    return self._profile.copy()

  def closures(self, profile: Profile) -> Closures:
    """Returns closures on a plan without events."""
    return Closures(profile, self._closures)

  def solve(self, limit_bytes: int, style: Style) -> Profile:
    """Returns the plan of one greedy run; it may not fit.

    Args:
      limit_bytes: The limit.
      style: How to judge moves.
    """
    if style.seconds is not None:
      return self._solve(limit_bytes, style)
    key = limit_bytes, style
    if key not in self._solved:
      self._solved[key] = self._solve(limit_bytes, style)
    return self._solved[key].copy()

  def _solve(self, limit_bytes: int, style: Style) -> Profile:
    profile = _Search(self, limit_bytes, style).run()
    clean(profile)
    delete(profile, limit_bytes, style.seconds)
    return profile


def clean(profile: Profile) -> None:
  """Removes events that nobody reads, and those that fed only them."""
  changed = True
  while changed:
    changed = False
    for unit, before in sorted(
      profile.events, key=lambda e: profile.line.run_key(*e), reverse=True
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
  size = [1 + sum(problem.sizes[v] for v in u.outputs) for u in problem.units]
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
    self._problem = problem = profile.problem
    self._depth = style.depth
    self._most_work = _TUNING.work_per_step * problem.num_steps
    self._excess = excess = Excess(profile.memory, limit_bytes)
    self._gaps = Gaps(profile, excess)
    self._finder = MoveFinder(profile, start.closures(profile), excess, style)
    self._heap: list[tuple[float, Gap]] = []
    # The moves that close gaps, as found since the profile changed last.
    self._moves: dict[Gap, Move] = {}
    # The values that may be made again; a dict keeps their order.
    self._candidates = {
      v: None
      for v, unit in enumerate(problem.unit_of)
      if unit >= 0
      and problem.sizes[v]
      and problem.values[v].uses
      and not profile.is_moving(unit)
    }
    self._left_bytes = excess.total()
    # How many gaps at the head of the queue were worth less, in a row.
    self._num_overtaken = 0

  def run(self) -> Profile:
    """Returns the profile in the end, whether it fits or not."""
    accepted = since_refusal = num_joins = 0
    moves_between_looks = max(
      _TUNING.moves_between_looks,
      int(_TUNING.moves_per_candidate * len(self._candidates)),
    )
    self._push_all()
    # What the first look takes, other runs may have spared this one.
    self._most_work += self._finder.work
    while self._left_bytes > 0 and not self._is_worn_out():
      if not self._heap:
        if accepted == 0 and since_refusal and self._gaps.refused:
          # A move that did not help before the last ones may help after them.
          self._gaps.refused.clear()
          since_refusal = 0
        elif accepted == 0:
          num_joins += 1
          if num_joins > _TUNING.most_joint_moves or not self._join():
            break
        self._push_all()
        accepted = 0
        continue
      gap, move = self._pop()
      if move is None:
        continue
      if not self._try(move):
        self._gaps.refused.add(gap)
        continue
      accepted += 1
      since_refusal += 1
      if accepted >= moves_between_looks:
        self._push_all()
        accepted = 0
      else:
        for value in self._changed_by(move):
          if value in self._candidates:
            self._push(value)
    return self._profile

  def _is_worn_out(self) -> bool:
    return self._finder.work >= self._most_work

  # The queue of moves.

  def _push_all(self) -> None:
    self._heap.clear()
    for value in self._candidates:
      if self._is_worn_out():
        break
      self._push(value)

  def _push(self, value: int) -> None:
    for gap in self._gaps.wanted(value):
      move = self._finder.find((gap,), self._depth)
      if move is not None:
        self._enqueue(gap, move)

  def _enqueue(self, gap: Gap, move: Move) -> None:
    self._moves[gap] = move
    heapq.heappush(self._heap, (-self._finder.worth(move), gap))

  def _pop(self) -> tuple[Gap | None, Move | None]:
    """Takes the best gap, if it is still as good as it was."""
    _, gap = heapq.heappop(self._heap)
    gaps = self._gaps
    if gap in gaps.refused:
      return None, None
    move = self._moves.get(gap)
    if move is None and gap in gaps.of_value(gap.value) and gaps.is_over(gap):
      move = self._finder.find((gap,), self._depth)
    if move is None:
      return None, None
    worth = self._finder.worth(move)
    if not self._heap or -worth <= self._heap[0][0] * _TUNING.still_best:
      return gap, move
    self._enqueue(gap, move)
    self._num_overtaken += 1
    if self._num_overtaken < self._most_overtaken:
      return None, None
    return self._best_known()

  @functools.cached_property
  def _most_overtaken(self) -> int:
    """How many gaps are looked at after a move."""
    most = _TUNING.overtaken_times_candidates // len(self._candidates)
    return max(_TUNING.fewest_overtaken, min(most, _TUNING.most_overtaken))

  def _best_known(self) -> tuple[Gap | None, Move | None]:
    """Returns the best of the gaps that were looked at since the last move."""
    known = (
      (-self._finder.worth(move), gap)
      for gap, move in self._moves.items()
      if gap not in self._gaps.refused
    )
    _, gap = min(known)
    return gap, self._moves[gap]

  def _changed_by(self, move: Move) -> Iterable[int]:
    units = self._problem.units
    found: dict[int, None] = {}
    for unit, _ in move.events:
      found.update(dict.fromkeys((*units[unit].outputs, *units[unit].inputs)))
    return found

  def _try(self, move: Move) -> bool:
    """Makes a move; takes it back if it does not lower the excess."""
    for event in move.events:
      self._profile.add(*event)
    left_bytes = self._excess.total()
    if left_bytes < self._left_bytes:
      self._left_bytes = left_bytes
      self._finder.forget()
      self._moves.clear()
      self._num_overtaken = 0
      self._gaps.forget(self._changed_by(move))
      return True
    for event in move.events:
      self._profile.remove(*event)
    return False

  # Joint moves.

  def _join(self) -> bool:
    """Closes several gaps at once that keep the same input alive."""
    for _ in range(_TUNING.joint_move_tries):
      best = self._best_group()
      if best is None:
        return False
      group, move = best
      if self._try(move):
        return True
      self._gaps.refused.add(group)
    return False

  def _best_group(self) -> tuple[tuple[Gap, ...], Move] | None:
    finder = self._finder
    best = None
    # Most gaps keep many inputs alive, each of them the same.
    seen: set[tuple[tuple[Gap, ...], int]] = set()
    for (_, depth), gaps in self._groups().items():
      if len(gaps) < 2:
        continue
      gaps.sort(key=lambda gap: -finder.bytes_per_s(gap))
      for count in sorted({*_TUNING.joint_gap_counts, len(gaps)}):
        group = tuple(gaps[:count])
        if count > len(gaps) or group in self._gaps.refused:
          continue
        if (group, depth) in seen:
          continue
        seen.add((group, depth))
        move = finder.find(group, depth)
        if move is not None and (
          best is None or finder.worth(move) > finder.worth(best[1])
        ):
          best = group, move
    return best

  def _groups(self) -> dict[tuple[int, int], list[Gap]]:
    """Gaps by (value that closing them keeps alive, depth)."""
    groups = collections.defaultdict(list)
    for value in self._candidates:
      for gap in self._gaps.wanted(value):
        for depth in (1, self._depth):
          for kept in self._finder.kept_values(gap, depth):
            groups[kept, depth].append(gap)
    return groups
