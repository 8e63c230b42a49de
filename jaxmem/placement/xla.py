"""XLA's own heap: what it makes of the same live ranges."""

from __future__ import annotations

import numpy as np
from jaxmem_hlo.assignment import packing

from jaxmem.placement.search import PlacementSearch


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
