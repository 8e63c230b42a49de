"""Which of a step's versions are compiled to find the fastest under a limit."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

from jaxmem_hlo.module import Module

from jaxmem.compiler import ScheduleCapture
from jaxmem.cost import Device
from jaxmem.errors import InfeasibleError
from jaxmem.planning import TUNING, LimitPlan, LimitPlanner, Request, Wanted
from jaxmem.versions import blocks
from jaxmem.versions.block_versions import (
  BlockVersion,
  amounts_to_keep,
  keeping,
)
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.compiled_version import compile_version, try_to_compile
from jaxmem.versions.drop_amounts import amounts_to_drop, less_to_drop
from jaxmem.versions.found_plans import FoundPlans
from jaxmem.versions.update_versions import updated_versions
from jaxmem.versions.version import (
  Version,
  recomputing_blocks,
  small_versions,
  stacking_less,
)

_TUNING = TUNING.versions


class VersionSearch:
  """Compiles versions of a step, and fits the promising ones.

  With effort "fast", only those that are estimated to be much faster than what
  was found, and any while nothing fits.

  Args:
    as_written: The step as it is written.
    schedules: Compiles versions of it.
    request: Its limit is the one to meet.

  Attributes:
    written: The step as it is written, compiled up to its schedule.
  """

  def __init__(
    self, as_written: Version, schedules: ScheduleCapture, request: Request
  ):
    assert request.limit_bytes is not None
    self._schedules = schedules
    self._request = request
    self._is_fast = request.options.effort == "fast"
    self._limit_bytes = request.limit_bytes
    self._tried: list[ComparedVersion] = []
    self._found = FoundPlans(self._limit_bytes)
    module, planner = compile_version(
      as_written.step, self._schedules, self._request
    )
    self.written = self._compared(as_written, module, planner)
    # What other versions are made of.
    self._base = self.written

  @functools.cached_property
  def _device(self) -> Device:
    """The device planned for; known once something was compiled."""
    return self._request.device(self._schedules.platform)

  def best(self) -> tuple[ComparedVersion, LimitPlan | InfeasibleError]:
    """Returns the cheapest version that fits, or else the smallest.

    With it comes its plan, or why there is none. Whole schedules are compared:
    less to store also saves time, and so do originals that need not run any
    more.
    """
    return self._cheapest(False) or self._cheapest(True) or self._nearest()

  def _cheapest(self, is_any: bool) -> tuple[ComparedVersion, LimitPlan] | None:
    """Returns the cheapest version that fits, and its plan.

    Args:
      is_any: See `Wanted`. What takes long is left until no version fits
        without.
    """
    if self._is_fast and not self.written.planner.hides:
      return self._first(is_any)
    best_s = self._found.best_s
    sketched: list[tuple[float, ComparedVersion]] = []
    for tried in sorted(
      # What needs no edits comes first, and may make the rest needless.
      self._tried,
      key=lambda t: (not t.fits, t.schedule_s, t.hopeful_s),
    ):
      if self._found.hopeful_s(tried) <= best_s:
        wanted = Wanted(worse_s=best_s, is_any=is_any)
        seconds = self._found.sketched_s(tried, wanted)
        if seconds is not None:
          sketched.append((seconds, tried))
          best_s = min(best_s, seconds)
    best: tuple[ComparedVersion, LimitPlan] | None = None
    for _, tried in sorted(sketched, key=lambda found: found[0]):
      worse_s = best[1].schedule_s if best else math.inf
      plan = self._found.find(tried, Wanted(worse_s=worse_s, is_any=is_any))
      if plan and (best is None or plan.schedule_s < best[1].schedule_s):
        best = tried, plan
    return best

  def _first(self, is_any: bool) -> tuple[ComparedVersion, LimitPlan] | None:
    """Returns the first version that fits, the fastest by estimates first."""
    wanted = Wanted(is_any=is_any)
    for tried in sorted(self._tried, key=lambda t: t.schedule_s):
      plan = self._found.find(tried, wanted)
      if plan is not None:
        return tried, plan
    return None

  def _nearest(self) -> tuple[ComparedVersion, LimitPlan | InfeasibleError]:
    """Returns the smallest version, and its plan or why there is none.

    Of versions that are there whatever the limit: else the smallest program
    that an error names would not be found for its own bytes.
    """
    best: tuple[ComparedVersion, LimitPlan] | None = None
    nearest: tuple[ComparedVersion, InfeasibleError] | None = None
    for tried in sorted(self._small(), key=lambda t: t.planner.total_bytes):
      useful = nearest[1].smallest_bytes if nearest else None
      if useful is not None and tried.planner.least_bytes >= useful:
        continue
      try:
        plan = tried.planner.fit(self._limit_bytes, useful).decision
      except InfeasibleError as error:
        if nearest is None or error.smallest_bytes < nearest[1].smallest_bytes:
          nearest = tried, error
        continue
      if best is None or plan.schedule_s < best[1].schedule_s:
        best = tried, plan
    found = best or nearest
    assert found is not None
    return found

  def _small(self) -> list[ComparedVersion]:
    """Returns the versions that may take the fewest bytes."""
    known = {
      (t.version.dropped, t.version.recipe): t for t in reversed(self._tried)
    }
    found: list[ComparedVersion] = []
    totals: list[int] = []
    for version in small_versions(
      *(self._base.version, self.written.version),
      *(self._schedules, self._request, totals),
    ):
      tried = known.get((version.dropped, version.recipe)) or self._try(version)
      if tried is None:
        continue
      totals.append(tried.planner.total_bytes)
      found.append(tried)
    return found

  def begin_with(self, base: Version) -> None:
    """Tries a version that others are made of from then on."""
    self._base = self._try(base) or self._base

  def stack_less(self, stacked_bytes: int) -> None:
    """Tries a few amounts that loops do not stack, in ascending order.

    The cheapest drops come first: once what fits takes longer than with less
    dropped, all that drops more does so as well, but for what drops all.

    Args:
      stacked_bytes: What could be dropped.
    """
    base = self._base
    least_bytes = base.planner.least_bytes
    excess_bytes = max(0, base.excess_bytes)
    # Edits may find the other half elsewhere.
    may_halve = least_bytes - excess_bytes // 2 <= self._limit_bytes
    amounts = amounts_to_drop(
      excess_bytes, stacked_bytes, may_halve, leaves_little=self._is_fast
    )
    # What was dropped, and what that takes by the jaxpr.
    seen: dict[tuple[str, ...], float] = {}
    fastest: ComparedVersion | None = None
    while amounts:
      amount = amounts.pop(0)
      version = stacking_less(base.version, amount, self._device)
      if version.dropped in seen:
        continue
      seen[version.dropped] = version.extra_s
      tried = self._try(version)
      if tried is not None and tried.fits:
        if self._is_fast:
          return
        if fastest is None:
          spare_bytes = self._limit_bytes - tried.planner.total_bytes
          amounts[:0] = less_to_drop(amount, excess_bytes, spare_bytes)
        elif tried.planner.step_s >= fastest.planner.step_s:
          break
        fastest = tried
    if fastest is None or not amounts or self._device.platform == "cpu":
      return
    # What drops all was not tried. On a GPU there is a kernel for each stack,
    # and XLA fuses and lays out otherwise what makes it, which can cost more
    # than the jaxpr says.
    version = stacking_less(base.version, "all", self._device)
    more_s = version.extra_s - seen[fastest.version.dropped]
    most_s = TUNING.loops.all_share * base.planner.step_s
    if version.dropped not in seen and more_s <= most_s:
      self._try(version)

  def recompute_blocks(
    self, step: blocks.BlockStep, first: BlockVersion | None
  ) -> None:
    """Tries all blocks; then less of them, or several at once.

    All of them are tried even where edits fit for little: a version may be
    faster than the step as it is written, whatever the limit is, and a larger
    limit must not cost more for want of it. Where nothing needs to be edited,
    only if mapping fewer temporaries may save more than products take, or the
    device waits for the host meanwhile.

    Args:
      step: The step as it is written.
      first: The version that recomputes every block, if there is one already.
    """
    base = self._base
    if first is None:
      first = BlockVersion.every(base.version, step, self._device.rates)
    recomputed = first.recomputed
    if base.fits and not (
      base.waits or base.planner.may_gain_by_less(recomputed.again_s)
    ):
      return
    if self._is_fast and not self._is_promising(
      base.planner.step_s + recomputed.again_s,
      base.planner.total_bytes
      - int(_TUNING.usual_dropped_share * recomputed.dropped_bytes),
    ):
      return
    every = self._try(first.version)
    if every is None:
      return
    room = self._limit_bytes - every.planner.total_bytes
    if room <= 0 and self._device.num_devices > 1:
      # What was gathered for the forward pass need not stay.
      choice = blocks.BlockChoice(
        num_groups=step.blocks.number, gathers_again=True
      )
      recomputed = step.recompute(choice, self._device.rates)
      every = self._try(recomputing_blocks(base.version, choice, recomputed))
      if every is None:
        return
      room = self._limit_bytes - every.planner.total_bytes
    self._keep(step, every, recomputed, room)
    if room <= 0:
      self._join(step, every, recomputed)

  def _keep(
    self,
    step: blocks.BlockStep,
    every: ComparedVersion,
    nothing: blocks.Recomputed,
    room: int,
  ) -> None:
    """Lets blocks keep what there is room for, here or on the host.

    Args:
      step: The step as it is written.
      every: The version that keeps nothing.
      nothing: What it recomputes.
      room: Bytes to spare in it; negative where it is too large.
    """
    first = every.version.choice
    assert first is not None
    keeping_of = functools.partial(
      keeping,
      *(self._base.version, step, first, nothing),
      added_s=every.version.extra_s,
      rates=self._device.rates,
    )
    amounts = amounts_to_keep(step, every, self._device, room)
    waiting = keeping_of(amounts=amounts)
    too_large: tuple[BlockVersion, ComparedVersion] | None = None
    kept = next(waiting, None)
    while kept is not None:
      later = None
      total_bytes = every.planner.total_bytes + kept.recomputed.kept_bytes
      seconds = self._base.planner.step_s + kept.hopeful_s
      if self._is_promising(seconds, total_bytes):
        if self._schedules.begins_early:
          later = next(waiting, None)
          for each in filter(None, (kept, later)):
            self._schedules.begin(each.version.step)
        tried = self._try(kept.version)
        if tried is not None and tried.fits:
          return
        too_large = tried and (kept, tried)
      kept = later or next(waiting, None)
    if too_large is not None and room > 0:
      kept, tried = too_large
      self._keep_less(kept, tried, room, keeping_of)

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
    if self._found.sketched_s(tried, Wanted(is_any=False)) is not None:
      return
    share = room / (room + tried.excess_bytes)
    for less in keeping_of(amounts=[int(share * kept.recomputed.kept_bytes)]):
      seconds = self._base.planner.step_s + less.hopeful_s
      if self._is_promising(seconds, self._limit_bytes):
        self._try(less.version)

  def _join(
    self,
    step: blocks.BlockStep,
    every: ComparedVersion,
    single: blocks.Recomputed,
  ) -> None:
    """Recomputes several blocks at once, until it fits or takes no less.

    Args:
      step: The step as it is written.
      every: The version that recomputes each block on its own.
      single: What that recomputes.
    """
    number, tried, first = step.blocks.number, every, every.version.choice
    assert first is not None
    for _ in range(_TUNING.max_divisions):
      missing = tried.planner.total_bytes - self._limit_bytes
      joined = max(1, missing // max(1, step.blocks.crossing_bytes) + 1)
      if joined >= number:
        return
      choice = dataclasses.replace(first, num_groups=number - joined)
      several = step.recompute(choice, self._device.rates)
      more_s = several.again_s - single.again_s
      seconds = every.planner.step_s + more_s
      if not self._is_promising(seconds, self._limit_bytes):
        return
      number, total_bytes = choice.num_groups, tried.planner.total_bytes
      version = recomputing_blocks(self._base.version, choice, several)
      several_tried = self._try(version)
      if several_tried is None:
        return
      tried = several_tried
      takes_less = tried.planner.total_bytes < total_bytes
      if not (takes_less and math.isinf(tried.edits_s)):
        return

  def update_in_loops(self) -> None:
    """Lets loops update what some versions are too large by."""
    fitting = [t.schedule_s for t in self._tried if t.fits]
    best_s = min(fitting, default=math.inf)
    waiting = updated_versions(self._tried, self._device)[: _TUNING.max_updated]
    for each in waiting:
      if each.schedule_s >= best_s:
        continue
      if self._is_fast and not self._is_much_faster(each.schedule_s):
        continue
      tried = self._try(each.version)
      if tried is None:
        continue
      if tried.fits:
        best_s = min(best_s, tried.schedule_s)
      elif each.fits:
        # An iteration holds what it is about to write.
        missing_bytes = self._device.num_devices * tried.excess_bytes
        more = each.with_more(missing_bytes, self._device)
        is_last = len(waiting) >= 2 * _TUNING.max_updated
        if more is not None and more.fits and not is_last:
          waiting.append(more)

  def _is_promising(self, seconds: float, total_bytes: int) -> bool:
    """Whether no version that was tried has a schedule as fast as this.

    Plans those that might.

    Args:
      seconds: Of what runs.
      total_bytes: Of the whole program; at most the limit counts.
    """
    if self.written.waits:
      # It may run while the device waits for the host.
      return True
    temp_bytes = min(total_bytes, self._limit_bytes)
    temp_bytes -= self.written.planner.fixed_bytes
    seconds += self._device.mapping_s(temp_bytes)
    if self._is_fast:
      return self._is_much_faster(seconds)
    wanted = Wanted(worse_s=seconds, is_any=False)
    rivals = [t for t in self._tried if self._found.hopeful_s(t) <= seconds]
    rivals.sort(key=lambda tried: tried.schedule_s)
    for find_s in (self._found.sketched_s, self._found.planned_s):
      for tried in rivals:
        found_s = find_s(tried, wanted)
        if found_s is not None and found_s <= seconds:
          return False
      rivals = [t for t in rivals if self._found.usual_s(t) <= seconds]
    return True

  def _is_much_faster(self, seconds: float) -> bool:
    """Whether all plans of versions that were tried are estimated to be slower.

    By so much that another compile is worth it with little effort.

    Args:
      seconds: Of a whole schedule.
    """
    gain_s = _TUNING.quick_gain_share * self.written.planner.step_s
    wanted = Wanted(is_any=False)
    rivals = [t for t in self._tried if t.schedule_s <= seconds + gain_s]
    rivals.sort(key=lambda tried: tried.schedule_s)
    return all(self._found.find(tried, wanted) is None for tried in rivals)

  def _try(self, version: Version) -> ComparedVersion | None:
    """Compiles a version of the step; None if that cannot be done."""
    compiled = try_to_compile(version.step, self._schedules, self._request)
    if compiled is None:
      return None
    module, planner = compiled
    extra_s = planner.step_s - self.written.planner.step_s
    version = dataclasses.replace(version, extra_s=extra_s)
    return self._compared(version, module, planner)

  def _compared(
    self, version: Version, module: Module, planner: LimitPlanner
  ) -> ComparedVersion:
    promise = planner.promise(self._limit_bytes)
    tried = ComparedVersion(
      version=version,
      module=module,
      planner=planner,
      excess_bytes=planner.total_bytes - self._limit_bytes,
      edits_s=promise.edits_s,
      mapping_s=promise.mapping_s,
    )
    self._tried.append(tried)
    return tried
