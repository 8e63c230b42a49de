"""PaddlePaddle's allocators: auto-growth, and a chunk taken in advance.

"Memory Allocation and Optimization", PaddlePaddle's guide, sections 1 and 2.
Flags of the guide are named where they have a counterpart.
"""

from __future__ import annotations

import dataclasses

from jaxmem.experimental.allocators.eager_deletion import EagerDeletion
from jaxmem.experimental.allocators.heap import (
  Device,
  Fit,
  FreeBytes,
  Heap,
  replay,
)
from jaxmem.experimental.allocators.in_place import hand_overs
from jaxmem.experimental.allocators.trace import Placement, Result, Trace

_DEFAULT_GC = EagerDeletion()


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoGrowth:
  """FLAGS_allocator_strategy=auto_growth: what is freed is kept for later.

  A request takes a part of a cached block that is large enough; only if there
  is none, memory is taken from the device: exactly what is asked for. Nothing
  is given back. Free blocks side by side become one.

  Attributes:
    fit: Which of the blocks that are large enough: the first, or the smallest.
    alignment_bytes: Requests are rounded up to a multiple.
    limit_bytes: FLAGS_gpu_memory_limit_mb, in bytes; None for no limit.
    in_place: The guide's in-place strategy (2.2).
    garbage: When what is dead is freed (2.1).
  """

  fit: Fit = "first"
  alignment_bytes: int = 1
  limit_bytes: int | None = None
  in_place: bool = True
  garbage: EagerDeletion = _DEFAULT_GC

  @property
  def name(self) -> str:
    """For example "paddle auto-growth, in-place"."""
    best = ", best fit" if self.fit == "best" else ""
    return _name(f"paddle auto-growth{best}", self)

  def run(self, trace: Trace) -> Result:
    """Serves a trace; see `Allocator`."""
    device = Device(self.name, len(trace.events), self.limit_bytes)
    return _run(self, trace, device, _GrowingHeap(self, device))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NaiveBestFit:
  """FLAGS_allocator_strategy=naive_best_fit: a chunk taken in advance.

  The first request that fits a chunk takes one from the device, of a fraction
  of what is available. Requests get the smallest free block of the chunk that
  is large enough; if there is none, of another chunk. What is larger than a
  chunk is taken from the device and given back directly. With a fraction of
  zero, everything is: that shows the true use.

  Attributes:
    available_bytes: Memory of the device when the step begins.
    fraction: FLAGS_fraction_of_gpu_memory_to_use, from 0 to 1.
    alignment_bytes: See `AutoGrowth`.
    limit_bytes: See `AutoGrowth`. The memory of the device is a limit too.
    in_place: See `AutoGrowth`.
    garbage: See `AutoGrowth`.
  """

  available_bytes: int
  fraction: float = 0.92
  alignment_bytes: int = 1
  limit_bytes: int | None = None
  in_place: bool = True
  garbage: EagerDeletion = _DEFAULT_GC

  def __post_init__(self):
    if not 0 <= self.fraction <= 1:
      raise ValueError(f"fraction must be from 0 to 1, got {self.fraction}.")

  @property
  def name(self) -> str:
    """For example "paddle naive best fit, fraction 0.92"."""
    return _name(f"paddle naive best fit, fraction {self.fraction:g}", self)

  @property
  def chunk_bytes(self) -> int:
    """The size of a chunk."""
    return int(self.fraction * self.available_bytes)

  def run(self, trace: Trace) -> Result:
    """Serves a trace; see `Allocator`."""
    limit_bytes = self.available_bytes
    if self.limit_bytes is not None:
      limit_bytes = min(limit_bytes, self.limit_bytes)
    device = Device(self.name, len(trace.events), limit_bytes)
    return _run(self, trace, device, _ChunkHeap(self, device))


_Settings = AutoGrowth | NaiveBestFit


class _GrowingHeap:
  def __init__(self, settings: AutoGrowth, device: Device):
    self._settings = settings
    self._device = device
    self._free = FreeBytes()

  def allocate(self, name: str, size_bytes: int) -> tuple[Placement, int]:
    size_bytes = _rounded(size_bytes, self._settings)
    place = self._free.take(size_bytes, self._settings.fit)
    if place is None:
      place = Placement(self._device.take(size_bytes, name), 0)
    return place, size_bytes

  def free(self, place: Placement, used_bytes: int) -> None:
    self._free.add(*place, used_bytes)


class _ChunkHeap:
  def __init__(self, settings: NaiveBestFit, device: Device):
    self._settings = settings
    self._device = device
    self._free = FreeBytes()

  def allocate(self, name: str, size_bytes: int) -> tuple[Placement, int]:
    size_bytes = _rounded(size_bytes, self._settings)
    chunk_bytes = self._settings.chunk_bytes
    if size_bytes > chunk_bytes:
      return Placement(self._device.take(size_bytes, name), 0), size_bytes
    place = self._free.take(size_bytes, "best")
    if place is None:
      chunk = self._device.take(chunk_bytes, name)
      self._free.add(chunk, 0, chunk_bytes)
      place = self._free.take(size_bytes, "best")
      assert place is not None
    return place, size_bytes

  def free(self, place: Placement, used_bytes: int) -> None:
    if used_bytes > self._settings.chunk_bytes:
      self._device.give_back(place.segment)
    else:
      self._free.add(*place, used_bytes)


def _run(
  settings: _Settings, trace: Trace, device: Device, heap: Heap
) -> Result:
  over = hand_overs(trace) if settings.in_place else {}
  collector = settings.garbage.collector(trace, set(over.values()))
  return replay(trace, device, heap, over=over, collector=collector)


def _rounded(size_bytes: int, settings: _Settings) -> int:
  alignment_bytes = settings.alignment_bytes
  return -(-size_bytes // alignment_bytes) * alignment_bytes


def _name(name: str, settings: _Settings) -> str:
  in_place = ", in-place" if settings.in_place else ""
  garbage = settings.garbage.name
  return f"{name}{in_place}{', ' if garbage else ''}{garbage}"
