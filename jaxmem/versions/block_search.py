"""Which versions that recompute blocks are compiled for a byte limit."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

from jaxmem.planning import TUNING, Wanted
from jaxmem.versions import blocks
from jaxmem.versions.block_versions import (
  BlockVersion,
  amounts_to_keep,
  keeping,
)
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.tried_versions import TriedVersions
from jaxmem.versions.version import (
  Version,
  may_read_again,
  recomputing_blocks,
)

_TUNING = TUNING.versions


class BlockSearch:
  """Tries versions that recompute the blocks of a step.

  Args:
    versions: What was tried; more is added.
    step: The step that versions are made of, with its blocks.
  """

  def __init__(self, versions: TriedVersions, step: blocks.BlockStep):
    self._versions = versions
    self._step = step

  def run(self, first: BlockVersion | None) -> None:
    """Tries all blocks; then less of them, or several at once.

    All of them are tried even where edits fit for little: a version may be
    faster than the step as it is written, whatever the limit is, and a larger
    limit must not cost more for want of it. Where nothing needs to be edited,
    only if mapping fewer temporaries may save something, or the device waits
    for the host meanwhile. What runs again says nothing then: what is cut into
    blocks XLA may fuse so that it takes less.

    Args:
      first: The version that recomputes every block, if there is one already.
    """
    base = self._versions.base
    if base.fits and not (base.waits or base.planner.may_gain_by_less()):
      return
    if first is None:
      first = BlockVersion.every(
        base.version, self._step, self._versions.device
      )
    recomputed = first.recomputed
    if self._versions.is_fast and not self._versions.is_promising(
      base.planner.step_s + recomputed.again_s,
      base.planner.total_bytes
      - int(_TUNING.usual_dropped_share * recomputed.dropped_bytes),
    ):
      return
    every = self._versions.compile(first.version)
    if every is None:
      return
    if not every.fits and self._is_to_read_again(every):
      # What XLA made of values for the forward pass need not stay.
      choice = blocks.BlockChoice(
        num_groups=self._step.blocks.number, reads_again=True
      )
      recomputed = self._step.recompute(choice, self._versions.device.rates)
      every = self._versions.compile(self._recomputing(choice, recomputed))
      if every is None:
        return
    self._keep(every, recomputed)
    if not every.fits:
      self._join(every, recomputed)

  def _recomputing(
    self, choice: blocks.BlockChoice, recomputed: blocks.Recomputed
  ) -> Version:
    """Returns the version of a choice."""
    versions = self._versions
    return recomputing_blocks(
      versions.base.version, choice, recomputed, versions.device
    )

  def _is_to_read_again(self, every: ComparedVersion) -> bool:
    """Whether to try what makes more again, and so holds less at a time.

    On one device, where nothing is gathered, only if no edits help.
    """
    versions = self._versions
    if versions.device.num_devices > 1:
      return True
    return (
      may_read_again(versions.device)
      and versions.is_promising(every.planner.step_s, versions.limit_bytes)
      and versions.found.sketched_s(every, Wanted(is_any=False)) is None
    )

  def _keep(self, every: ComparedVersion, nothing: blocks.Recomputed) -> None:
    """Lets blocks keep what there is room for, here or on the host.

    Args:
      every: The version that keeps nothing.
      nothing: What it recomputes.
    """
    first, versions = every.version.choice, self._versions
    assert first is not None
    keeping_of = functools.partial(
      keeping,
      *(versions.base.version, self._step, first, nothing),
      added_s=every.version.extra_s,
      device=versions.device,
    )
    amounts = amounts_to_keep(
      self._step, every, versions.device, versions.limit_bytes
    )
    doubt_s = _TUNING.doubt_share * versions.base.planner.step_s
    waiting = keeping_of(amounts=amounts)
    too_large: tuple[BlockVersion, ComparedVersion] | None = None
    kept = next(waiting, None)
    while kept is not None:
      later = None
      if self._is_promising(every, kept, doubt_s):
        if versions.schedules.begins_early:
          later = next(waiting, None)
          for each in filter(None, (kept, later)):
            versions.schedules.begin(each.version.step)
        tried = versions.compile(kept.version)
        if tried is not None:
          # The others take hardly less than estimated if this one does not.
          doubt_s = min(doubt_s, self._spared_s(kept, tried))
        if tried is not None and tried.fits:
          # On GPUs nothing is mapped, and no more choices are made.
          less = [*filter(None, (later, *waiting))] if tried.mapping_s else []
          if less and self._is_promising(every, less[-1], doubt_s):
            # It may keep so little that nothing has to be mapped.
            versions.compile(less[-1].version)
          return
        too_large = tried and (kept, tried)
      kept = later or next(waiting, None)
    room = -every.excess_bytes
    if too_large is not None and room > 0:
      kept, tried = too_large
      self._keep_less(kept, tried, room, keeping_of)

  def _is_promising(
    self, every: ComparedVersion, kept: BlockVersion, doubt_s: float
  ) -> bool:
    """Whether to compile what keeps something.

    Args:
      every: The version that keeps nothing.
      kept: The version.
      doubt_s: Seconds that it may take less than estimated.
    """
    total_bytes = every.planner.total_bytes + kept.recomputed.kept_bytes
    seconds = self._estimated_s(kept) - doubt_s
    return self._versions.is_promising(seconds, total_bytes)

  def _estimated_s(self, kept: BlockVersion) -> float:
    return self._versions.base.planner.step_s + kept.hopeful_s

  def _spared_s(self, kept: BlockVersion, tried: ComparedVersion) -> float:
    """Returns the seconds that a version takes less than estimated."""
    return max(0.0, self._estimated_s(kept) - tried.planner.step_s)

  def _keep_less(
    self,
    kept: BlockVersion,
    tried: ComparedVersion,
    room: int,
    keeping_of: Callable[..., Iterator[BlockVersion]],
  ) -> None:
    """Lets blocks keep less where XLA took more for it than the jaxpr says.

    Only where no edits make up for that: of what loops run, there are none.
    """
    if self._versions.found.sketched_s(tried, Wanted(is_any=False)) is not None:
      return
    share = room / (room + tried.excess_bytes)
    for less in keeping_of(amounts=[int(share * kept.recomputed.kept_bytes)]):
      seconds = self._estimated_s(less) - self._spared_s(kept, tried)
      if self._versions.is_promising(seconds, self._versions.limit_bytes):
        self._versions.compile(less.version)

  def _join(
    self,
    every: ComparedVersion,
    single: blocks.Recomputed,
  ) -> None:
    """Recomputes several blocks at once, until it fits or takes no less.

    Args:
      every: The version that recomputes each block on its own.
      single: What that recomputes.
    """
    number, tried, first = self._step.blocks.number, every, every.version.choice
    assert first is not None
    for _ in range(_TUNING.max_divisions):
      missing = tried.planner.total_bytes - self._versions.limit_bytes
      joined = max(1, missing // max(1, self._step.blocks.crossing_bytes) + 1)
      if joined >= number:
        return
      choice = dataclasses.replace(first, num_groups=number - joined)
      several = self._step.recompute(choice, self._versions.device.rates)
      more_s = several.again_s - single.again_s
      seconds = every.planner.step_s + more_s
      if not self._versions.is_promising(seconds, self._versions.limit_bytes):
        return
      number, total_bytes = choice.num_groups, tried.planner.total_bytes
      version = self._recomputing(choice, several)
      several_tried = self._versions.compile(version)
      if several_tried is None:
        return
      tried = several_tried
      takes_less = tried.planner.total_bytes < total_bytes
      if not (takes_less and math.isinf(tried.edits_s)):
        return
