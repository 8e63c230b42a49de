"""OLLA's preplacement: activations as a pyramid (Steiner et al., 2022).

In a train step, what is defined first in the forward pass dies last in the
backward pass, so that live ranges nest. Each next buffer of the pyramid is the
longest-lived one inside the live range of the one below it.
"""

from __future__ import annotations

import numpy as np

from jaxmem.placement.fit import Shelf
from jaxmem.placement.orders import spans, static_orders
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import Search
from jaxmem.placement.table import Table


def pyramid(problem: Problem, capacity: int | None = None) -> Solution:
  """Stacks nested buffers (Algorithm 5), then fits in the others by size.

  Args:
    problem: The buffers.
    capacity: Ignored: there is nothing to stop early.

  Returns:
    The placement; maybe above the capacity.
  """
  search = Search(problem, capacity)
  search.offer(stack(search.table), "pyramid")
  return search.solution()


def stack(table: Table) -> np.ndarray:
  """Returns the offsets, in units."""
  shelf = Shelf(table)
  stacked = nested(table)
  for buffer in stacked:
    # Straight on top of the last one, unless something fixed is in the way.
    shelf.place([buffer], "first")
  rest = static_orders(table)["size"]
  return shelf.place(rest[~np.isin(rest, stacked)].tolist(), "best")


def nested(table: Table) -> list[int]:
  """Returns the buffers of the pyramid, from the bottom to the top."""
  used, starts, widths = spans(table)
  ends = starts + widths
  sizes = table.sizes_bytes[used]
  order = np.lexsort((starts, -sizes, -widths))
  stacked: list[int] = []
  start, end = 0, table.num_sections
  for i in order.tolist():
    # Those before it in the order that did not nest never will: the range
    # only shrinks.
    if starts[i] >= start and ends[i] <= end:
      stacked.append(int(used[i]))
      start, end = int(starts[i]), int(ends[i])
  return stacked
