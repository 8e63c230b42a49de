"""Plans for several byte limits: what each of them would cost."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from jaxmem import units
from jaxmem.errors import InfeasibleError
from jaxmem.planning.aim import ANYTHING, Wanted
from jaxmem.planning.decision import LimitPlan, PlannedModule
from jaxmem.planning.fit import LimitPlanner
from jaxmem.planning.smallest_program import smallest_program_bytes
from jaxmem.report import Frontier, Point, Progress

# How many limits are tried where none are asked for.
_NUM_LIMITS = 10


def plan_frontier(
  planners: Sequence[LimitPlanner],
  limits: Sequence[int] | None,
  name: str,
  target: str,
) -> Frontier:
  """Plans for each of several limits.

  A plan for a smaller limit also serves a larger one, so extra time never
  grows with the limit. Where XLA's own schedule exchanges anything, plans are
  compared with it: they hide what there is memory for.

  Args:
    planners: Of the step as it is written, and of versions of it.
    limits: Bytes of the whole program, in any order. None for ten from what
      it takes without a limit, or where it waits least for other devices, down
      to the least that was found.
    name: The function's name.
    target: The device's name.
  """
  written = planners[0]
  exchanges = written.own.collective_s > 0.0
  if limits is None:
    most = written.total_bytes
    if exchanges:
      most = _total_bytes(written.fit(written.xla_bytes).decision)
    limits = _spread(smallest_program_bytes(planners), most)
  progress = Progress()
  points: list[Point] = []
  best: Point | None = None
  for limit in sorted(set(limits)):
    progress.show(f"planning for {units.format_bytes(limit)}")
    found = [_point(*fit, written) for fit in _fits(planners, limit)]
    found += [dataclasses.replace(best, limit_bytes=limit)] if best else []
    best = min(found, key=lambda point: point.extra_s, default=None)
    points.append(best or Point(limit_bytes=limit, total_bytes=None))
  progress.close()
  return Frontier(
    name=name,
    target=target,
    step_s=written.step_s,
    exposed_s=written.own.exposed_s if exchanges else None,
    points=tuple(reversed(points)),
  )


def _fits(
  planners: Sequence[LimitPlanner], limit: int
) -> list[tuple[LimitPlanner, PlannedModule[LimitPlan]]]:
  """Returns what fits, by planner; the smallest plans if nothing else does."""
  for wanted in (Wanted(is_any=False), ANYTHING):
    found = [(p, f) for p in planners if (f := p.find(limit, wanted))]
    if found:
      return found
  for planner in planners:
    with contextlib.suppress(InfeasibleError):
      found.append((planner, planner.fit(limit)))
  return found


def _point(
  planner: LimitPlanner,
  planned: PlannedModule[LimitPlan],
  written: LimitPlanner,
) -> Point:
  """Returns what a plan costs.

  Args:
    planner: What planned it.
    planned: The plan.
    written: The planner of the step as it is written.
  """
  plan = planned.decision
  extra_s = plan.extra_s + planner.step_s - written.step_s
  if written.own.collective_s > 0.0:
    extra_s = plan.schedule_s - written.own.seconds
  return Point(
    limit_bytes=plan.limit_bytes,
    total_bytes=_total_bytes(plan),
    extra_s=extra_s,
    exposed_s=planner.time(planned).exposed_s,
    num_recomputed=len(plan.edits.recomputes),
    num_offloaded=len(plan.edits.offloads),
  )


def _total_bytes(plan: LimitPlan) -> int:
  return plan.fixed_bytes + plan.planned_bytes


def _spread(least: int, most: int) -> list[int]:
  """Limits from the least to the most, both included."""
  steps = _NUM_LIMITS - 1
  return [least + (most - least) * i // steps for i in range(_NUM_LIMITS)]
