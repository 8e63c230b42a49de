"""An independent check of placements.

Imports the data only and recomputes everything, so that a mistake in a placer
cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxmem.graph import ValidationError
from jaxmem.placement.problem import Buffer, Problem, Solution


def validate(
  problem: Problem, solution: Solution, capacity: int | None = None
) -> None:
  """Checks that a solution keeps all buffers apart.

  Args:
    problem: The buffers.
    solution: Their offsets.
    capacity: Bytes of the arena; None if unlimited.

  Raises:
    ValidationError: Names every fault: an offset that is missing, negative, not
      aligned or not the fixed one; bytes that two live buffers share; a wrong
      height, or one above the capacity.
  """
  buffers, offsets = problem.buffers, solution.offsets
  if len(offsets) != len(buffers):
    raise ValidationError([f"{len(buffers)} buffers, {len(offsets)} offsets"])
  faults = []
  for buffer, offset in zip(buffers, offsets, strict=True):
    where = f"{buffer.name!r} is at {offset}"
    if offset < 0:
      faults.append(f"{where}, which is negative")
    if offset % buffer.alignment_bytes:
      faults.append(f"{where}, not a multiple of {buffer.alignment_bytes}")
    if buffer.offset_bytes not in (None, offset):
      faults.append(f"{where}, but fixed at {buffer.offset_bytes}")
  for i, j in _overlaps(problem, solution):
    names = f"{buffers[i].name!r} and {buffers[j].name!r}"
    faults.append(f"{names} share bytes while both are live")
  height = max(o + b.size_bytes for o, b in zip(offsets, buffers, strict=True))
  if solution.height_bytes != height:
    faults.append(f"the height is {height}, not {solution.height_bytes}")
  if solution.lower_bound_bytes > height:
    faults.append(f"the lower bound is above the height, {height}")
  if capacity is not None and height > capacity:
    faults.append(f"the height {height} is above the capacity {capacity}")
  if faults:
    raise ValidationError(faults)


def _taken(buffer: Buffer) -> Iterator[tuple[int, int, int, int]]:
  """Yields (lower, upper, first byte, past the last byte)."""
  time = buffer.lower
  for gap in buffer.gaps:
    yield time, gap.lower, 0, buffer.size_bytes
    low, high = gap.window or (0, 0)
    yield gap.lower, gap.upper, low, high
    time = gap.upper
  yield time, buffer.upper, 0, buffer.size_bytes


def _overlaps(
  problem: Problem, solution: Solution
) -> Iterator[tuple[int, int]]:
  rows = [
    (i, lower, upper, offset + low, offset + high)
    for i, offset in enumerate(solution.offsets)
    for lower, upper, low, high in _taken(problem.buffers[i])
    if lower < upper and low < high
  ]
  table = np.array(sorted(rows, key=lambda r: r[3]), np.int64).reshape(-1, 5)
  owner, lower, upper, low, high = table.T
  seen = set()
  for i, stop in enumerate(np.searchsorted(low, high).tolist()):
    others = slice(i + 1, stop)
    both = (lower[others] < upper[i]) & (lower[i] < upper[others])
    for other in owner[others][both].tolist():
      pair = (min(owner[i], other), max(owner[i], other))
      if pair[0] != pair[1] and pair not in seen:
        seen.add(pair)
        yield int(pair[0]), int(pair[1])
