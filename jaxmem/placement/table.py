"""A placement problem as arrays, in the coarsest units that lose nothing.

Times become sections, in which nothing starts or ends. Bytes become multiples
of a unit: any placement can be pushed down until every offset is zero or right
above another buffer, so the greatest common divisor of sizes (rounded up to the
alignment), windows, fixed offsets and alignments will do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from jaxmem.placement.problem import Buffer, Problem


class Table:
  """The pieces of all buffers: rectangles in time and space.

  A buffer without gaps is one piece; one without bytes has none. Arrays of
  pieces are parallel and in units; those of buffers have an entry for each.

  Attributes:
    problem: The problem.
    unit: Bytes per unit.
    owners: int64 `[num_pieces]`, ascending: index of each piece's buffer.
    starts: int64 `[num_pieces]`: first section.
    ends: int64 `[num_pieces]`: one past the last section.
    lows: int64 `[num_pieces]`: first unit, from the start of the buffer.
    highs: int64 `[num_pieces]`: one past the last unit.
    slack_bytes: int64 `[num_pieces]`: what was added in rounding up.
    sizes_bytes: int64 `[num_buffers]`.
    alignments: int64 `[num_buffers]`, in units, at least 1.
    fixed: int64 `[num_buffers]`, in units, -1 where free.
    num_sections: Number of sections.
  """

  def __init__(self, problem: Problem):
    self.problem = problem
    rows = [
      (i, *piece) for i, b in enumerate(problem.buffers) for piece in _pieces(b)
    ]
    pieces = np.array(rows, np.int64).reshape(-1, 5)
    self.owners = pieces[:, 0].copy()
    times = np.unique(pieces[:, 1:3])
    self.starts = np.searchsorted(times, pieces[:, 1]).astype(np.int64)
    self.ends = np.searchsorted(times, pieces[:, 2]).astype(np.int64)
    self.num_sections = max(len(times) - 1, 0)
    buffers = problem.buffers
    self.sizes_bytes = np.array([b.size_bytes for b in buffers], np.int64)
    alignments = np.array([b.alignment_bytes for b in buffers], np.int64)
    fixed = np.array(
      [-1 if b.offset_bytes is None else b.offset_bytes for b in buffers],
      np.int64,
    )
    lows, highs = _rounded(pieces[:, 3], pieces[:, 4], alignments)
    self.unit = _unit(
      np.concatenate([lows, highs, fixed[fixed > 0]]), alignments
    )
    self.lows, self.highs = lows // self.unit, highs // self.unit
    self.slack_bytes = highs - pieces[:, 4]
    self.alignments = np.maximum(alignments // self.unit, 1)
    self.fixed = np.where(fixed < 0, -1, fixed // self.unit)

  @property
  def num_buffers(self) -> int:
    """Number of buffers."""
    return len(self.sizes_bytes)

  @functools.cached_property
  def is_plain(self) -> bool:
    """Whether all buffers are free, and may begin at any unit.

    Each is one piece then, of the same index.
    """
    is_whole = len(self.owners) == self.num_buffers and not self.lows.any()
    is_free = bool((self.fixed < 0).all())
    return is_whole and is_free and int(self.alignments.max()) < 2

  @functools.cached_property
  def first_piece(self) -> np.ndarray:
    """int64 `[num_buffers + 1]`: where each buffer's pieces begin."""
    return np.searchsorted(self.owners, np.arange(self.num_buffers + 1))

  def pieces_of(self, buffer: int) -> range:
    """Returns the indices of a buffer's pieces."""
    return range(*self.first_piece[buffer : buffer + 2].tolist())

  @functools.cached_property
  def live(self) -> np.ndarray:
    """int64 `[num_sections]`: units taken in each section."""
    change = np.zeros(self.num_sections + 1, np.int64)
    np.add.at(change, self.starts, self.highs - self.lows)
    np.add.at(change, self.ends, self.lows - self.highs)
    return np.cumsum(change)[:-1]

  @functools.cached_property
  def peaks(self) -> np.ndarray:
    """int64 `[num_pieces]`: units live in each piece's fullest section."""
    if not len(self.owners):
      return np.zeros(0, np.int64)
    bounds = np.stack([self.starts, self.ends], axis=1).ravel()
    return np.maximum.reduceat(np.append(self.live, 0), bounds)[::2]

  def live_in(self, section: int) -> np.ndarray:
    """Returns whether each piece is live in a section, `[num_pieces]`."""
    return (self.starts <= section) & (self.ends > section)

  def meets(self, piece: int) -> np.ndarray:
    """Returns whether each piece is live while another is, `[num_pieces]`."""
    starts, ends = self.starts, self.ends
    return (starts < ends[piece]) & (ends > starts[piece])

  @functools.cached_property
  def max_live_bytes(self) -> int:
    """No placement has a lower height.

    In a section, each buffer but the topmost is followed by what the alignment
    of the next one wastes.
    """
    bound = 0
    fullest = np.flatnonzero(self.live == self.live.max(initial=0))
    for section in fullest.tolist():
      here = self.live_in(section)
      slack = int(self.slack_bytes[here].max(initial=0))
      bound = max(bound, int(self.live[section]) * self.unit - slack)
    is_fixed = self.fixed >= 0
    tops = self.fixed[is_fixed] * self.unit + self.sizes_bytes[is_fixed]
    sizes = self.sizes_bytes
    return max(bound, int(tops.max(initial=0)), int(sizes.max(initial=0)))

  def limits(self, capacity_bytes: int) -> np.ndarray:
    """Returns the highest offset of each buffer, in units; maybe negative."""
    return (capacity_bytes - self.sizes_bytes) // self.unit

  def maximal_sections(self) -> np.ndarray:
    """Returns the sections whose live pieces are not all live in another."""
    begins = np.zeros(self.num_sections + 1, bool)
    ends = np.zeros(self.num_sections + 1, bool)
    begins[self.starts] = True
    ends[self.ends] = True
    # The last beginning and the last end, up to and including each section.
    index = np.arange(self.num_sections)
    last_begin = np.maximum.accumulate(np.where(begins[:-1], index, -1))
    earlier_end = np.maximum.accumulate(np.where(ends[:-1], index, -1))
    return np.flatnonzero(ends[1:] & (last_begin >= earlier_end))

  def cliques(self) -> Iterator[list[int]]:
    """Yields the pieces that are live in each of these sections."""
    for section in self.maximal_sections().tolist():
      yield np.flatnonzero(self.live_in(section)).tolist()

  @functools.cached_property
  def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The buffers that have pieces, and their first and past the last section.

    Each int64, and as many as there are such buffers.
    """
    first = self.first_piece
    used = np.flatnonzero(first[1:] > first[:-1])
    # Pieces of a buffer ascend in time.
    return used, self.starts[first[used]], self.ends[first[used + 1] - 1]

  @functools.cached_property
  def static_orders(self) -> dict[str, np.ndarray]:
    """Orders of the buffers that have pieces: hard ones first, ties by index.

    Each is a permutation, int64; the first ones place best most often.
    MiniMalloc's three (Moffitt, ASPLOS 2023) compare, in turn, the total of
    live bytes in the buffer's fullest section (T), its width in time (W) and
    its area in space and time (A), all descending.
    """
    used, starts, ends = self.spans
    widths = ends - starts
    sizes = self.sizes_bytes[used] // self.unit
    # An area may not fit 64 bits.
    areas = (self.highs - self.lows) * (self.ends - self.starts).astype(float)
    areas = np.bincount(self.owners, areas, self.num_buffers)[used]
    totals = np.zeros(self.num_buffers, np.int64)
    np.maximum.at(totals, self.owners, self.peaks)
    totals = totals[used]
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


def _pieces(buffer: Buffer) -> list[tuple[int, int, int, int]]:
  """Returns a buffer's pieces as (lower, upper, low byte, high byte)."""
  pieces = []
  time = buffer.lower
  for gap in buffer.gaps:
    pieces.append((time, gap.lower, 0, buffer.size_bytes))
    if gap.window is not None:
      pieces.append((gap.lower, gap.upper, *gap.window))
    time = gap.upper
  pieces.append((time, buffer.upper, 0, buffer.size_bytes))
  return [p for p in pieces if p[0] < p[1] and p[2] < p[3]]


def _rounded(
  lows: np.ndarray, highs: np.ndarray, alignments: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Rounds the ends of pieces up, if all begin at multiples."""
  common = int(np.gcd.reduce(alignments))
  if (lows % common).any():
    return lows, highs
  return lows, -(-highs // common) * common


def _unit(lengths: np.ndarray, alignments: np.ndarray) -> int:
  unit = int(np.gcd.reduce(lengths)) if len(lengths) else 0
  before = -1
  while unit != before:
    before = unit
    # An alignment that divides the unit is kept by itself.
    for alignment in np.unique(alignments).tolist():
      if unit % alignment:
        unit = math.gcd(unit, alignment)
  return max(unit, 1)
