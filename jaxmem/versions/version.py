"""Versions of a step: as it is written, and what it is changed to.

Some of what a step holds for its backward pass is out of a planner's reach once
XLA has scheduled the program: what a loop stacks is one buffer, and what lies
between two blocks XLA may have fused, so that it is no buffer at all. So
the step is changed before XLA sees it: loops stack less (`versions.scan`), or
blocks are recomputed (`versions.blocks`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from jax.extend import core

from jaxmem.compiler import ScheduleCapture, Step
from jaxmem.cost import Device
from jaxmem.planning import TUNING, Request
from jaxmem.versions import blocks, scan
from jaxmem.versions.materialize import materialized
from jaxmem.versions.scan import SaveBytes

# More than loops stack; a number, to be written to a file.
MOST_BYTES = 2**62


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a version was made of a step, to make it again without any search.

  Attributes:
    choice: How blocks are recomputed; None for not at all.
    answers: What was chosen to be dropped on the way; empty for the step as it
      is written, and where blocks keep nothing.
    is_narrow: Whether loops stack values as they were computed.
    updated_bytes: How much less loops stack at least, since they update what
      they made themselves; 0 for nothing.
  """

  choice: blocks.BlockChoice | None
  answers: tuple[tuple[int, ...], ...]
  is_narrow: bool
  updated_bytes: int

  def follow(self, step: Step, device: Device) -> Version:
    """Makes the version again.

    Args:
      step: The step as it is written.
      device: The device planned for.
    """
    version = Version(step=step)
    if self.is_narrow:
      version = stacking_narrow(version)
    if self.choice is not None:
      jaxpr = version.step.jaxpr
      found = blocks.BlockStep(jaxpr, num_devices=device.num_devices)
      recomputed = found.recompute(self.choice, device.rates, self.answers)
      version = recomputing_blocks(version, self.choice, recomputed, device)
    elif self.answers:
      version = stacking_less(version, "all", device, self.answers)
    if self.updated_bytes:
      version = updating_in_loops(version, self.updated_bytes, device)
    return version


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
  """A version of a step.

  Attributes:
    step: The step with the jaxpr of this version.
    choice: How blocks are recomputed; None for not at all.
    num_residuals: How many arrays do not wait for the backward pass any more.
    saved_bytes: Their bytes, of one device if there are several.
    extra_s: Estimated seconds that the step takes more; negative where storing
      took longer than making them again. What loops stack less is estimated
      from the jaxpr, until it is known what XLA makes of it.
    dropped: Names of those that loops do not stack, and of what they stack in
      their place.
    answers: What was chosen on the way; see `Recipe`.
    is_narrow: Likewise.
    updated_bytes: Likewise.
    num_stacks: How many stacks of loops take fewer bytes, or none, for these.
    xla_bytes: Of the whole program by XLA's own plan of the step as it is
      written, as predicted; None where nothing was compared.
  """

  step: Step = dataclasses.field(compare=False, repr=False)
  choice: blocks.BlockChoice | None = None
  num_residuals: int = 0
  saved_bytes: int = 0
  extra_s: float = 0.0
  dropped: tuple[str, ...] = ()
  answers: tuple[tuple[int, ...], ...] = ()
  is_narrow: bool = False
  updated_bytes: int = 0
  num_stacks: int = 0
  xla_bytes: int | None = None

  @property
  def recipe(self) -> Recipe:
    """How to make it again."""
    return Recipe(
      choice=self.choice,
      answers=self.answers,
      is_narrow=self.is_narrow,
      updated_bytes=self.updated_bytes,
    )


def base_of(written: Version, platform: str) -> Version:
  """Returns what the other versions of a step are made of.

  Args:
    written: The step as it is written.
    platform: "cpu" or "cuda". On CPUs the results of a step do not change by a
      bit, and XLA may have left a rounding out.
  """
  return stacking_narrow(written) if platform == "cuda" else written


def may_update(base: Version, platform: str) -> bool:
  """Whether loops could update anything that they stack."""
  return bool(updates_of(base, MOST_BYTES, platform).names)


def stacking_narrow(base: Version) -> Version:
  """Returns a version whose loops stack values as they were computed.

  Args:
    base: What it is made of; it is returned if that changes nothing.
  """
  narrowed = scan.narrow_stacks(base.step.jaxpr)
  if not narrowed.num_stacks:
    return base
  return dataclasses.replace(
    base,
    step=base.step.with_jaxpr(narrowed.closed_jaxpr),
    is_narrow=True,
    num_stacks=base.num_stacks + narrowed.num_stacks,
  )


