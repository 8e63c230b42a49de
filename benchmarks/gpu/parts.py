"""All parts, in the order of what matters most."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu import (
  auto,
  autotune,
  batch,
  fragmentation,
  kernels,
  offload,
  parity,
  peak,
  rates,
  step_kernels,
  step_time,
)
from benchmarks.gpu.case import Part

ALL: Sequence[Part] = (
  parity.PART,
  peak.PART,
  step_time.PART,
  offload.PART,
  rates.PART,
  kernels.PART,
  step_kernels.PART,
  batch.PART,
  auto.PART,
  fragmentation.PART,
  autotune.PART,
)


def by_name(name: str) -> Part:
  """Returns a part.

  Raises:
    ValueError: If there is none of this name.
  """
  for part in ALL:
    if part.name == name:
      return part
  names = ", ".join(part.name for part in ALL)
  raise ValueError(f"part must be one of {names}, got {name!r}.")
