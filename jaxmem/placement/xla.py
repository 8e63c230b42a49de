"""XLA's own heap: what it makes of the same live ranges."""

from __future__ import annotations

import numpy as np
from jaxmem_hlo.assignment import packing

from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import Search
from jaxmem.placement.table import Table


def xla_heap(problem: Problem, capacity: int | None = None) -> Solution:
  """Packs by size and by duration, as XLA does; the lower one counts.

  XLA knows no windows: all of a buffer is taken while any of it is.

  Args:
    problem: The buffers. With several alignments, the largest counts.
    capacity: Ignored: there is nothing to stop early.

  Returns:
    The placement; maybe above the capacity.

  Raises:
    ValueError: If a buffer has a fixed offset.
  """
  for buffer in problem.buffers:
    if buffer.offset_bytes is not None:
      raise ValueError(
        f"XLA's heap cannot fix offsets, but {buffer.name!r} has one."
      )
  search = Search(problem, capacity)
  search.offer(pack(search.table), "xla_heap")
  return search.solution()


def pack(table: Table) -> np.ndarray:
  """Returns the offsets, in units."""
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
  return offsets
