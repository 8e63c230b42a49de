"""Static orders of buffers: the ones that are hard to place come first.

MiniMalloc's three (Moffitt, ASPLOS 2023) compare, in turn, the total of live
bytes in the buffer's fullest section (T), its width in time (W) and its area in
space and time (A), all descending.
"""

from __future__ import annotations

import numpy as np

from jaxmem.placement.table import Table


def static_orders(table: Table) -> dict[str, np.ndarray]:
  """Returns orders of the buffers that have pieces, by name.

  Args:
    table: The problem.

  Returns:
    int64 arrays of indices, a permutation each, ties by index. The first ones
    place best most often.
  """
  used, starts, widths = spans(table)
  sizes = table.sizes_bytes[used] // table.unit
  areas = _areas(table)[used]
  totals = _totals(table)[used]
  # np.lexsort takes the last key first.
  keys = {
    "TWA": (-areas, -widths, -totals),
    "TAW": (-widths, -areas, -totals),
    "start": (-sizes, starts),
    "WAT": (-totals, -areas, -widths),
    "area": (-sizes, -areas),
    "size": (starts, -widths, -sizes),
  }
  return {name: used[np.lexsort(key)] for name, key in keys.items()}


def spans(table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the buffers that have pieces, their first section and width."""
  first = table.first_piece
  used = np.flatnonzero(first[1:] > first[:-1])
  # Pieces of a buffer ascend in time.
  starts = table.starts[first[used]]
  ends = table.ends[first[used + 1] - 1]
  return used, starts, ends - starts


def _areas(table: Table) -> np.ndarray:
  """float64 `[num_buffers]`: the area may not fit 64 bits."""
  areas = (table.highs - table.lows) * (table.ends - table.starts).astype(float)
  return np.bincount(table.owners, areas, table.num_buffers)


def _totals(table: Table) -> np.ndarray:
  """int64 `[num_buffers]`: units live in the fullest section of each."""
  bounds = np.stack([table.starts, table.ends], axis=1).ravel()
  live = np.append(table.live, 0)
  peaks = np.maximum.reduceat(live, bounds)[::2] if len(bounds) else live[:0]
  totals = np.zeros(table.num_buffers, np.int64)
  np.maximum.at(totals, table.owners, peaks)
  return totals
