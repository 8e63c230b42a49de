"""Placements of the same height that take memory over later.

Where a buffer takes over memory that another has just left, what writes the one
has to wait for what reads the other, even if they are otherwise independent and
could run at the same time: TURNIP's memory dependencies. Where the arena has
room to spare, another address avoids that. So live ranges are extended as far
as the height allows, and placed again.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxmem.placement.large_first import large_first
from jaxmem.placement.problem import Problem, Solution

# How much of the height the longer lives may fill, in the order of trial: full
# arenas are hard to pack.
_FILLED_PARTS = (1.0, 0.94, 0.9, 0.8, 0.65)


def late_reuse(
  problem: Problem, solution: Solution, capacity: int | None = None
) -> Solution:
  """Places buffers so that memory is taken over later, in the same height.

  Args:
    problem: The buffers.
    solution: A placement of them.
    capacity: Bytes that may be used, if more than the height of `solution`.

  Returns:
    A placement that is not higher; the same one if none was found.
  """
  capacity = max(capacity or 0, solution.height_bytes)
  for part in _FILLED_PARTS:
    longer = _extended(problem, int(part * capacity))
    late = large_first(longer, capacity)
    if late.fits(capacity):
      return dataclasses.replace(
        solution,
        offsets=late.offsets,
        height_bytes=late.height_bytes,
        method=f"{solution.method}, late reuse",
      )
  return solution


def _extended(problem: Problem, capacity: int) -> Problem:
  """Extends live ranges, all by a little, then by more, where there is room."""
  buffers = problem.buffers
  # Times are counted in places between two ends of live ranges.
  times = np.unique([time for b in buffers for time in (b.lower, b.upper)])
  lowers, uppers = (
    np.searchsorted(times, [getattr(b, name) for b in buffers])
    for name in ("lower", "upper")
  )
  # A multiple of the alignment each.
  sizes = [b.size_bytes + -b.size_bytes % b.alignment_bytes for b in buffers]
  live = np.zeros(len(times), np.int64)
  for lower, upper, size in zip(lowers, uppers, sizes, strict=True):
    live[lower:upper] += size
  last = len(times) - 1
  order = np.argsort(uppers, kind="stable")
  extension = 1
  while extension < last:
    for i in order:
      end = min(last, uppers[i] + extension)
      more = live[uppers[i] : end]
      if len(more) and more.max() + sizes[i] <= capacity:
        more += sizes[i]
        uppers[i] = end
    extension *= 2
  return Problem(
    tuple(
      dataclasses.replace(b, upper=int(times[upper]))
      for b, upper in zip(buffers, uppers, strict=True)
    )
  )
