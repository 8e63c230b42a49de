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

from jaxmem.compiler import ScheduleCapture, Step
from jaxmem.cost import Device
from jaxmem.planning import TUNING, Request
from jaxmem.versions import blocks, scan
from jaxmem.versions.scan import SaveBytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a version was made of a step, to make it again without any search.

  Attributes:
    choice: How blocks are recomputed; None for not at all.
    answers: What was chosen to be dropped on the way; empty for the step as it
      is written, and where blocks keep nothing.
  """

  choice: blocks.BlockChoice | None
  answers: tuple[tuple[int, ...], ...]

  def follow(self, step: Step, device: Device) -> Version:
    """Makes the version again.

    Args:
      step: The step as it is written.
      device: The device planned for.
    """
    if self.choice is not None:
      found = blocks.BlockStep(step.jaxpr, num_devices=device.num_devices)
      recomputed = found.recompute(self.choice, device.rates, self.answers)
      return recomputing_blocks(step, self.choice, recomputed)
    if self.answers:
      return stacking_less(step, "all", device, self.answers)
    return Version(step=step)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
  """A version of a step.

  Attributes:
    step: The step with the jaxpr of this version.
    choice: How blocks are recomputed; None for not at all.
    num_residuals: How many arrays do not wait for the backward pass any more.
    saved_bytes: Their bytes, of one device if there are several.
    extra_s: Estimated seconds that the step takes more; negative where storing
      took longer than making them again.
    dropped: Names of those that loops do not stack.
    answers: What was chosen on the way; see `Recipe`.
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
  xla_bytes: int | None = None

  @property
  def recipe(self) -> Recipe:
    """How to make it again."""
    return Recipe(choice=self.choice, answers=self.answers)


def stacking_less(
  step: Step,
  save_bytes: SaveBytes,
  device: Device,
  known: Sequence[tuple[int, ...]] = (),
) -> Version:
  """Returns the version of a step whose loops stack so much less.

  Args:
    step: The step as it is written.
    save_bytes: What loops do not stack on a device; see `scan.rewrite_step`.
    device: The device planned for.
    known: What was chosen before, likewise.
  """
  parts = device.num_devices
  rewritten = scan.rewrite_step(
    step.jaxpr,
    save_bytes if save_bytes == "all" else parts * save_bytes,
    device.rates,
    # On CPU the results of a step do not change by a bit. A GPU may choose
    # other kernels anyway, and memory traffic is what its time goes to.
    keep_bits=device.platform == "cpu",
    known=known,
  )
  return Version(
    step=step.with_jaxpr(rewritten.closed_jaxpr),
    num_residuals=len(rewritten.dropped),
    saved_bytes=rewritten.saved_bytes // parts,
    dropped=rewritten.dropped,
    answers=rewritten.answers,
  )


def recomputing_blocks(
  step: Step,
  choice: blocks.BlockChoice,
  recomputed: blocks.Recomputed,
) -> Version:
  """Returns the version of a step that recomputes blocks."""
  return Version(
    step=step.with_jaxpr(recomputed.closed_jaxpr),
    choice=choice,
    num_residuals=recomputed.num_dropped,
    saved_bytes=recomputed.dropped_bytes,
    answers=recomputed.answers,
  )


def small_versions(
  written: Step,
  schedules: ScheduleCapture,
  request: Request,
  totals: Sequence[int],
) -> Iterator[Version]:
  """Yields the versions that may take the fewest bytes.

  The step as it is written is the first, and has to be compiled before the next
  is asked for: until then it is not known for which platform.

  Args:
    written: The step as it is written.
    schedules: Compiles versions of it.
    request: Options and target.
    totals: Bytes of each version without edits, once it was yielded.
  """
  yield Version(step=written)
  device = request.device(schedules.platform)
  if scan.droppable_bytes(written.jaxpr):
    yield stacking_less(written, "all", device)
  step = blocks.BlockStep(written.jaxpr, num_devices=device.num_devices)
  number = step.blocks.number
  for num_groups in dict.fromkeys((number, (number + 1) // 2)):
    saved_bytes = (number - num_groups) * step.blocks.crossing_bytes
    if num_groups and (
      num_groups == number
      or saved_bytes >= TUNING.versions.least_joined_share * totals[-1]
    ):
      choice = blocks.BlockChoice(
        num_groups=num_groups, gathers_again=device.num_devices > 1
      )
      recomputed = step.recompute(choice, device.rates)
      yield recomputing_blocks(written, choice, recomputed)
