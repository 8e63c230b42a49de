"""The lowest-floor decoder: places whatever can lie lowest, next.

The floor of a buffer is the lowest offset above all placed buffers that it
meets. Buffers are placed by rising floor, so that the arena fills like a
Tetris board; the order decides between equal floors only, but that is enough
to make very different placements.

A buffer that ends above the goal was placed too late. `iterate` moves it, and
now and then a random one, towards the front and decodes again: a cheap local
search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jaxmem.placement.fit import Shelf
from jaxmem.placement.search import PlacementSearch
from jaxmem.placement.table import Table

# The floor of a buffer that is placed: above every other.
_DONE = np.iinfo(np.int64).max
# Pieces compared in all decodes together: about two seconds.
_MAX_COMPARISONS = 200_000_000
_MAX_DECODES = 100
# How often a move is for a buffer that ends above the goal, not for any one.
_CHANCE_TO_MOVE_LATE = 0.6
# It moves to the front by this part of the order, on average.
_MEAN_MOVE = 1 / 4
# How many any buffers move at once, at most.
_MAX_MOVED = 3
# Bytes above the goal count in the highest piece so many times more than their
# area does.
_HEIGHT_WEIGHT = 10


def decode(table: Table, order: np.ndarray) -> np.ndarray:
  """Places all buffers.

  Args:
    table: The problem.
    order: int64, the buffers that have pieces; decides between equal floors.

  Returns:
    Offsets, int64 `[num_buffers]`, in units.
  """
  offsets = np.maximum(table.fixed, 0)
  if table.is_plain:
    _decode_plain(table, order, offsets)
  else:
    _decode_any(table, order[table.fixed[order] < 0], offsets)
  return offsets


def _decode_plain(table: Table, order: np.ndarray, offsets: np.ndarray) -> None:
  """A few operations on arrays for each buffer."""
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
  ranks = rank[table.owners]
  alignments = table.alignments[order]
  # A rising floor has to jump over the fixed buffers.
  ranges = []
  if (table.fixed >= 0).any():
    fixed = Shelf(table)
    ranges = [sorted(fixed.forbidden(b).T.tolist()) for b in order.tolist()]
  floors = np.zeros(len(order), np.int64)
  raised = np.arange(len(order))
  for _ in range(len(order)):
    for j in raised.tolist() if ranges else ():
      floors[j] = _lifted(int(floors[j]), ranges[j], int(alignments[j]))
    i = int(floors.argmin())
    buffer, offset = int(order[i]), int(floors[i])
    offsets[buffer] = offset
    floors[i] = _DONE
    before = floors.copy()
    for piece in table.pieces_of(buffer):
      meets = table.meets(piece) & (ranks >= 0)
      tops = offset + table.highs[piece] - table.lows[meets]
      np.maximum.at(floors, ranks[meets], tops)
    raised = np.flatnonzero(floors > before)
    floors[raised] = -(-floors[raised] // alignments[raised])
    floors[raised] *= alignments[raised]


def _lifted(floor: int, ranges: Sequence[Sequence[int]], alignment: int) -> int:
  """Returns the lowest offset from `floor` on that is in none of the ranges."""
  for low, high in ranges:
    if floor <= low:
      break
    floor = max(floor, -(-high // alignment) * alignment)
  return floor


def try_floors(
  search: PlacementSearch, names: Iterable[str] | None = None
) -> None:
  """Decodes static orders, one after another.

  Args:
    search: Takes the placements.
    names: Of the orders; all of them by default.
  """
  orders = search.table.static_orders
  for name in names or orders:
    if search.is_done:
      return
    offsets = decode(search.table, orders[name])
    search.offer(offsets, f"lowest_floor {name}")


def iterate(search: PlacementSearch, max_decodes: int = _MAX_DECODES) -> None:
  """Improves the best static order step by step.

  Args:
    search: Takes the placements.
    max_decodes: How many perturbed orders to decode; fewer of large problems.
  """
  table = search.table
  generator = np.random.default_rng(0)
  orders = list(table.static_orders.values())
  placed = [decode(table, order) for order in orders]
  for offsets in placed:
    search.offer(offsets, "iterated")
  cost, best = min((_cost(search, o), i) for i, o in enumerate(placed))
  order, offsets = orders[best], placed[best]
  num_comparisons = max(len(order) * len(table.owners), 1)
  for _ in range(min(max_decodes, _MAX_COMPARISONS // num_comparisons)):
    if search.is_done:
      return
    moved = _perturbed(search, order, offsets, generator)
    found = decode(table, moved)
    found_cost = _cost(search, found)
    search.offer(found, "iterated")
    if found_cost <= cost:
      cost, order, offsets = found_cost, moved, found


def _cost(search: PlacementSearch, offsets: np.ndarray) -> float:
  """What stands out above the goal: its area, and its height."""
  table = search.table
  goal = search.goal_bytes // table.unit
  tops = offsets[table.owners] + table.highs
  excess = np.maximum(tops - goal, 0).astype(float)
  area = float(excess @ (table.ends - table.starts))
  return area + _HEIGHT_WEIGHT * float(excess.max(initial=0))


def _perturbed(
  search: PlacementSearch,
  order: np.ndarray,
  offsets: np.ndarray,
  generator: np.random.Generator,
) -> np.ndarray:
  count = len(order)
  rank = np.arange(count, dtype=float)
  tops = offsets[order] * search.table.unit + search.table.sizes_bytes[order]
  late = np.flatnonzero(tops > search.goal_bytes)
  if len(late) and generator.random() < _CHANCE_TO_MOVE_LATE:
    chosen = generator.choice(late)
    rank[chosen] -= generator.exponential(_MEAN_MOVE * count)
  else:
    num_moved = generator.integers(1, _MAX_MOVED + 1)
    moved = generator.integers(0, count, num_moved)
    rank[moved] = generator.uniform(-1, count, len(moved))
  return order[np.argsort(rank, kind="stable")]
