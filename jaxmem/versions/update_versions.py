"""Versions whose loops update what they would have stacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxmem.cost import Device
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.version import (
  MOST_BYTES,
  Version,
  updates_of,
  with_updates,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVersion:
  """A version whose loops update something, before XLA has seen it.

  Attributes:
    version: The version.
    base: What it was made of.
    fits: Whether it fits by estimate.
    schedule_s: An estimate of what its schedule takes, in seconds.
  """

  version: Version
  base: ComparedVersion
  fits: bool
  schedule_s: float

  @classmethod
  def of(
    cls, base: ComparedVersion, save_bytes: int, device: Device
  ) -> UpdateVersion | None:
    """Lets loops of a version update something.

    What that takes is known: new values are written twice, and read once more.

    Args:
      base: The version.
      save_bytes: How much less is to be stacked, by all devices.
      device: The device planned for.

    Returns:
      The version; None if no loop can.
    """
    planner = base.planner
    updated = updates_of(base.version, save_bytes, device.platform)
    if not updated.names:
      return None
    parts = device.num_devices
    saved_bytes = updated.saved_bytes // parts
    temp_bytes = planner.total_bytes - planner.fixed_bytes - saved_bytes
    copies_s = (
      2 * updated.copied_bytes / parts / device.rates.memory_bytes_per_s
    )
    is_all = updated.saved_bytes < save_bytes
    return cls(
      version=with_updates(
        base.version,
        updated,
        MOST_BYTES if is_all else save_bytes,
        device,
      ),
      base=base,
      fits=saved_bytes >= base.excess_bytes,
      schedule_s=planner.step_s + copies_s + device.mapping_s(temp_bytes),
    )

  def with_more(self, save_bytes: int, device: Device) -> UpdateVersion | None:
    """Returns the same with more updates; None if there are none left.

    Args:
      save_bytes: How much less is to be stacked besides, by all devices.
      device: The device planned for.
    """
    asked_bytes = self.version.updated_bytes + save_bytes
    more = UpdateVersion.of(self.base, asked_bytes, device)
    if more is None or more.version.num_stacks == self.version.num_stacks:
      return None
    return more


def updated_versions(
  tried: Iterable[ComparedVersion], device: Device
) -> list[UpdateVersion]:
  """Returns what loops could update so that versions fit, the fastest first.

  Where temporaries are mapped anew in each run, all that they could, too. If no
  version would fit, the one with which the smallest takes still less.

  Args:
    tried: Versions that were compiled up to their schedule.
    device: The device planned for.
  """
  found = []
  for each in sorted(tried, key=lambda t: t.excess_bytes):
    excess_bytes = device.num_devices * each.excess_bytes
    amounts = [excess_bytes] if excess_bytes > 0 else []
    if each.mapping_s > 0.0:
      amounts.append(MOST_BYTES)
    found += [UpdateVersion.of(each, amount, device) for amount in amounts]
  possible = [each for each in found if each is not None]
  fitting = [each for each in possible if each.fits]
  return sorted(fitting, key=lambda each: each.schedule_s) or possible[:1]