def updating_in_loops(
  base: Version, save_bytes: int, device: Device
) -> Version:
  """Returns a version whose loops update what they would have stacked.

  Args:
    base: What it is made of; it is returned if no loop can.
    save_bytes: How much less is to be stacked at least, by all devices.
    device: The device planned for.
  """
  updated = updates_of(base, save_bytes, device.platform)
  if not updated.names:
    return base
  return with_updates(base, updated, save_bytes, device)


def updates_of(base: Version, save_bytes: int, platform: str) -> scan.Updated:
  """Returns what loops of a version could update; see `updating_in_loops`."""
  return scan.update_in_loops(
    base.step.jaxpr,
    base.step.donated,
    save_bytes,
    keep_bits=platform == "cpu",
  )


def with_updates(
  base: Version, updated: scan.Updated, save_bytes: int, device: Device
) -> Version:
  """Returns a version with updates that were made of its step's jaxpr."""
  return dataclasses.replace(
    base,
    step=_changed(base.step, updated.closed_jaxpr, device),
    updated_bytes=save_bytes,
    num_stacks=base.num_stacks + len(updated.names),
  )


def stacking_less(
  base: Version,
  save_bytes: SaveBytes,
  device: Device,
  known: Sequence[tuple[int, ...]] = (),
) -> Version:
  """Returns a version whose loops stack so much less.

  Args:
    base: What it is made of.
    save_bytes: What loops do not stack on a device; see `scan.rewrite_step`.
    device: The device planned for.
    known: What was chosen before, likewise.
  """
  parts = device.num_devices
  rewritten = scan.rewrite_step(
    base.step.jaxpr,
    parts * save_bytes if isinstance(save_bytes, int) else save_bytes,
    device.rates,
    # On CPU the results of a step do not change by a bit. A GPU may choose
    # other kernels anyway, and memory traffic is what its time goes to.
    keep_bits=device.platform == "cpu",
    known=known,
  )
  return dataclasses.replace(
    base,
    step=_changed(base.step, rewritten.closed_jaxpr, device),
    num_residuals=len(rewritten.dropped),
    saved_bytes=rewritten.saved_bytes // parts,
    dropped=(*rewritten.dropped, *rewritten.stacked),
    extra_s=base.extra_s + rewritten.again_s / parts,
    answers=rewritten.answers,
  )


def recomputing_blocks(
  base: Version,
  choice: blocks.BlockChoice,
  recomputed: blocks.Recomputed,
  device: Device,
) -> Version:
  """Returns a version that recomputes blocks of what it is made of."""
  return dataclasses.replace(
    base,
    step=_changed(base.step, recomputed.closed_jaxpr, device),
    choice=choice,
    num_residuals=recomputed.num_dropped,
    saved_bytes=recomputed.dropped_bytes,
    answers=recomputed.answers,
  )


def _changed(step: Step, jaxpr: core.Jaxpr, device: Device) -> Step:
  """Returns a step with another jaxpr, as suits a device.

  Where a host stands for several devices, bits count, and time does not.
  """
  if device.platform == "cpu" and device.num_devices == 1:
    jaxpr = materialized(jaxpr)
  return step.with_jaxpr(jaxpr)


def may_read_again(device: Device) -> bool:
  """Whether a backward pass that reads values anew may hold less at a time.

  On a CPU that took as much in all of eleven steps but two, and there 2 % less.
  """
  return device.platform != "cpu" or device.num_devices > 1


def small_versions(
  base: Version,
  written: Version,
  schedules: ScheduleCapture,
  request: Request,
  totals: Sequence[int],
) -> Iterator[Version]:
  """Yields the versions that may take the fewest bytes.

  The step as it is written is the first, and has to be compiled before the next
  is asked for: until then it is not known for which platform.

  Args:
    base: What versions are made of.
    written: The step as it is written.
    schedules: Compiles versions of it.
    request: Options and target.
    totals: Bytes of each version without edits, once it was yielded.
  """
  yield written
  device = request.device(schedules.platform)
  smallest = base
  if scan.droppable_bytes(base.step.jaxpr):
    smallest = stacking_less(base, "all", device)
  if smallest is not written:
    yield smallest
  updated = updating_in_loops(smallest, MOST_BYTES, device)
  if updated is not smallest:
    yield updated
  step = blocks.BlockStep(base.step.jaxpr, num_devices=device.num_devices)
  number = step.blocks.number
  for num_groups in dict.fromkeys((number, (number + 1) // 2)):
    saved_bytes = (number - num_groups) * step.blocks.crossing_bytes
    if num_groups and (
      num_groups == number
      or saved_bytes >= TUNING.versions.least_joined_share * totals[-1]
    ):
      choice = blocks.BlockChoice(
        num_groups=num_groups, reads_again=may_read_again(device)
      )
      recomputed = step.recompute(choice, device.rates)
      yield recomputing_blocks(base, choice, recomputed, device)
