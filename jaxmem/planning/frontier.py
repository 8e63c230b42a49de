"""Plans for several byte limits: what each of them would cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxmem import units
from jaxmem.errors import InfeasibleError
from jaxmem.planning.decision import LimitPlan
from jaxmem.planning.fit import LimitPlanner
from jaxmem.report import Frontier, Point, Progress

# How many limits are tried where none are asked for.
_NUM_LIMITS = 10


def plan_frontier(
  planner: LimitPlanner, limits: Sequence[int] | None, name: str, target: str
) -> Frontier:
  """Plans for each of several limits.

  A plan for a smaller limit also serves a larger one, so extra time never
  grows with the limit. Where XLA's own schedule exchanges anything, plans are
  compared with it: they hide what there is memory for.

  Args:
    planner: Of the module.
    limits: Bytes of the whole program, in any order. None for ten from what
      it takes without a limit, or where it waits least for other devices, down
      to the least that was found.
    name: The function's name.
    target: The device's name.
  """
  own = planner.own
  exchanges = own.collective_s > 0.0
  if limits is None:
    most = planner.total_bytes
    if exchanges:
      most = _total_bytes(planner.fit(planner.xla_bytes).decision)
    limits = _spread(planner.smallest_bytes(), most)
  progress = Progress()
  points: list[Point] = []
  best: Point | None = None
  for limit in sorted(set(limits)):
    progress.show(f"planning for {units.format_bytes(limit)}")
    try:
      planned = planner.fit(limit)
    except InfeasibleError:
      points.append(Point(limit_bytes=limit, total_bytes=None))
      continue
    plan = planned.decision
    found = Point(
      limit_bytes=limit,
      total_bytes=_total_bytes(plan),
      extra_s=plan.schedule_s - own.seconds if exchanges else plan.extra_s,
      exposed_s=planner.time(planned).exposed_s,
      num_recomputed=len(plan.edits.recomputes),
      num_offloaded=len(plan.edits.offloads),
    )
    if best is not None and best.extra_s < found.extra_s:
      found = dataclasses.replace(best, limit_bytes=limit)
    best = found
    points.append(found)
  progress.close()
  return Frontier(
    name=name,
    target=target,
    step_s=planner.step_s,
    exposed_s=own.exposed_s if exchanges else None,
    points=tuple(reversed(points)),
  )


def _total_bytes(plan: LimitPlan) -> int:
  return plan.fixed_bytes + plan.planned_bytes


def _spread(least: int, most: int) -> list[int]:
  """Limits from the least to the most, both included."""
  steps = _NUM_LIMITS - 1
  return [least + (most - least) * i // steps for i in range(_NUM_LIMITS)]
