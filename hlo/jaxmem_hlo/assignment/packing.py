"""XLA's heap: where it places buffers of known live ranges.

Buffers are placed one after another, largest (or longest-lived) first, each
into the smallest gap that fits between the already placed buffers it meets in
time, at the lowest address on ties.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxmem_hlo.buffers import join_ranges


@dataclasses.dataclass(slots=True)
class Block:
  """Something to place: one address range over one or more time ranges.

  Attributes:
    key: Orders blocks that are alike otherwise.
    size_bytes: Bytes to reserve.
    times: Inclusive (start, end) pairs; the first is the block's own, the
      others belong to values that were placed on top of it.
  """

  key: int
  size_bytes: int
  times: list[tuple[int, int]]


def round_up(value: int, multiple: int) -> int:
  """Returns the smallest multiple that is at least `value`."""
  return -(-value // multiple) * multiple


def pack(
  blocks: Sequence[Block],
  alignment_bytes: int,
  limit_bytes: int | None = None,
) -> tuple[int, list[int]]:
  """Places blocks as XLA does: by size and by duration, the better counts.

  Args:
    blocks: Blocks of at least one byte.
    alignment_bytes: Every offset is a multiple of it.
    limit_bytes: Height beyond which nobody cares how high the heap is.

  Returns:
    The height of the heap in bytes, and the offset of each block. Where the
    heap is higher than the limit, both are unfinished: the height is only some
    number above the limit.
  """
  by_size = sorted(
    range(len(blocks)),
    key=lambda i: (
      -blocks[i].size_bytes,
      blocks[i].times[0][0] - blocks[i].times[0][1],
      blocks[i].key,
    ),
  )
  by_duration = sorted(
    range(len(blocks)),
    key=lambda i: (
      min(t[0] for t in blocks[i].times) - max(t[1] for t in blocks[i].times),
      -blocks[i].size_bytes,
      blocks[i].key,
    ),
  )
  if limit_bytes is None:
    limit_bytes = sum(round_up(b.size_bytes, alignment_bytes) for b in blocks)
  best = _place(blocks, by_size, alignment_bytes, limit_bytes)
  if best[0] <= _max_live_bytes(blocks):
    return best
  # The second packing only counts if it is lower than the first.
  other = _place(
    blocks, by_duration, alignment_bytes, min(limit_bytes, best[0] - 1)
  )
  return min(best, other, key=lambda result: result[0])


def _max_live_bytes(blocks: Sequence[Block]) -> int:
  """Returns the most bytes live at once: no packing is lower."""
  spans = [(b.size_bytes, *t) for b in blocks for t in join_ranges(b.times)]
  sizes, starts, ends = np.array(spans, np.int64).reshape(-1, 3).T
  change = np.zeros(ends.max(initial=0) + 2, np.int64)
  np.add.at(change, starts, sizes)
  np.subtract.at(change, ends + 1, sizes)
  return int(change.cumsum().max())


def _place(
  blocks: Sequence[Block],
  order: Sequence[int],
  alignment_bytes: int,
  limit_bytes: int,
) -> tuple[int, list[int]]:
  num_ranges = sum(len(b.times) for b in blocks)
  starts = np.empty(num_ranges, np.int64)
  ends = np.empty(num_ranges, np.int64)
  lows = np.empty(num_ranges, np.int64)
  highs = np.empty(num_ranges, np.int64)
  count = 0
  height = 0
  offsets = [0] * len(blocks)
  for i in order:
    block = blocks[i]
    meets = np.zeros(count, bool)
    for start, end in block.times:
      meets |= (starts[:count] <= end) & (ends[:count] >= start)
    taken = meets.nonzero()[0]
    offset = _best_gap(lows[taken], highs[taken], block.size_bytes)
    offsets[i] = offset
    height = max(height, offset + block.size_bytes)
    if height > limit_bytes:
      break
    top = round_up(offset + block.size_bytes, alignment_bytes)
    for start, end in block.times:
      starts[count], ends[count] = start, end
      lows[count], highs[count] = offset, top
      count += 1
  return height, offsets


def _best_gap(lows: np.ndarray, highs: np.ndarray, size: int) -> int:
  """Returns the offset of the smallest gap of at least `size` bytes."""
  if not lows.size:
    return 0
  order = lows.argsort(kind="stable")
  lows = lows[order]
  tops = np.maximum.accumulate(highs[order])
  bottoms = np.empty_like(tops)
  bottoms[0] = 0
  bottoms[1:] = tops[:-1]
  gaps = lows - bottoms
  fits = (gaps >= size).nonzero()[0]
  if not fits.size:
    return int(tops[-1])
  return int(bottoms[fits[gaps[fits].argmin()]])
