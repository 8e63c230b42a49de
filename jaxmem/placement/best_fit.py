"""Greedy by size: the largest buffer first, into the smallest gap that fits."""

from __future__ import annotations

import numpy as np

from jaxmem.placement.fit import Fit, Shelf
from jaxmem.placement.orders import static_orders
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import Search
from jaxmem.placement.table import Table


def greedy_by_size(
  problem: Problem, capacity: int | None = None, *, fit: Fit = "best"
) -> Solution:
  """Places buffers by falling size.

  The usual allocator of inference runtimes (Pisarchyk and Lee, 2020).

  Args:
    problem: The buffers.
    capacity: Ignored: there is nothing to stop early.
    fit: "best" takes the smallest gap, "first" the lowest.

  Returns:
    The placement; maybe above the capacity.
  """
  search = Search(problem, capacity)
  search.offer(by_size(search.table, fit), f"greedy_by_size {fit}")
  return search.solution()


def by_size(table: Table, fit: Fit = "best") -> np.ndarray:
  """Returns the offsets, in units."""
  order = static_orders(table)["size"].tolist()
  return Shelf(table).place(order, fit)
