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
    self.offsets = np.zeros(table.num_buffers, np.int64)
    self._placed = np.zeros(len(table.owners), bool)
    for buffer in np.flatnonzero(table.fixed >= 0).tolist():
      self.put(buffer, int(table.fixed[buffer]))

  def put(self, buffer: int, offset: int) -> None:
    """Places a buffer, in units."""
    self.offsets[buffer] = offset
    pieces = self._table.pieces_of(buffer)
    self._placed[pieces.start : pieces.stop] = True

  def place(self, order: Iterable[int], fit: Fit) -> np.ndarray:
    """Places the buffers of an order that are not fixed.

    Returns:
      `offsets`.
    """
    for buffer in order:
      if self._table.fixed[buffer] < 0:
        self.put(buffer, self.find(buffer, fit))
    return self.offsets

  def find(self, buffer: int, fit: Fit) -> int:
    """Returns the lowest offset, or the one in the smallest gap that fits."""
    lows, highs = self._forbidden(buffer)
    alignment = int(self._table.alignments[buffer])
    order = np.argsort(lows, kind="stable")
    tops = np.maximum.accumulate(np.append(0, highs[order]))
    tops = -(-tops // alignment) * alignment
    rooms = lows[order] - tops[:-1]
    fits = np.flatnonzero(rooms >= 0)
    if not len(fits):
      return int(tops[-1])
    chosen = fits[0] if fit == "first" else fits[np.argmin(rooms[fits])]
    return int(tops[chosen])

  def _forbidden(self, buffer: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns open ranges in which the buffer's offset cannot be.

    A piece meets a placed one if it begins below its top and ends above its
    bottom; ranges that end at or below zero say nothing.
    """
    table = self._table
    all_lows, all_highs = [], []
    for piece in table.pieces_of(buffer):
      meets = self._placed & (table.starts < table.ends[piece])
      others = np.flatnonzero(meets & (table.ends > table.starts[piece]))
      base = self.offsets[table.owners[others]]
      all_lows.append(base + table.lows[others] - table.highs[piece])
      all_highs.append(base + table.highs[others] - table.lows[piece])
    lows, highs = np.concatenate(all_lows), np.concatenate(all_highs)
    return lows[highs > 0], highs[highs > 0]
