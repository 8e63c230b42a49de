"""The lowest-floor decoder, iterated over perturbed orders.

A buffer that ends above the goal was placed too late. Moving it, and now and
then a random one, towards the front and decoding again is a cheap local search.
"""

from __future__ import annotations

import numpy as np

from jaxmem.placement.lowest_floor import decode
from jaxmem.placement.orders import static_orders
from jaxmem.placement.search import PlacementSearch

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


def iterate(search: PlacementSearch, max_decodes: int = _MAX_DECODES) -> None:
  """Improves the best static order step by step.

  Args:
    search: Takes the placements.
    max_decodes: How many perturbed orders to decode; fewer of large problems.
  """
  table = search.table
  generator = np.random.default_rng(0)
  orders = list(static_orders(table).values())
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
  return float(
    excess @ (table.ends - table.starts)
    + _HEIGHT_WEIGHT * excess.max(initial=0)
  )


def _perturbed(
  search: PlacementSearch,
  order: np.ndarray,
  offsets: np.ndarray,
  generator: np.random.Generator,
) -> np.ndarray:
  rank = np.arange(len(order), dtype=float)
  tops = offsets[order] * search.table.unit + search.table.sizes_bytes[order]
  late = np.flatnonzero(tops > search.goal_bytes)
  if len(late) and generator.random() < _CHANCE_TO_MOVE_LATE:
    rank[generator.choice(late)] -= generator.exponential(
      _MEAN_MOVE * len(order)
    )
  else:
    moved = generator.integers(
      0, len(order), generator.integers(1, _MAX_MOVED + 1)
    )
    rank[moved] = generator.uniform(-1, len(order), len(moved))
  return order[np.argsort(rank, kind="stable")]
