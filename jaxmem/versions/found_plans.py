"""Plans of versions for one limit, each made once."""

from __future__ import annotations

import math

from jaxmem.planning import TUNING, LimitPlan, Wanted
from jaxmem.versions.compared import ComparedVersion


class FoundPlans:
  """Remembers plans of versions, sketches of them, and what was in vain.

  Args:
    limit_bytes: Most bytes of a whole program.
  """

  def __init__(self, limit_bytes: int):
    self._limit_bytes = limit_bytes
    # By planner, its plan, the seconds of a sketch, or what none was found for.
    self._plans: dict[int, LimitPlan] = {}
    self._sketches_s: dict[int, float] = {}
    self._vain: dict[int, list[Wanted]] = {}

  @property
  def best_s(self) -> float:
    """Seconds of the fastest schedule that was sketched; infinity before."""
    return min(self._sketches_s.values(), default=math.inf)

  def hopeful_s(self, tried: ComparedVersion) -> float:
    """Returns seconds that a version's schedule will hardly be faster than.

    Estimates may be above what a sketch has reached since.
    """
    sketched_s = self._sketches_s.get(id(tried.planner), math.inf)
    return min(sketched_s, tried.hopeful_s)

  def usual_s(self, tried: ComparedVersion) -> float:
    """Returns seconds that a sketch is mostly not refined below."""
    sketched_s = self._sketches_s.get(id(tried.planner), math.inf)
    step_s = tried.planner.step_s
    return step_s + TUNING.versions.usual_share * (sketched_s - step_s)

  def sketched_s(self, tried: ComparedVersion, wanted: Wanted) -> float | None:
    """Returns the seconds of a version's schedule by its best sketch.

    Args:
      tried: The version.
      wanted: See `LimitPlanner.find`.
    """
    if tried.planner.hides:
      return self.planned_s(tried, wanted)
    key = id(tried.planner)
    if key not in self._sketches_s and not self._is_vain(key, wanted):
      found_s = tried.planner.sketched_s(self._limit_bytes, wanted)
      if found_s is None:
        self._vain.setdefault(key, []).append(wanted)
      else:
        self._sketches_s[key] = found_s
    return self._sketches_s.get(key)

  def planned_s(self, tried: ComparedVersion, wanted: Wanted) -> float | None:
    """Returns the seconds of a version's schedule by its plan."""
    plan = self.find(tried, wanted)
    return None if plan is None else plan.schedule_s

  def find(self, tried: ComparedVersion, wanted: Wanted) -> LimitPlan | None:
    """Returns a plan for a version, None if there seems to be none.

    Args:
      tried: The version.
      wanted: See `LimitPlanner.find`.
    """
    key = id(tried.planner)
    if key not in self._plans and not self._is_vain(key, wanted):
      planned = tried.planner.find(self._limit_bytes, wanted)
      if planned is None:
        self._vain.setdefault(key, []).append(wanted)
      else:
        self._plans[key] = planned.decision
        self._sketches_s[key] = planned.decision.schedule_s
    return self._plans.get(key)

  def _is_vain(self, key: int, wanted: Wanted) -> bool:
    """Whether a planner did not find what is wanted before."""
    return any(wanted.is_within(vain) for vain in self._vain.get(key, []))
