"""The lowest-floor decoder, iterated over perturbed orders.

A buffer that ends above the goal was placed too late. Moving it, and now and
then a random one, towards the front and decoding again is a cheap local search.
"""

from __future__ import annotations

import numpy as np

from jaxmem.placement.lowest_floor import decode
from jaxmem.placement.orders import static_orders
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import Search

# Pieces compared in all decodes together: about two seconds.
_MAX_COMPARISONS = 200_000_000
_MAX_DECODES = 100


def iterated(
  problem: Problem, capacity: int | None = None, *, seed: int = 0
) -> Solution:
  """Improves the best static order step by step.

  Args:
    problem: The buffers.
    capacity: The search stops at this height, in bytes; by default at the
      bytes live at once.
    seed: Of the perturbations.

  Returns:
    The lowest placement; maybe above the capacity.
  """
  search = Search(problem, capacity)
  iterate(search, seed)
  return search.solution()


def iterate(
  search: Search, seed: int = 0, max_decodes: int = _MAX_DECODES
) -> None:
  """Searches on, for a number of decodes that depends on the size only."""
  table = search.table
  generator = np.random.default_rng(seed)
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


def _cost(search: Search, offsets: np.ndarray) -> float:
  """What stands out above the goal: its area, and its height ten times."""
  table = search.table
  goal = search.goal_bytes // table.unit
  tops = offsets[table.owners] + table.highs
  excess = np.maximum(tops - goal, 0).astype(float)
  return float(
    excess @ (table.ends - table.starts) + 10 * excess.max(initial=0)
  )


def _perturbed(
  search: Search,
  order: np.ndarray,
  offsets: np.ndarray,
  generator: np.random.Generator,
) -> np.ndarray:
  rank = np.arange(len(order), dtype=float)
  tops = offsets[order] * search.table.unit + search.table.sizes_bytes[order]
  late = np.flatnonzero(tops > search.goal_bytes)
  if len(late) and generator.random() < 0.6:
    rank[generator.choice(late)] -= generator.exponential(len(order) / 4)
  else:
    moved = generator.integers(0, len(order), generator.integers(1, 4))
    rank[moved] = generator.uniform(-1, len(order), len(moved))
  return order[np.argsort(rank, kind="stable")]
