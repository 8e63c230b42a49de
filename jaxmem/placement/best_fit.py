"""Greedy by size: the largest buffer first, into the smallest gap that fits."""

from __future__ import annotations

from jaxmem.placement.fit import Shelf
from jaxmem.placement.orders import static_orders
from jaxmem.placement.search import PlacementSearch


def try_by_size(search: PlacementSearch) -> None:
  """Places buffers by falling size, each into the smallest gap that fits.

  The usual allocator of inference runtimes (Pisarchyk and Lee, 2020).
  """
  order = static_orders(search.table)["size"].tolist()
  offsets = Shelf(search.table).place(order, "best")
  search.offer(offsets, "greedy_by_size best")
