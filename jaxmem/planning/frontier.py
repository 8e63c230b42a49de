"""Plans for several byte limits: what each of them would cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxmem import units
from jaxmem.errors import InfeasibleError
from jaxmem.planning.fit import LimitPlanner
from jaxmem.report import Frontier, Point, Progress

# How many limits are tried where none are asked for.
_NUM_LIMITS = 10


def plan_frontier(
  planner: LimitPlanner, limits: Sequence[int] | None, name: str, target: str
) -> Frontier:
  """Plans for each of several limits.

  A plan for a smaller limit also serves a larger one, so extra time never
  grows with the limit.

  Args:
    planner: Of the module.
    limits: Bytes of the whole program, in any order. None for ten from what
      it takes without a limit down to the least that was found.
    name: The function's name.
    target: The device's name.
  """
  if limits is None:
    limits = _spread(planner.smallest_bytes(), planner.total_bytes)
  progress = Progress()
  points: list[Point] = []
  step_s = planner.step_s
  best: Point | None = None
  for limit in sorted(set(limits)):
    progress.show(f"planning for {units.format_bytes(limit)}")
    try:
      plan = planner.fit(limit).decision
    except InfeasibleError:
      points.append(Point(limit_bytes=limit, total_bytes=None))
      continue
    found = Point(
      limit_bytes=limit,
      total_bytes=plan.fixed_bytes + plan.planned_bytes,
      extra_s=plan.extra_s,
      num_recomputed=len(plan.edits.recomputes),
      num_offloaded=len(plan.edits.offloads),
    )
    if best is not None and best.extra_s < found.extra_s:
      found = dataclasses.replace(best, limit_bytes=limit)
    best = found
    points.append(found)
  progress.close()
  return Frontier(
    name=name, target=target, step_s=step_s, points=tuple(reversed(points))
  )


def _spread(least: int, most: int) -> list[int]:
  """Limits from the least to the most, both included."""
  steps = _NUM_LIMITS - 1
  return [least + (most - least) * i // steps for i in range(_NUM_LIMITS)]
