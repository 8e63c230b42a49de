"""The device that a step runs on: what XLA calls it, and how fast it is."""

from __future__ import annotations

import dataclasses

from jaxmem import targets
from jaxmem.cost.rates import Rates, for_target


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
  """A device to plan for.

  Attributes:
    platform: "cpu" or "cuda": how XLA assigns buffers, and whether values can
      move to the host.
    rates: How fast it computes and copies; estimates of time are made of them.
  """

  platform: str
  rates: Rates


def device_for(target: targets.Target | str | None = None) -> Device:
  """Returns the device that a target describes.

  Args:
    target: What `targets.get` takes: a target or its name, None for the CPU.

  Raises:
    ValueError: If the target is unknown, or neither its description nor a data
      sheet gives a rate.
  """
  target = targets.get(target)
  return Device(platform=target.platform, rates=for_target(target))
