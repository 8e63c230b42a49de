"""Dynamic allocators: device memory taken while the step runs.

`replay` plays a trace to a heap, call by call. A heap takes segments from a
`Device`, which keeps the books, and may keep what is freed for later calls.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from jaxmem.experimental.allocators.trace import (
  OutOfMemoryError,
  Placement,
  Result,
  Segment,
  Trace,
)

Fit = Literal["best", "first"]


class Device:
  """Device memory: segments taken and given back, up to a limit.

  Attributes:
    name: The allocator's name, for messages.
    limit_bytes: What may be held at once; None if unlimited.
    reserved_bytes: What is held now.
    now: The first event that sees what is taken or given back now.
  """

  def __init__(self, name: str, num_events: int, limit_bytes: int | None):
    self.name = name
    self.limit_bytes = limit_bytes
    self.reserved_bytes = 0
    self.now = 0
    self._num_events = num_events
    self._segments: list[Segment] = []

  def take(self, size_bytes: int, buffer: str) -> int:
    """Takes a segment, for a buffer; returns its number.

    Raises:
      OutOfMemoryError: If the limit does not allow it.
    """
    if (
      self.limit_bytes is not None
      and self.reserved_bytes + size_bytes > self.limit_bytes
    ):
      raise OutOfMemoryError(
        self.name,
        buffer,
        requested_bytes=size_bytes,
        reserved_bytes=self.reserved_bytes,
        limit_bytes=self.limit_bytes,
      )
    self.reserved_bytes += size_bytes
    self._segments.append(Segment(size_bytes, self.now, self._num_events))
    return len(self._segments) - 1

  def give_back(self, segment: int) -> None:
    """Gives a segment back."""
    taken = self._segments[segment]
    self.reserved_bytes -= taken.size_bytes
    self._segments[segment] = taken._replace(end=self.now)

  @property
  def segments(self) -> tuple[Segment, ...]:
    """All segments that were ever taken."""
    return tuple(self._segments)


class Heap(Protocol):
  """Where a dynamic allocator finds memory."""

  def allocate(self, name: str, size_bytes: int) -> tuple[Placement, int]:
    """Finds memory for a buffer of that name.

    Returns:
      Where, and how many bytes are used up.

    Raises:
      OutOfMemoryError: If the device has no more.
    """
    ...

  def free(self, place: Placement, used_bytes: int) -> None:
    """Takes back what `allocate` returned."""
    ...


class Collector(Protocol):
  """Decides when what is dead is freed."""

  def add(self, buffer: int, size_bytes: int, step: int) -> None:
    """Tells that a buffer has died at a step."""
    ...

  def due(self, step: int) -> Sequence[int]:
    """Returns, once, the dead buffers that are to be freed at a step."""
    ...


class FreeBytes:
  """The free bytes of some segments, in blocks that are as large as can be."""

  def __init__(self):
    # Each segment has its free ranges as (offset, size), ascending, no two
    # adjacent.
    self._blocks: dict[int, list[tuple[int, int]]] = {}

  def add(self, segment: int, offset: int, size_bytes: int) -> None:
    """Adds free bytes, and joins them with those next to them."""
    blocks = self._blocks.setdefault(segment, [])
    index = bisect.bisect(blocks, (offset, 0))
    low, high = offset, offset + size_bytes
    if index < len(blocks) and blocks[index][0] == high:
      high += blocks.pop(index)[1]
    if index and sum(blocks[index - 1]) == low:
      index -= 1
      low = blocks.pop(index)[0]
    blocks.insert(index, (low, high - low))

  def take(self, size_bytes: int, fit: Fit) -> Placement | None:
    """Takes the begin of the first block that is large enough, or smallest.

    Blocks are in the order of their segments, then of their offsets.
    """
    found: tuple[int, int, int] | None = None
    for segment, blocks in self._blocks.items():
      for index, (_, size) in enumerate(blocks):
        if size < size_bytes or (found is not None and size >= found[0]):
          continue
        found = (size, segment, index)
        if fit == "first":
          return self._split(segment, index, size_bytes)
    return None if found is None else self._split(*found[1:], size_bytes)

  def _split(self, segment: int, index: int, size_bytes: int) -> Placement:
    offset, size = self._blocks[segment].pop(index)
    if size > size_bytes:
      rest = (offset + size_bytes, size - size_bytes)
      self._blocks[segment].insert(index, rest)
    return Placement(segment, offset)


def replay(
  trace: Trace,
  device: Device,
  heap: Heap,
  *,
  over: Mapping[int, int],
  collector: Collector,
) -> Result:
  """Plays a trace to a heap.

  Args:
    trace: The step.
    device: What the heap takes its segments from.
    heap: Serves the calls.
    over: Output -> operand which it is written over: it inherits its memory.
    collector: Says when to free.

  Raises:
    OutOfMemoryError: If the device has no more memory.
  """
  placements: list[Placement | None] = [None] * len(trace.buffers)
  used: dict[int, int] = {}
  given = set(over.values())
  used_bytes = peak_bytes = 0
  for index, event in enumerate(trace.events):
    buffer, is_free = event.buffer, event.kind == "free"
    device.now = index + is_free
    if is_free and buffer not in given:
      collector.add(buffer, event.size_bytes, event.step)
    for freed in collector.due(event.step):
      place = placements[freed]
      assert place is not None
      heap.free(place, used[freed])
      used_bytes -= used.pop(freed)
    if is_free:
      continue
    if buffer in over:
      placements[buffer] = placements[over[buffer]]
      used[buffer] = used.pop(over[buffer])
    else:
      name = trace.buffers[buffer].name
      placements[buffer], used[buffer] = heap.allocate(name, event.size_bytes)
      used_bytes += used[buffer]
      peak_bytes = max(peak_bytes, used_bytes)
  return Result(
    allocator=device.name,
    placements=tuple(placements),
    segments=device.segments,
    peak_bytes=peak_bytes,
  )
