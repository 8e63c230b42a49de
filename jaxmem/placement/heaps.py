"""Placers that go through the buffers once: by size, as a pyramid, as XLA."""

from __future__ import annotations

import numpy as np
from jaxmem_hlo.assignment import packing

from jaxmem.placement.fit import Shelf
from jaxmem.placement.search import PlacementSearch
from jaxmem.placement.table import Table


def try_by_size(search: PlacementSearch) -> None:
  """Places buffers by falling size, each into the smallest gap that fits.

  The usual allocator of inference runtimes (Pisarchyk and Lee, 2020).
  """
  order = search.table.static_orders["size"].tolist()
  offsets = Shelf(search.table).place(order, "best")
  search.offer(offsets, "greedy_by_size best")


def try_pyramid(search: PlacementSearch) -> None:
  """Stacks nested buffers (OLLA's Algorithm 5), then fits in the rest by size.

  They go straight on top of each other, unless something fixed is in the way.
  """
  shelf = Shelf(search.table)
  stacked = nested(search.table)
  shelf.place(stacked, "first")
  rest = search.table.static_orders["size"]
  rest = rest[~np.isin(rest, stacked)].tolist()
  search.offer(shelf.place(rest, "best"), "pyramid")


def nested(table: Table) -> list[int]:
  """Returns the buffers of OLLA's pyramid, from the bottom to the top.

  In a train step, what is defined first in the forward pass dies last in the
  backward pass, so that live ranges nest. Each next buffer is the longest-lived
  one inside the live range of the one below it (Steiner et al., 2022).
  """
  used, starts, ends = table.spans
  order = np.lexsort((starts, -table.sizes_bytes[used], starts - ends))
  stacked: list[int] = []
  start, end = 0, table.num_sections
  for i in order.tolist():
    # Those before it in the order that did not nest never will: the range
    # only shrinks.
    if starts[i] >= start and ends[i] <= end:
      stacked.append(int(used[i]))
      start, end = int(starts[i]), int(ends[i])
  return stacked


def try_xla_heap(search: PlacementSearch) -> None:
  """Packs by size and by duration, as XLA does; the lower one counts.

  XLA knows no windows: all of a buffer is taken while any of it is. Of several
  alignments, the largest counts.

  Raises:
    ValueError: If a buffer has a fixed offset.
  """
  table = search.table
  for index in np.flatnonzero(table.fixed >= 0)[:1].tolist():
    name = table.problem.buffers[index].name
    raise ValueError(f"XLA's heap cannot fix offsets, but {name!r} has one.")
  alignment = int(np.lcm.reduce(table.alignments))
  blocks = []
  for i in np.unique(table.owners).tolist():
    pieces = table.pieces_of(i)
    times = [(int(table.starts[p]), int(table.ends[p]) - 1) for p in pieces]
    size = -(-int(table.sizes_bytes[i]) // table.unit)
    blocks.append(packing.Block(i, size, times))
  _, packed = packing.pack(blocks, alignment)
  offsets = np.zeros(table.num_buffers, np.int64)
  offsets[[b.key for b in blocks]] = packed
  search.offer(offsets, "xla_heap")
