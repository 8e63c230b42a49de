"""Chooses what to run again so that a step fits a byte limit at least cost.

What may run again is gathered once about a limit, by greedy runs. From that,
or from all that there is where a problem is small, a choice is made for any
number of limits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from jaxmem.budget import exact, greedy, lower_bound, offload
from jaxmem.budget import pool as pools
from jaxmem.budget.moves import Style
from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.pool import Pool
from jaxmem.budget.profile import Event, Profile, Transfer
from jaxmem.budget.tuning import TUNING
from jaxmem.options import Effort
from jaxmem.rewrite import Edits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """What to run again.

  Attributes:
    edits: By instruction ids.
    events: The same as (unit, step before which it runs).
    transfers: What goes to the host and back.
    peak_bytes: Temporaries that the profile of the edited program needs.
    extra_s: Estimated seconds that the edits add. Copies to the host add what
      it takes to start them: they are chosen so that nobody waits for them.
  """

  edits: Edits
  events: tuple[Event, ...]
  transfers: tuple[Transfer, ...]
  peak_bytes: int
  extra_s: float


class Chooser:
  """Chooses for several limits of one problem, and remembers what it found.

  Limits are the most bytes of temporaries. All choices are the same on every
  machine.

  Args:
    start: The problem; what is found about it there is shared.
    effort: "fast", "normal", or "prove" for a long search. They differ in the
      number of greedy runs and in CP-SAT's work on what these found.
    rates: Of the link to the host; None if nothing may go there.
  """

  def __init__(
    self,
    start: greedy.Start,
    effort: Effort,
    rates: OffloadRates | None = None,
  ):
    self.problem = problem = start.problem
    self._work = TUNING.work[effort]
    self._rates = rates
    self._start = start
    self._starts = {start.transfers: start}
    self._unedited = start.profile()
    self._floor_bytes = lower_bound.unavoidable_bytes(
      problem, with_host=rates is not None
    ).num_bytes
    # A small problem is chosen from all its possible events at once; None says
    # that this one is larger.
    self._every_event = pools.all_events(
      problem, TUNING.most_events_of_small_problem
    )
    # The plans that searches found, under what goes to the host in them.
    self._known: dict[tuple[Transfer, ...], list[Profile]] = {}
    self._sketches: dict[int, Choice] = {}
    self._smallest: dict[int | None, Profile] = {}

  def gather(
    self, limit_bytes: int, scale: int = 1, also: Sequence[Event] = ()
  ) -> Pool:
    """Gathers what there is to choose from about a limit.

    Args:
      limit_bytes: The limit.
      scale: How many times as many greedy runs as usual.
      also: More events.
    """
    limit = limit_bytes + self.problem.slot_bytes
    num_runs = scale * self._work.num_greedy_runs
    pool = pools.gather(self._choose_moved(limit), limit, num_runs)
    events = tuple(sorted({*pool.events, *also}))
    return dataclasses.replace(pool, events=events)

  def search(self, limit_bytes: int, pool: Pool) -> Choice | None:
    """Returns the best choice from a pool, None if none is found.

    Args:
      limit_bytes: The limit.
      pool: What this chooser gathered, about any limit.
    """
    limit = limit_bytes + self.problem.slot_bytes
    if self._unedited.peak_bytes <= limit:
      return self._choice(self._unedited)
    if self._floor_bytes > limit:
      return None
    best = self._choose_from(pool, limit)
    if best is None:
      return None
    self._known.setdefault(pool.start.transfers, []).append(best)
    return self._choice(_tidied(best, limit))

  def estimate(self, limit_bytes: int, useless_s: float = math.inf) -> float:
    """Returns the seconds that a choice adds; infinity if none is found.

    One greedy run says it where its plan fits, otherwise a sketch. Nothing goes
    to the host.

    Args:
      limit_bytes: The limit.
      useless_s: Where a plan adds so much before it fits, none is looked for.
    """
    limit = limit_bytes + self.problem.slot_bytes
    plan = pools.first_plan(self._start, limit)
    if plan.peak_bytes > limit and plan.seconds < useless_s:
      plan = pools.sketch(self._start, limit)
    return plan.seconds if plan.peak_bytes <= limit else math.inf

  def sketch(self, limit_bytes: int) -> Choice:
    """Returns the best choice of a few greedy runs; it may not fit."""
    if limit_bytes not in self._sketches:
      limit = limit_bytes + self.problem.slot_bytes
      best = pools.sketch(self._choose_moved(limit), limit)
      if best.peak_bytes <= limit:
        best = _tidied(best, limit)
      self._sketches[limit_bytes] = self._choice(best)
    return self._sketches[limit_bytes]

  def smallest(self, useful_bytes: int | None = None) -> Choice:
    """Returns the choice with the lowest peak that was found.

    Args:
      useful_bytes: Peaks above are of no use, so that the search begins there,
        and ends if it finds none.
    """
    if useful_bytes not in self._smallest:
      self._smallest[useful_bytes] = self._find_smallest(useful_bytes)
    return self._choice(self._smallest[useful_bytes])

  def _find_smallest(self, useful_bytes: int | None) -> Profile:
    if self._every_event is not None:
      return self._smallest_of(self._every_event)

    def find(aim: int) -> Profile:
      return pools.sketch(self._start, aim)

    best = self._unedited
    if useful_bytes is not None:
      useful = useful_bytes + self.problem.slot_bytes
      if self._floor_bytes > useful:
        return best
      best = min(best, find(useful), key=lambda p: p.peak_bytes)
      if best.peak_bytes > useful:
        return best
    return self._descend(best, find)

  def _choice(self, best: Profile) -> Choice:
    return Choice(
      edits=Edits(
        recomputes=self.problem.as_edits(best.events),
        offloads=offload.as_edits(self.problem, best),
      ),
      events=best.events,
      transfers=tuple(best.transfers.values()),
      peak_bytes=best.peak_bytes - self.problem.slot_bytes,
      extra_s=best.seconds,
    )

  def _choose_from(self, pool: Pool, limit: int) -> Profile | None:
    """Finds the cheapest plan from a pool, or from all events if they are few.

    Args:
      pool: The pool.
      limit: In bytes of the profile, slots included.
    """
    events, work = pool.events, self._work.pool_solver_work
    if self._every_event is not None:
      events, work = self._every_event, self._work.whole_solver_work
    known = self._known.get(pool.start.transfers, [])
    fitting = [p for p in known if p.peak_bytes <= limit]
    best = _cheapest(pool.best(limit), *fitting)
    if best is not None and best.seconds == 0.0:
      return best
    found = exact.choose_from_pool(
      self.problem,
      limit,
      events,
      work,
      best,
      pool.start.transfers,
      self._work.most_pool_terms,
    )
    return _cheapest(found, best)

  def _choose_moved(self, limit: int) -> greedy.Start:
    """Finds out, with one greedy run each, how many values should move."""
    best_start = self._start
    if self._rates is None:
      return best_start
    style = Style(depth=TUNING.moving_depth)
    best = _rank(best_start.solve(limit, style), limit)
    for ranked in offload.candidates(self.problem, limit):
      for count in TUNING.num_values_moved:
        moved = tuple(
          offload.schedule(self.problem, ranked, self._rates, count)
        )
        start = self._start_with(moved)
        rank = _rank(start.solve(limit, style), limit)
        if rank < best:
          best, best_start = rank, start
        if len(moved) < count:
          break
    return best_start

  def _start_with(self, transfers: tuple[Transfer, ...]) -> greedy.Start:
    """Returns what the runs with some moves to the host begin with."""
    if transfers not in self._starts:
      self._starts[transfers] = greedy.Start(self.problem, transfers)
    return self._starts[transfers]

  # The smallest plan.

  def _smallest_of(self, events: Sequence[Event]) -> Profile:
    """Finds the smallest plan from all events; of these a cheap one."""
    floor = self._floor_bytes
    best = pools.sketch(self._start, floor)
    if best.peak_bytes > floor:
      work = self._work.whole_solver_work
      found = exact.smallest_from_pool(self.problem, floor, events, work, best)
      best = found or best
    best = self._find(best.peak_bytes) or best
    if self._rates is None:
      return best
    return self._descend(best, self._find)

  def _find(self, limit: int) -> Profile | None:
    """Finds a cheap plan for a limit, with moves to the host and without."""
    starts = dict.fromkeys((self._choose_moved(limit), self._start))
    # Copies take memory while they are under way, so that a plan without any
    # may be the better one.
    found = [
      self._choose_from(
        pools.gather(start, limit, self._work.num_greedy_runs), limit
      )
      for start in starts
    ]
    best = _cheapest(*found)
    return None if best is None else _tidied(best, limit)

  def _descend(
    self, best: Profile, find: Callable[[int], Profile | None]
  ) -> Profile:
    """Aims lower and lower, in ever smaller steps, until nothing fits.

    Args:
      best: Where to begin.
      find: Returns a plan for about a limit, the same one every time.
    """
    floor = self._floor_bytes
    tried: set[int] = set()
    for factor in TUNING.smallest_plan_steps:
      while best.peak_bytes > floor:
        aim = max(floor, int(best.peak_bytes * factor))
        if aim in tried:
          break
        tried.add(aim)
        lowest = find(aim)
        if lowest is not None and lowest.peak_bytes < best.peak_bytes:
          best = lowest
        if lowest is None or lowest.peak_bytes > aim:
          break
    return best


def _rank(plan: Profile, limit: int) -> tuple[bool, bool, float]:
  """The lower, the better. What moves leaves more for others to do."""
  is_over = plan.peak_bytes > limit
  return is_over, is_over and not plan.transfers, plan.seconds


def _tidied(plan: Profile, limit: int) -> Profile:
  """Returns a plan without moves that a limit does not ask for."""
  if not plan.transfers:
    return plan
  plan = plan.copy()
  offload.drop_needless(plan, limit)
  return plan


def _cheapest(*plans: Profile | None) -> Profile | None:
  found = [p for p in plans if p is not None]
  return min(found, key=lambda p: p.seconds, default=None)
