"""The state of a search: the best placement so far, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.table import Table

# With no more buffers than this, the search goes on to the last byte.
_FEW_BUFFERS = 64


class PlacementSearch:
  """Collects placements of one problem.

  Attributes:
    table: The problem.
    has_capacity: Whether the goal was given.
    goal_bytes: The search is over at this height.
    bound_bytes: No placement is lower; may be raised by a proof.
    height_bytes: Height of the lowest placement; 0 before the first one.

  Args:
    problem: The buffers, or their table.
    capacity: What the height has to reach, in bytes; the lower bound if None.
  """

  def __init__(self, problem: Problem | Table, capacity: int | None = None):
    self._start = time.perf_counter()
    self.table = Table(problem) if isinstance(problem, Problem) else problem
    self.bound_bytes = self.table.max_live_bytes
    self.has_capacity = capacity is not None
    self.goal_bytes = max(capacity or 0, self.bound_bytes)
    self.height_bytes = 0
    self._offsets_bytes: tuple[int, ...] = ()
    self._method = ""

  @property
  def is_done(self) -> bool:
    """Whether the goal is reached."""
    if not self._offsets_bytes:
      return False
    close = self.height_bytes <= self.bound_bytes + self.tolerance_bytes
    return close or self.height_bytes <= self.goal_bytes

  @property
  def tolerance_bytes(self) -> int:
    """How far above the bound is good enough.

    In large problems less than a unit: the search below it is for the padding
    of the topmost buffer.
    """
    is_small = self.table.num_buffers <= _FEW_BUFFERS
    return 0 if is_small else self.table.unit - 1

  def offer(self, offsets: np.ndarray, method: str) -> None:
    """Keeps a valid placement, in units, if it is lower than the best."""
    self.offer_bytes((offsets * self.table.unit).tolist(), method)

  def offer_bytes(self, offsets: Sequence[int], method: str) -> None:
    """Keeps a valid placement, in bytes, if it is lower than the best."""
    sizes = self.table.sizes_bytes.tolist()
    height = max(o + s for o, s in zip(offsets, sizes, strict=True))
    if not self._offsets_bytes or height < self.height_bytes:
      self._offsets_bytes, self.height_bytes = tuple(offsets), height
      self._method = method

  def raise_bound(self, height_bytes: int) -> None:
    """Says that no placement has so small a height: proven.

    A height is a multiple of the unit plus a size.
    """
    unit = self.table.unit
    rest = self.table.sizes_bytes % unit
    above = (height_bytes - rest) // unit + 1
    least = int((above * unit + rest).min())
    self.bound_bytes = max(self.bound_bytes, least)

  def solution(self) -> Solution:
    """Returns the best placement.

    Raises:
      ValueError: If none was offered.
    """
    if not self._offsets_bytes:
      raise ValueError("A search must find a placement, got none.")
    return Solution(
      offsets=self._offsets_bytes,
      height_bytes=self.height_bytes,
      lower_bound_bytes=self.bound_bytes,
      method=self._method,
      seconds=time.perf_counter() - self._start,
    )
