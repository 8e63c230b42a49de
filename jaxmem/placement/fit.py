"""Places one buffer after another, each into a gap between those placed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from jaxmem.placement.table import Table

Fit = Literal["best", "first"]


class Shelf:
  """What has been placed so far, and where there is room.

  Attributes:
    offsets: int64 `[num_buffers]`, in units; 0 until placed.

  Args:
    table: The problem. Its fixed buffers are placed.
  """

  def __init__(self, table: Table):
    self._table = table
    self.offsets = np.maximum(table.fixed, 0)
    self._placed = table.fixed[table.owners] >= 0

  def put(self, buffer: int, offset: int) -> None:
    """Places a buffer, in units."""
    self.offsets[buffer] = offset
    pieces = self._table.pieces_of(buffer)
    self._placed[pieces.start : pieces.stop] = True

  def place(self, order: Iterable[int], fit: Fit) -> np.ndarray:
    """Places the buffers of an order that are not fixed; returns `offsets`."""
    for buffer in order:
      if self._table.fixed[buffer] < 0:
        self.put(buffer, self.find(buffer, fit))
    return self.offsets

  def find(self, buffer: int, fit: Fit) -> int:
    """Returns the lowest offset, or the one in the smallest gap that fits."""
    alignment = int(self._table.alignments[buffer])
    ranges = self.forbidden(buffer)
    lows, highs = ranges[:, np.argsort(ranges[0], kind="stable")]
    tops = np.maximum.accumulate(np.append(0, highs))
    tops = -(-tops // alignment) * alignment
    rooms = lows - tops[:-1]
    fits = np.flatnonzero(rooms >= 0)
    if not len(fits):
      return int(tops[-1])
    return int(tops[fits[0] if fit == "first" else fits[rooms[fits].argmin()]])

  def forbidden(self, buffer: int) -> np.ndarray:
    """Returns open ranges in which the buffer's offset cannot be, `[2, num]`.

    A piece meets a placed one if it begins below its top and ends above its
    bottom; ranges that end at or below zero say nothing.
    """
    table = self._table
    found = []
    for piece in table.pieces_of(buffer):
      others = np.flatnonzero(self._placed & table.meets(piece))
      base = self.offsets[table.owners[others]]
      lows = base + table.lows[others] - table.highs[piece]
      highs = base + table.highs[others] - table.lows[piece]
      found.append(np.stack([lows, highs]))
    ranges = np.concatenate(found, axis=1)
    return ranges[:, ranges[1] > 0]
