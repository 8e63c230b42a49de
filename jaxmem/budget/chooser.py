"""Chooses what to run again so that a step fits a byte limit at least cost.

What may run again is gathered at rungs of a fixed ladder, the one below the
limit and the next, and chosen from at the limit itself: so a larger limit does
not cost more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from jaxmem import units
from jaxmem.budget import exact, greedy, lower_bound, offload
from jaxmem.budget import pool as pools
from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.pool import Pool
from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Event, Profile, Transfer
from jaxmem.errors import InfeasibleError, NeededBuffer, name_buffers
from jaxmem.rewrite import Edits

Effort = Literal["fast", "normal", "prove"]

# Of the peak without edits; the rungs of the ladder fall by this factor.
RUNG = 0.995
# How many rungs are tried for the cheapest plan, the one below the limit and
# those below that, unless the bound says that there is no cheaper one.
_NUM_RUNGS = 2
# Problems with no more possible events than this are chosen from at once.
_MAX_EVENTS = 400
# The search for the smallest plan aims this much lower each time.
_STEPS_DOWN = (0.8, 0.93, 0.98)
_NUM_NAMED = 8
# How many values go to the host, in the variants that are tried.
_NUM_MOVED = (6, 32)
_QUICK = greedy.Style(depth=2)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
  """What an effort means: greedy runs, and CP-SAT's deterministic time.

  Attributes:
    num_runs: Greedy runs.
    exact: For a choice from what they found.
    every: For a choice from all possible events, where these are few.
  """

  num_runs: int
  exact: float
  every: float


_WORK: dict[Effort, _Work] = {
  "fast": _Work(num_runs=4, exact=0.3, every=1.0),
  "normal": _Work(num_runs=6, exact=0.8, every=5.0),
  "prove": _Work(num_runs=24, exact=20.0, every=60.0),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """What to run again.

  Attributes:
    edits: By instruction ids.
    events: The same as (unit, step before which it runs).
    peak_bytes: Temporaries that the profile of the edited program needs.
    extra_s: Estimated seconds that the edits add. Copies to the host add what
      it takes to start them: they are chosen so that nobody waits for them.
    host_bytes: Of the values that go to the host.
    lower_bound_s: No choice of recomputes alone for that limit, on this order,
      adds less; None if it was not asked for.
  """

  edits: Edits
  events: tuple[Event, ...]
  peak_bytes: int
  extra_s: float
  host_bytes: int = 0
  lower_bound_s: float | None = None


def choose(
  problem: BudgetProblem,
  limit_bytes: int,
  effort: Effort = "normal",
  rates: OffloadRates | None = None,
  with_bound: bool = False,
) -> Choice:
  """Chooses edits with which the temporaries fit a limit.

  Args:
    problem: The problem.
    limit_bytes: Most bytes of temporaries.
    effort: "fast", "normal", or "prove" for a long search. They differ in the
      number of greedy runs and in CP-SAT's work on what these found.
    rates: Of the link to the host; None if nothing may go there.
    with_bound: Whether to bound the cost from below.

  Returns:
    The cheapest choice that was found. The same on every machine.

  Raises:
    InfeasibleError: If none was found. Its bytes are temporaries.
  """
  return Chooser(problem, effort, rates).choose(limit_bytes, with_bound)


class Chooser:
  """Chooses for several limits of one problem, and remembers what it found.

  Args:
    problem: The problem.
    effort: See `choose`.
    rates: See `choose`.
  """

  def __init__(
    self,
    problem: BudgetProblem,
    effort: Effort = "normal",
    rates: OffloadRates | None = None,
  ):
    if effort not in _WORK:
      raise ValueError(f"effort must be one of {[*_WORK]}, got {effort!r}.")
    self.problem = problem
    self._work = _WORK[effort]
    self._rates = rates
    self._start = greedy.Start(problem)
    self._unedited = self._start.profile()
    self._bytes_bound = lower_bound.unavoidable_bytes(
      problem, with_host=rates is not None
    )
    self._every_event = pools.all_events(problem, _MAX_EVENTS)
    self._pools: dict[tuple[int, tuple[Transfer, ...]], Pool] = {}
    # What searches found, by what goes to the host.
    self._known: dict[tuple[Transfer, ...], list[Profile]] = {}
    # By limit, and by the rung that it was chosen at.
    self._found: dict[tuple[int, int], Profile | None] = {}
    self._bounds: dict[int, float] = {}
    self._sketches: dict[int, Choice] = {}
    self._smallest: Profile | None = None
    self._is_least = False

  def choose(self, limit_bytes: int, with_bound: bool = False) -> Choice:
    """See `choose`."""
    found = self.find(limit_bytes, with_bound)
    if found is None:
      raise self._infeasible(limit_bytes)
    return found

  def find(self, limit_bytes: int, with_bound: bool = False) -> Choice | None:
    """Returns what `choose` does, but None where that raises.

    It does not look for the smallest plan, which the error would name.
    """
    limit = limit_bytes + self.problem.slot_bytes
    best = self._best(limit)
    if best is None:
      return None
    return self._choice(best, self._bound(limit) if with_bound else None)

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
    num_runs = scale * self._work.num_runs
    pool = pools.gather(self._choose_moved(limit), limit, num_runs)
    events = tuple(sorted({*pool.events, *also}))
    return dataclasses.replace(pool, events=events)

  def search(self, limit_bytes: int, pool: Pool) -> Choice | None:
    """Returns the best choice from a pool, None if none is found.

    It takes a fraction of the time of `find`.

    Args:
      limit_bytes: Most bytes of temporaries.
      pool: Of this chooser.
    """
    limit = limit_bytes + self.problem.slot_bytes
    if self._unedited.peak_bytes <= limit:
      return self._choice(self._unedited)
    if self._bytes_bound.num_bytes > limit:
      return None
    best = self._choose_from(pool, limit)
    if best is None:
      return None
    self._known.setdefault(pool.start.transfers, []).append(best)
    return self._choice(_tidied(best, limit))

  def sketch(self, limit_bytes: int) -> Choice:
    """Returns the best choice of a few greedy runs; it may not fit."""
    if limit_bytes not in self._sketches:
      limit = limit_bytes + self.problem.slot_bytes
      best = pools.sketch(self._choose_moved(limit), limit)
      if best.peak_bytes <= limit:
        best = _tidied(best, limit)
      self._sketches[limit_bytes] = self._choice(best)
    return self._sketches[limit_bytes]

  def _choice(self, best: Profile, bound_s: float | None = None) -> Choice:
    return Choice(
      edits=Edits(
        recomputes=self.problem.as_edits(best.events),
        offloads=offload.as_edits(self.problem, best),
      ),
      events=best.events,
      peak_bytes=best.peak_bytes - self.problem.slot_bytes,
      extra_s=best.seconds,
      host_bytes=sum(self.problem.values[v].size_bytes for v in best.transfers),
      lower_bound_s=bound_s,
    )

  def _best(self, limit: int) -> Profile | None:
    if self._unedited.peak_bytes <= limit:
      return self._unedited
    if self._bytes_bound.num_bytes > limit:
      return None
    if self._every_event is not None:
      return self._solve(limit, limit)
    return self._best_of_rungs(limit)

  def _best_of_rungs(self, limit: int) -> Profile | None:
    """The cheapest plan from what is gathered at rungs, for the limit itself.

    The runs do not depend on where between two rungs the limit lies, so that
    what a higher limit chooses from is no less.
    """
    best: Profile | None = None
    rung = self._rung_below(limit)
    for _ in range(_NUM_RUNGS):
      best = _cheapest(best, self._solve(limit, rung))
      rung = self._rung_below(rung - 1)
      if rung < self._bytes_bound.num_bytes:
        break
      if best is not None and self._is_best(limit, best):
        break
    earlier = [p for p in self._found.values() if p and p.peak_bytes <= limit]
    best = _cheapest(best, *earlier)
    if best is None and self.smallest().peak_bytes <= limit:
      return self.smallest()
    return best

  def _rung_below(self, limit: int) -> int:
    """Returns the highest rung that is no higher than a limit."""
    rung = float(self._unedited.peak_bytes)
    while int(rung) > limit:
      rung *= RUNG
    return int(rung)

  def _is_best(self, limit: int, plan: Profile) -> bool:
    """Whether no plan for a limit can be cheaper than a given one."""
    if plan.seconds == 0.0:
      return True
    return self._rates is None and self._bound(limit) >= plan.seconds

  def _bound(self, limit: int) -> float:
    if limit not in self._bounds:
      self._bounds[limit] = lower_bound.seconds(self.problem, limit)
    return self._bounds[limit]

  # One limit.

  def _solve(self, limit: int, rung: int) -> Profile | None:
    """Finds a plan for a limit from what is gathered at a rung."""
    if (limit, rung) not in self._found:
      self._found[limit, rung] = self._search(limit, rung)
    return self._found[limit, rung]

  def _search(self, limit: int, rung: int) -> Profile | None:
    start = self._choose_moved(rung)
    best = self._choose_from(self._gather(start, rung), limit)
    if start.transfers and (best is None or self._every_event is not None):
      # Copies take memory, too, while they are under way.
      pool = self._gather(self._start, rung)
      best = _cheapest(best, self._choose_from(pool, limit))
    return None if best is None else _tidied(best, limit)

  def _gather(self, start: greedy.Start, limit: int) -> Pool:
    """Finds what might run again, given what goes to the host."""
    key = limit, start.transfers
    if key not in self._pools:
      self._pools[key] = pools.gather(start, limit, self._work.num_runs)
    return self._pools[key]

  def _choose_from(self, pool: Pool, limit: int) -> Profile | None:
    """Finds the cheapest plan from a pool."""
    events, work = pool.events, self._work.exact
    if self._every_event is not None:
      events, work = self._every_event, self._work.every
    known = self._known.get(pool.start.transfers, [])
    fitting = [p for p in known if p.peak_bytes <= limit]
    best = _cheapest(pool.best(limit), *fitting)
    if not work or (best is not None and best.seconds == 0.0):
      return best
    result = exact.choose_from_pool(
      self.problem, limit, events, work, best, pool.start.transfers
    )
    return _cheapest(result.profile, best)

  def _choose_moved(self, limit: int) -> greedy.Start:
    """Finds out, with one greedy run each, how many values should move."""
    best_start = self._start
    if self._rates is None:
      return best_start
    plan = greedy.solve(best_start, limit, _QUICK)
    best = _rank(plan, limit)
    for ranked in offload.candidates(self.problem, limit):
      for count in _NUM_MOVED:
        moved = offload.schedule(self.problem, ranked, self._rates, count)
        start = greedy.Start(self.problem, moved)
        plan = greedy.solve(start, limit, _QUICK)
        rank = _rank(plan, limit)
        if rank < best:
          best, best_start = rank, start
        if len(moved) < count:
          break
    return best_start

  # No plan.

  def smallest(self) -> Profile:
    """Returns the plan with the lowest peak that was found."""
    if self._smallest is None:
      if self._every_event is not None:
        self._smallest = self._least_of_all(self._every_event)
      else:
        self._smallest = self._descend(
          self._unedited, lambda aim: pools.sketch(self._start, aim)
        )
    return self._smallest

  def _least_of_all(self, events: Sequence[Event]) -> Profile:
    """The smallest plan from all events; of these a cheap one."""
    floor = self._bytes_bound.num_bytes
    best = pools.sketch(self._start, floor)
    self._is_least = best.peak_bytes <= floor
    if not self._is_least:
      result = exact.smallest_from_pool(
        self.problem, floor, events, self._work.every, best
      )
      best = result.profile or best
      self._is_least = result.status == "optimal" and self._rates is None
    best = self._solve(best.peak_bytes, best.peak_bytes) or best
    if self._rates is None:
      return best
    return self._descend(best, lambda aim: self._solve(aim, aim))

  def _descend(
    self, best: Profile, find: Callable[[int], Profile | None]
  ) -> Profile:
    """Aims lower and lower, in ever smaller steps, until nothing fits.

    Args:
      best: Where to begin.
      find: Returns a plan for about a limit.
    """
    floor = self._bytes_bound.num_bytes
    for factor in _STEPS_DOWN:
      while best.peak_bytes > floor:
        aim = max(floor, int(best.peak_bytes * factor))
        lowest = find(aim)
        if lowest is not None and lowest.peak_bytes < best.peak_bytes:
          best = lowest
        if lowest is None or lowest.peak_bytes > aim:
          break
    return best

  def _infeasible(self, limit_bytes: int) -> InfeasibleError:
    smallest = self.smallest().peak_bytes - self.problem.slot_bytes
    bound = self._bytes_bound
    needed = max(0, bound.num_bytes - self.problem.slot_bytes)
    if self._is_least:
      needed = smallest
    buffers = tuple(
      NeededBuffer(name=v.name, size_bytes=v.size_bytes, source=v.source)
      for v in (self.problem.values[n] for n in bound.values[:_NUM_NAMED])
    )
    return InfeasibleError(
      f"No choice of recomputes fits {units.format_bytes(limit_bytes)} of"
      f" temporaries: the smallest found needs {units.format_bytes(smallest)},"
      f" and at least {units.format_bytes(needed)} are needed, at"
      f" {self.problem.steps[bound.step].name}. Live there, whatever is chosen:"
      f" {name_buffers(buffers)}.",
      smallest_bytes=smallest,
      lower_bound_bytes=needed,
      buffers=buffers,
    )


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
