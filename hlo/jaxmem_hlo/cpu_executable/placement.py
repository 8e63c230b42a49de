"""What may be placed in an executable's arena, and what a placement must keep.

`arena_items` finds the items; `executable` writes where they were put.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

# Vector loads of the kernels, and of the libraries they call, rely on it.
ALIGNMENT_BYTES = 64

# A range is half-open, [start, end), on the flattened schedule.
Range = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementPart:
  """Values at one address inside an item.

  Attributes:
    offset_bytes: Distance from the start of the item.
    size_bytes: Bytes.
    live_ranges: Disjoint half-open ranges, ascending.
    buffer_ids: XLA's ids of the values.
  """

  offset_bytes: int
  size_bytes: int
  live_ranges: tuple[Range, ...]
  buffer_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementItem:
  """Something to place: values that keep their distance from each other.

  Two items may share bytes where none of their live ranges meet. It is enough
  to treat an item as one block of `size_bytes`; `parts` say more precisely
  which bytes are taken when.

  Attributes:
    name: The instruction that defines the first value.
    size_bytes: From the item's first to its last byte.
    live_ranges: When any part is live: disjoint half-open ranges on the
      flattened schedule, ascending.
    offset_bytes: Where XLA placed it.
    parts: What is frozen together, by offset.
  """

  name: str
  size_bytes: int
  live_ranges: tuple[Range, ...]
  offset_bytes: int
  parts: tuple[PlacementPart, ...]


def check_placement(
  items: Sequence[PlacementItem], offsets: Sequence[int], size_bytes: int
) -> None:
  """Checks that a placement keeps live values apart.

  Args:
    items: The items of the arena.
    offsets: The offset of each, in bytes.
    size_bytes: Size of the arena.

  Raises:
    ValueError: Naming the items that overlap, or the one that is out of bounds
      or not aligned.
  """
  if len(offsets) != len(items):
    raise ValueError(f"Expected {len(items)} offsets, got {len(offsets)}.")
  for item, offset in zip(items, offsets, strict=True):
    if offset % ALIGNMENT_BYTES:
      raise ValueError(
        f"The offset of {item.name} must be a multiple of {ALIGNMENT_BYTES},"
        f" got {offset}."
      )
    if offset < 0 or offset + item.size_bytes > size_bytes:
      raise ValueError(
        f"{item.name} needs {item.size_bytes} bytes at offset {offset}, which"
        f" is outside the arena of {size_bytes} bytes."
      )
  rows = [
    (i, offset + part.offset_bytes, part.size_bytes, *span)
    for i, (item, offset) in enumerate(zip(items, offsets, strict=True))
    for part in item.parts
    for span in part.live_ranges
  ]
  for i, j in find_conflicts(rows):
    if i != j:
      raise ValueError(
        f"{items[i].name} at offset {offsets[i]} and {items[j].name} at offset"
        f" {offsets[j]} share bytes while both are live."
      )


def find_conflicts(
  rows: Sequence[tuple[int, int, int, int, int]],
) -> Iterator[tuple[int, int]]:
  """Yields pairs of keys whose rows share bytes and time.

  Args:
    rows: (key, offset, size, start, end) with half-open [start, end).
  """
  if not rows:
    return
  table = np.array(rows, np.int64)
  table = table[np.argsort(table[:, 1], kind="stable")]
  keys, lows, sizes, starts, ends = table.T
  reach = np.searchsorted(lows, lows + sizes)
  for i in range(len(table)):
    later = slice(i + 1, max(reach[i], i + 1))
    meets = (starts[later] < ends[i]) & (starts[i] < ends[later])
    for j in np.flatnonzero(meets):
      yield int(keys[i]), int(keys[i + 1 + j])
