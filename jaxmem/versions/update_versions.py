"""Versions whose loops update what they would have stacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxmem.cost import Device
from jaxmem.versions import scan
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.version import Version, with_updates


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVersion:
  """A version whose loops update something, before XLA has seen it.

  Attributes:
    version: The version.
    missing_bytes: What it takes above the limit by estimate; 0 if it fits.
    schedule_s: An estimate of what its schedule takes, in seconds.
  """

  version: Version
  missing_bytes: int
  schedule_s: float


def updated_versions(
  tried: Iterable[ComparedVersion], device: Device
) -> list[UpdateVersion]:
  """Returns what loops could update so that versions fit, the best first.

  What that takes is known before: new values are written twice, and read once
  more.

  Args:
    tried: Versions that were compiled up to their schedule.
    device: The device planned for.
  """
  parts, found = device.num_devices, []
  for each in tried:
    if each.fits:
      continue
    step, save_bytes = each.version.step, parts * each.excess_bytes
    updated = scan.update_in_loops(step.jaxpr, step.donated, save_bytes)
    if not updated.names:
      continue
    copied_bytes = 2 * updated.copied_bytes / parts
    saved_bytes = updated.saved_bytes // parts
    found.append(
      UpdateVersion(
        version=with_updates(each.version, updated, save_bytes),
        missing_bytes=max(0, each.excess_bytes - saved_bytes),
        schedule_s=each.planner.step_s
        + each.mapping_s
        + copied_bytes / device.rates.memory_bytes_per_s,
      )
    )
  return sorted(found, key=lambda u: (u.missing_bytes, u.schedule_s))
