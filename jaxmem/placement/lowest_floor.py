"""The lowest-floor decoder: places whatever can lie lowest, next.

The floor of a buffer is the lowest offset above all placed buffers that it
meets. Buffers are placed by rising floor, so that the arena fills like a
Tetris board; the order decides between equal floors only, but that is enough
to make very different placements.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxmem.placement.orders import static_orders
from jaxmem.placement.search import PlacementSearch
from jaxmem.placement.table import Table

# The floor of a buffer that is placed: above every other.
_DONE = np.iinfo(np.int64).max


def decode(table: Table, order: np.ndarray) -> np.ndarray:
  """Places all buffers.

  Args:
    table: The problem.
    order: int64, the buffers that have pieces; decides between equal floors.

  Returns:
    Offsets, int64 `[num_buffers]`, in units.
  """
  is_free = table.fixed[order] < 0
  offsets = np.where(table.fixed < 0, 0, table.fixed)
  order = order[is_free]
  if table.has_one_piece_each and is_free.all() and table.alignments.max() < 2:
    _decode_simple(table, order, offsets)
  else:
    _decode_any(table, order, offsets)
  return offsets


def _decode_simple(
  table: Table, order: np.ndarray, offsets: np.ndarray
) -> None:
  """Whole buffers that may be anywhere: a few operations on arrays each."""
  starts, ends = table.starts[order], table.ends[order]
  sizes = table.highs[order]
  floors = np.zeros(len(order), np.int64)
  columns = (order.tolist(), starts.tolist(), ends.tolist(), sizes.tolist())
  rows = list(zip(*columns, strict=True))
  for _ in rows:
    i = int(floors.argmin())
    buffer, start, end, size = rows[i]
    offset = int(floors[i])
    offsets[buffer] = offset
    floors[i] = _DONE
    raised = (starts < end) & (ends > start) & (floors < offset + size)
    floors[raised] = offset + size


def _decode_any(table: Table, order: np.ndarray, offsets: np.ndarray) -> None:
  rank = np.full(table.num_buffers, -1)
  rank[order] = np.arange(len(order))
  pieces = np.flatnonzero(rank[table.owners] >= 0)
  ranks = rank[table.owners[pieces]]
  starts, ends = table.starts[pieces], table.ends[pieces]
  lows = table.lows[pieces]
  alignments = table.alignments[order]
  obstacles = _Obstacles(table)
  floors = np.array([obstacles.lift(b, 0) for b in order.tolist()], np.int64)
  for _ in range(len(order)):
    i = int(floors.argmin())
    buffer, offset = int(order[i]), int(floors[i])
    offsets[buffer] = offset
    floors[i] = _DONE
    before = floors.copy()
    for piece in table.pieces_of(buffer):
      meets = (starts < table.ends[piece]) & (ends > table.starts[piece])
      tops = offset + table.highs[piece] - lows[meets]
      np.maximum.at(floors, ranks[meets], tops)
    raised = np.flatnonzero(floors > before)
    floors[raised] = -(-floors[raised] // alignments[raised])
    floors[raised] *= alignments[raised]
    for j in raised.tolist() if obstacles.any else ():
      floors[j] = obstacles.lift(int(order[j]), int(floors[j]))


class _Obstacles:
  """The fixed buffers, which a rising floor has to jump over."""

  def __init__(self, table: Table):
    self._table = table
    fixed = table.fixed[table.owners]
    self._pieces = np.flatnonzero(fixed >= 0)
    self._bottoms = (fixed + table.lows)[self._pieces]
    self._tops = (fixed + table.highs)[self._pieces]
    self.any = bool(len(self._pieces))

  def lift(self, buffer: int, floor: int) -> int:
    """Returns the lowest offset, at least `floor`, that meets no obstacle."""
    table = self._table
    alignment = int(table.alignments[buffer])
    moved = self.any
    while moved:
      moved = False
      for piece in table.pieces_of(buffer):
        meets = table.starts[self._pieces] < table.ends[piece]
        meets &= table.ends[self._pieces] > table.starts[piece]
        meets &= self._bottoms < floor + table.highs[piece]
        meets &= self._tops > floor + table.lows[piece]
        if meets.any():
          above = int(self._tops[meets].max() - table.lows[piece])
          floor = -(-above // alignment) * alignment
          moved = True
    return floor


def try_floors(
  search: PlacementSearch, names: Iterable[str] | None = None
) -> None:
  """Decodes static orders, one after another.

  Args:
    search: Takes the placements.
    names: Of the orders; all of them by default.
  """
  orders = static_orders(search.table)
  for name in names or orders:
    if search.is_done:
      return
    offsets = decode(search.table, orders[name])
    search.offer(offsets, f"lowest_floor {name}")
