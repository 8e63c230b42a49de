"""OLLA's preplacement: activations as a pyramid (Steiner et al., 2022).

In a train step, what is defined first in the forward pass dies last in the
backward pass, so that live ranges nest. Each next buffer of the pyramid is the
longest-lived one inside the live range of the one below it.
"""

from __future__ import annotations

import numpy as np

from jaxmem.placement.fit import Shelf
from jaxmem.placement.orders import spans, static_orders
from jaxmem.placement.search import PlacementSearch
from jaxmem.placement.table import Table


def try_pyramid(search: PlacementSearch) -> None:
  """Stacks nested buffers (Algorithm 5), then fits in the others by size."""
  table = search.table
  shelf = Shelf(table)
  stacked = nested(table)
  for buffer in stacked:
    # Straight on top of the last one, unless something fixed is in the way.
    shelf.place([buffer], "first")
  rest = static_orders(table)["size"]
  rest = rest[~np.isin(rest, stacked)].tolist()
  search.offer(shelf.place(rest, "best"), "pyramid")


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
