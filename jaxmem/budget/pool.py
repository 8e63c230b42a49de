"""Many greedy runs that judge differently, and what they chose between them.

One greedy run commits itself early. Runs that see other costs commit
themselves otherwise; what any of them chose is a small pool of events that
contains better plans than each single run found.
"""

from __future__ import annotations

import dataclasses
import math
import random

from jaxmem.budget import greedy
from jaxmem.budget.greedy import Start
from jaxmem.budget.moves import Style
from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Event, Profile
from jaxmem.budget.tuning import TUNING

_TUNING = TUNING.pool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
  """What several greedy runs found.

  Attributes:
    start: What they began with.
    events: All events of their plans, sorted.
    plans: Their plans, which may fit or not.
  """

  start: Start
  events: tuple[Event, ...]
  plans: tuple[Profile, ...]

  def best(self, limit_bytes: int) -> Profile | None:
    """Returns the cheapest plan that fits a limit; None if none does."""
    fitting = [p for p in self.plans if p.peak_bytes <= limit_bytes]
    return min(fitting, key=lambda p: p.seconds, default=None)

  @property
  def lowest(self) -> Profile:
    """The plan with the lowest peak."""
    return min(self.plans, key=lambda p: (p.peak_bytes, p.seconds))


def gather(start: Start, limit_bytes: int, num_runs: int) -> Pool:
  """Runs the greedy search several times, the first two with true costs.

  Args:
    start: The problem, and what goes to the host.
    limit_bytes: The limit.
    num_runs: How many runs, at least one.
  """
  problem = start.problem
  random_source = random.Random(_TUNING.seed)
  kinds = [problem.steps[u.step].name.split(".")[0] for u in problem.units]
  events: set[Event] = set()
  plans = []
  for run in range(num_runs):
    aim = 1.0
    if run < len(_TUNING.true_cost_depths):
      style = Style(depth=_TUNING.true_cost_depths[run])
    else:
      style = _noisy_style(problem, kinds, random_source)
      aim = random_source.choice(_TUNING.noisy_aims)
    plan = start.solve(int(limit_bytes * aim), style)
    events.update(plan.events)
    if aim < 1.0 and plan.peak_bytes <= limit_bytes:
      greedy.delete(plan, limit_bytes)
    plans.append(plan)
  return Pool(start=start, events=tuple(sorted(events)), plans=tuple(plans))


def first_plan(start: Start, limit_bytes: int) -> Profile:
  """Returns the plan of the first greedy run; it may not fit."""
  return start.solve(limit_bytes, Style(depth=_TUNING.true_cost_depths[0]))


def sketch(start: Start, limit_bytes: int) -> Profile:
  """Returns a plan found in little time; the lowest if none fits.

  Args:
    start: The problem, and what goes to the host.
    limit_bytes: The limit.
  """
  pool = gather(start, limit_bytes, len(_TUNING.true_cost_depths))
  best = pool.best(limit_bytes)
  if best is not None:
    return best
  if pool.lowest.peak_bytes > _TUNING.last_depth_miss * limit_bytes:
    return pool.lowest
  deep = Style(depth=_TUNING.last_depth)
  plan = start.solve(limit_bytes, deep)
  return min(plan, pool.lowest, key=lambda p: (p.peak_bytes, p.seconds))


def _noisy_style(
  problem: BudgetProblem, kinds: list[str], source: random.Random
) -> Style:
  """Multiplies costs by a random factor per kind of instruction."""
  noise = source.choice(_TUNING.cost_noises)
  factors: dict[str, float] = {}
  for kind in kinds:
    if kind not in factors:
      factors[kind] = math.exp(source.gauss(0.0, noise))
  return Style(
    depth=source.choice(_TUNING.noisy_depths),
    exponent=source.choice(_TUNING.noisy_exponents),
    seconds=tuple(
      u.seconds * factors[k] for u, k in zip(problem.units, kinds, strict=True)
    ),
  )


def all_events(problem: BudgetProblem, most: int) -> tuple[Event, ...] | None:
  """Returns every event there can be, or None if these are too many."""
  events = []
  for unit, (made, last) in enumerate(
    zip(problem.units, problem.latest_run, strict=True)
  ):
    events += [(unit, before) for before in range(made.step + 1, last + 1)]
    if len(events) > most:
      return None
  return tuple(events)
