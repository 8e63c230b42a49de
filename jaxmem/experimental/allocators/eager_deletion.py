"""PaddlePaddle's garbage collection: when what is dead is freed.

"Memory Allocation and Optimization", PaddlePaddle's guide, section 2.1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

from jaxmem.experimental.allocators.trace import Trace

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagerDeletion:
  """When to free.

  Attributes:
    threshold_gb: FLAGS_eager_delete_tensor_gb, in GiB. Garbage is freed, all at
      once, as soon as there is so much; at 0, at once; below 0, never.
    fraction: FLAGS_memory_fraction_of_eager_deletion: the share of the
      variables, the largest first, that are freed at all; from 0 to 1.
    fast: FLAGS_fast_eager_deletion_mode: frees without waiting for the kernels.
      Else a variable is garbage only when the kernels that read it have ended.
    kernels_ahead: For how many further nodes the host has allocated memory when
      a kernel ends; counts if not fast.
  """

  threshold_gb: float = 0.0
  fraction: float = 1.0
  fast: bool = True
  kernels_ahead: int = 1

  def __post_init__(self):
    if not 0 <= self.fraction <= 1:
      raise ValueError(f"fraction must be from 0 to 1, got {self.fraction}.")
    if self.kernels_ahead < 0:
      raise ValueError(
        f"kernels_ahead must not be negative, got {self.kernels_ahead}."
      )

  @property
  def name(self) -> str:
    """What differs from the defaults."""
    parts = []
    if self.threshold_gb < 0 or not self.fraction:
      parts.append("no eager deletion")
    else:
      if self.threshold_gb:
        parts.append(f"threshold {self.threshold_gb:g} GB")
      if self.fraction < 1:
        parts.append(f"largest {self.fraction:.0%} deleted")
    if not self.fast:
      parts.append("not fast")
    return ", ".join(parts)

  def collector(self, trace: Trace, given: Collection[int] = ()) -> Garbage:
    """Returns what collects the garbage of one run of a trace.

    Args:
      trace: The step.
      given: Buffers that pass their memory on, and so are never garbage.
    """
    return Garbage(self, _collected(self, trace, given))


class Garbage:
  """What is dead and not freed yet; see `allocators.heap.Collector`."""

  def __init__(self, settings: EagerDeletion, collected: frozenset[int]):
    self._settings = settings
    self._collected = collected
    # Kernels may still read these: (step, buffer, size), free from that step.
    self._running: list[tuple[int, int, int]] = []
    self._garbage: list[int] = []
    self._garbage_bytes = 0

  def add(self, buffer: int, size_bytes: int, step: int) -> None:
    """Tells that a buffer has died at a step."""
    if self._settings.threshold_gb >= 0 and buffer in self._collected:
      delay = 0 if self._settings.fast else 1 + self._settings.kernels_ahead
      self._running.append((step + delay, buffer, size_bytes))

  def due(self, step: int) -> Sequence[int]:
    """Returns, once, the dead buffers that are to be freed at a step."""
    for entry in [e for e in self._running if e[0] <= step]:
      self._running.remove(entry)
      self._garbage.append(entry[1])
      self._garbage_bytes += entry[2]
    if self._garbage_bytes < self._settings.threshold_gb * _GIB:
      return ()
    freed, self._garbage, self._garbage_bytes = self._garbage, [], 0
    return freed


def _collected(
  settings: EagerDeletion, trace: Trace, given: Collection[int]
) -> frozenset[int]:
  sizes = {e.buffer: e.size_bytes for e in trace.events if e.kind == "free"}
  variables = sorted(
    (b for b in sizes if b not in given), key=lambda b: (-sizes[b], b)
  )
  return frozenset(variables[: math.ceil(settings.fraction * len(variables))])
