"""PyTorch's caching allocator: what OLLA's experiments compare with.

The rules of c10/cuda/CUDACachingAllocator.cpp, as of version 1.11 and with its
default settings, for one stream. Requests of at most 1 MiB are served from
segments of 2 MiB, those below 10 MiB from segments of 20 MiB; larger ones get a
segment of their own, in steps of 2 MiB. The smallest free block of the pool
that is large enough is taken, and split if enough remains. What is freed joins
its free neighbours, and goes back to the device only when that is full.
"""

from __future__ import annotations

import bisect
import dataclasses

from jaxmem.experimental.allocators.eager_deletion import EagerDeletion
from jaxmem.experimental.allocators.heap import Device, replay
from jaxmem.experimental.allocators.in_place import hand_overs
from jaxmem.experimental.allocators.trace import (
  OutOfMemoryError,
  Placement,
  Result,
  Trace,
)

_MIB = 1 << 20
# Every block is a multiple of it.
BLOCK_BYTES = 512
# Requests of at most SMALL_BYTES share segments of SMALL_SEGMENT_BYTES.
SMALL_BYTES = _MIB
SMALL_SEGMENT_BYTES = 2 * _MIB
# Requests of so many bytes or more have a segment of their own.
HUGE_BYTES = 10 * _MIB
LARGE_SEGMENT_BYTES = 20 * _MIB
HUGE_STEP_BYTES = 2 * _MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caching:
  """PyTorch's allocator.

  Attributes:
    limit_bytes: The memory of the device; None if unlimited.
    in_place: Whether outputs are written over operands where the graph allows
      it. Not by default: a PyTorch operator allocates its result.
  """

  limit_bytes: int | None = None
  in_place: bool = False

  @property
  def name(self) -> str:
    """For example "pytorch caching"."""
    return f"pytorch caching{', in-place' if self.in_place else ''}"

  def run(self, trace: Trace) -> Result:
    """Serves a trace; see `Allocator`."""
    device = Device(self.name, len(trace.events), self.limit_bytes)
    over = hand_overs(trace) if self.in_place else {}
    return replay(
      trace,
      device,
      CachingHeap(device),
      over=over,
      collector=EagerDeletion().collector(trace, set(over.values())),
    )


class CachingHeap:
  """The two pools of cached blocks.

  Args:
    device: What segments are taken from.
  """

  def __init__(self, device: Device):
    self._device = device
    self._sizes: list[int] = []
    self._small = _Pool()
    self._large = _Pool()

  def allocate(self, name: str, size_bytes: int) -> tuple[Placement, int]:
    """Finds a block; see `Heap`. What is too small to split off is used up."""
    size_bytes = rounded(size_bytes)
    is_small = size_bytes <= SMALL_BYTES
    pool = self._small if is_small else self._large
    found = pool.take(size_bytes)
    if found is None:
      taken = segment_bytes(size_bytes)
      found = Placement(self._take(taken, name), 0), taken
    (segment, offset), block_bytes = found
    rest = block_bytes - size_bytes
    if rest >= BLOCK_BYTES if is_small else rest > SMALL_BYTES:
      pool.add(segment, offset + size_bytes, rest)
      block_bytes = size_bytes
    return Placement(segment, offset), block_bytes

  def free(self, place: Placement, used_bytes: int) -> None:
    """Caches a block; see `Heap`."""
    is_small = self._sizes[place.segment] == SMALL_SEGMENT_BYTES
    (self._small if is_small else self._large).add(*place, used_bytes)

  def _take(self, size_bytes: int, name: str) -> int:
    try:
      segment = self._device.take(size_bytes, name)
    except OutOfMemoryError:
      self._give_back()
      segment = self._device.take(size_bytes, name)
    self._sizes.append(size_bytes)
    return segment

  def _give_back(self) -> None:
    """Gives all segments back that are free as a whole."""
    for pool in (self._small, self._large):
      for segment, size_bytes in enumerate(self._sizes):
        if pool.remove(segment, 0, size_bytes):
          self._device.give_back(segment)


class _Pool:
  """Free blocks, by size for finding and by place for joining."""

  def __init__(self):
    # Free blocks are (size, segment, offset), ascending: segments stand in for
    # addresses.
    self._by_size: list[tuple[int, int, int]] = []
    self._starts: dict[tuple[int, int], int] = {}
    self._ends: dict[tuple[int, int], int] = {}

  def take(self, size_bytes: int) -> tuple[Placement, int] | None:
    """Removes the smallest block that is large enough, and says its size."""
    index = bisect.bisect_left(self._by_size, (size_bytes, -1, -1))
    if index == len(self._by_size):
      return None
    size, segment, offset = self._by_size[index]
    self.remove(segment, offset, size)
    return Placement(segment, offset), size

  def add(self, segment: int, offset: int, size_bytes: int) -> None:
    """Adds a block, joined with the free ones before and after it."""
    low, high = offset, offset + size_bytes
    if (segment, high) in self._starts:
      size = self._starts[segment, high]
      self.remove(segment, high, size)
      high += size
    if (segment, low) in self._ends:
      size = self._ends[segment, low]
      self.remove(segment, low - size, size)
      low -= size
    bisect.insort(self._by_size, (high - low, segment, low))
    self._starts[segment, low] = self._ends[segment, high] = high - low

  def remove(self, segment: int, offset: int, size_bytes: int) -> bool:
    """Removes a block; false if it is not there."""
    if self._starts.get((segment, offset)) != size_bytes:
      return False
    del self._starts[segment, offset]
    del self._ends[segment, offset + size_bytes]
    block = (size_bytes, segment, offset)
    self._by_size.pop(bisect.bisect_left(self._by_size, block))
    return True


def rounded(size_bytes: int) -> int:
  """Returns what a request becomes: a positive multiple of 512 bytes."""
  return max(-(-size_bytes // BLOCK_BYTES), 1) * BLOCK_BYTES


def segment_bytes(size_bytes: int) -> int:
  """Returns what is taken from the device for a rounded request."""
  if size_bytes <= SMALL_BYTES:
    return SMALL_SEGMENT_BYTES
  if size_bytes < HUGE_BYTES:
    return LARGE_SEGMENT_BYTES
  return -(-size_bytes // HUGE_STEP_BYTES) * HUGE_STEP_BYTES
