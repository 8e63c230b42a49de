"""Versions that recompute blocks, and what each takes before XLA sees it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from jaxmem.cost import Device
from jaxmem.planning import TUNING
from jaxmem.versions import blocks
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.rules import RECOMPUTE_SCOPE
from jaxmem.versions.version import Version, recomputing_blocks

_TUNING = TUNING.versions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockVersion:
  """A version that recomputes blocks, before XLA has seen it.

  Attributes:
    version: The version.
    recomputed: What it recomputes.
    added_s: An estimate of the seconds that it adds, without edits.
  """

  version: Version
  recomputed: blocks.Recomputed
  added_s: float = math.inf

  @property
  def hopeful_s(self) -> float:
    """Seconds that it will hardly add less than."""
    return min(self.added_s, _TUNING.hopeful_share * self.added_s)

  @classmethod
  def every(
    cls, base: Version, step: blocks.BlockStep, device: Device
  ) -> BlockVersion:
    """Returns the version that recomputes each block on its own."""
    choice = blocks.BlockChoice(num_groups=step.blocks.number)
    recomputed = step.recompute(choice, device.rates)
    return cls(
      version=recomputing_blocks(base, choice, recomputed, device),
      recomputed=recomputed,
    )


def amounts_to_keep(
  step: blocks.BlockStep,
  every: ComparedVersion,
  device: Device,
  limit_bytes: int,
) -> list[int]:
  """Returns what versions are to keep at most, in bytes.

  Args:
    step: The step as it is written, with its blocks.
    every: The version that keeps nothing.
    device: The device planned for.
    limit_bytes: Most bytes of the whole program.
  """
  moved = every.hidden_bytes
  room = limit_bytes - every.planner.total_bytes
  if room < 0:
    # Only what is moved may be kept.
    return [room + moved] if room + moved > 0 else []
  if device.platform != "cpu":
    # There, more that is kept is more that is mapped.
    room = every.planner.kept_room(limit_bytes, RECOMPUTE_SCOPE)
  # The planner mostly finds room for one thing more, or the host has it.
  amounts = [room + max(moved, step.blocks.crossing_bytes), room]
  temp_bytes = every.planner.total_bytes - every.planner.fixed_bytes
  unmapped = device.most_kept_bytes - temp_bytes
  if unmapped > 0 and device.mapping_s(temp_bytes + room):
    # Where that takes longer than it saves, there is what needs no mapping.
    amounts.append(unmapped)
  return amounts


def keeping(
  base: Version,
  step: blocks.BlockStep,
  first: blocks.BlockChoice,
  nothing: blocks.Recomputed,
  *,
  amounts: Iterable[int],
  added_s: float,
  device: Device,
) -> Iterator[BlockVersion]:
  """Yields versions that keep something.

  Args:
    base: What they are made of.
    step: The same step, with its blocks.
    first: How the version recomputes them that keeps nothing.
    nothing: What it recomputes.
    amounts: What each may keep at most, in bytes.
    added_s: What that version adds according to its schedule, in seconds.
    device: The device planned for.
  """
  seen = {0}
  for keep_bytes in amounts:
    choice = dataclasses.replace(first, keep_bytes=keep_bytes)
    kept = step.recompute(choice, device.rates)
    if kept.kept_bytes in seen:
      continue
    seen.add(kept.kept_bytes)
    yield BlockVersion(
      version=recomputing_blocks(base, choice, kept, device),
      recomputed=kept,
      added_s=_added_seconds(added_s, nothing, kept),
    )


def _added_seconds(
  added_s: float, nothing: blocks.Recomputed, kept: blocks.Recomputed
) -> float:
  """Estimates what blocks add to a step that keep something.

  Args:
    added_s: What they add according to the schedule if they keep nothing.
    nothing: What is recomputed then.
    kept: What is recomputed if something is kept.
  """
  most_s = nothing.again_s
  if added_s <= 0.0 or not most_s:
    # XLA fuses better what is cut into blocks; that says nothing of products.
    return added_s - (most_s - kept.again_s)
  in_proportion = _equation_seconds(kept) / _equation_seconds(nothing)
  # Equations that took longer by themselves than all do in the schedule say
  # nothing but proportions.
  saved_s = (most_s - kept.again_s) * min(1.0, added_s / most_s)
  return min(added_s * in_proportion, added_s - saved_s)


def _equation_seconds(recomputed: blocks.Recomputed) -> float:
  """Estimates from its equations what a step takes that runs again."""
  return recomputed.again_s + _TUNING.fused_weight * recomputed.fused_s
