"""Versions of a step that a byte limit is planned on, and which is cheapest.

Some of what a step holds for its backward pass is out of a planner's reach once
XLA has scheduled the program: what a loop stacks is one buffer, and what lies
between two blocks XLA may have fused, so that it is no buffer at all. So
the step is changed before XLA sees it: loops stack less (`versions.scan`), or
blocks are recomputed (`versions.blocks`). Each version is compiled up to its
schedule and fitted; the cheapest is taken.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import jax
from jaxmem_hlo.module import Module

from jaxmem import cost
from jaxmem.compiler import Capture
from jaxmem.errors import InfeasibleError
from jaxmem.jaxpr import internals
from jaxmem.planning import LimitPlan, LimitPlanner, Request
from jaxmem.versions import blocks, scan
from jaxmem.versions.scan import SaveBytes

# A plan that adds less of the step's time is not worth further compiles.
_HAIR = 0.005
# Of the estimate of what blocks fuse anew, what they take at least: XLA's plan
# of the step as written may have written some of it, too.
_FUSED_LEAST = 0.7
# The weight of what is fused that made estimates of blocks fit schedules.
_FUSED_WEIGHT = 0.75
# Where a schedule takes so many times longer, equations say little about it.
_RELIABLE = 1.5
# How far below an estimate a recomputed version's seconds lie at best.
_PROMISE = 0.93
# Of the estimate of what edits add, what is left at best of a plan in the end.
_REFINED = 0.85
_MAX_DIVISIONS = 3
_EVERYTHING = 2**50
# Of what loops stack, tried whatever the limit: to stack less can save time,
# and what a limit allows, a larger one must find, too.
_SHARES = (0.5, 0.75, 0.875)
# Of what is too much, tried besides: the planner may find the rest elsewhere.
_NEARLY_ALL = 0.97


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
  """A version of a step.

  Attributes:
    traced: The step, traced, with the jaxpr of this version.
    save_bytes: What loops do not stack, as `scan.rewrite_step` takes it; 0 for
      nothing.
    choice: How blocks are recomputed; None for not at all.
    num_residuals: How many arrays do not wait for the backward pass any more.
    saved_bytes: Their bytes.
    extra_s: Estimated seconds that the step takes more; negative where storing
      took longer than making them again.
    dropped: Names of those that loops do not stack.
  """

  traced: jax.stages.Traced = dataclasses.field(compare=False, repr=False)
  save_bytes: SaveBytes = 0
  choice: blocks.BlockChoice | None = None
  num_residuals: int = 0
  saved_bytes: int = 0
  extra_s: float = 0.0
  dropped: tuple[str, ...] = ()

  @property
  def is_as_written(self) -> bool:
    """Whether the step is as its author wrote it."""
    return self.choice is None and not self.save_bytes


def stacking_less(
  traced: jax.stages.Traced,
  save_bytes: SaveBytes,
  request: Request,
  platform: str,
) -> Variant:
  """Returns the version of a step whose loops stack less.

  Args:
    traced: The step as it is written.
    save_bytes: See `Variant`.
    request: Says which device is planned for.
    platform: "cpu" or "cuda".
  """
  rewritten = scan.rewrite_step(
    traced.jaxpr,
    save_bytes,
    request.rates(platform),
    # On CPU the results of a step do not change by a bit. A GPU may choose
    # other kernels anyway, and memory traffic is what its time goes to.
    keep_bits=platform == "cpu",
  )
  return Variant(
    traced=internals.with_jaxpr(traced, rewritten.closed_jaxpr),
    save_bytes=save_bytes,
    num_residuals=len(rewritten.dropped),
    saved_bytes=rewritten.saved_bytes,
    dropped=rewritten.dropped,
  )


def recomputing_blocks(
  traced: jax.stages.Traced,
  choice: blocks.BlockChoice,
  recomputed: blocks.Recomputed,
) -> Variant:
  """Returns the version of a step that recomputes blocks.

  Args:
    traced: The step as it is written.
    choice: How.
    recomputed: What came of it.
  """
  return Variant(
    traced=internals.with_jaxpr(traced, recomputed.closed_jaxpr),
    choice=choice,
    num_residuals=recomputed.num_dropped,
    saved_bytes=recomputed.dropped_bytes,
  )


def pick(
  traced: jax.stages.Traced, capture: Capture, request: Request
) -> Variant:
  """Finds the version with which the step fits the limit at the least cost.

  The step is not traced again: versions are made of its jaxpr.

  Args:
    traced: The step as it is written.
    capture: Compiles versions of it.
    request: Its limit is the one to meet.

  Returns:
    The version; the step as it is written if it fits without edits, or cannot
    be changed. If none fits, the one that comes closest.
  """
  as_written = Variant(traced=traced)
  if request.limit_bytes is None:
    return as_written
  stacked_bytes = scan.droppable_bytes(traced.jaxpr)
  step = blocks.BlockStep(traced.jaxpr)
  if not stacked_bytes and not step.blocks.number:
    return as_written
  search = _Search(as_written, capture, request)
  if search.excess_bytes > 0:
    if stacked_bytes:
      search.stack_less(stacked_bytes)
    if step.blocks.number:
      search.recompute_blocks(step)
  return search.best()


def smallest_bytes(
  traced: jax.stages.Traced, capture: Capture, request: Request
) -> int:
  """Returns the bytes of the smallest whole program that is found.

  Args:
    traced: See `pick`.
    capture: See `pick`.
    request: Options and target.
  """
  smallest = capture.planner(capture.module(traced)).smallest_bytes()
  for variant in _small_versions(traced, request, capture.platform):
    module = capture.module(variant.traced)
    smallest = min(smallest, capture.planner(module).smallest_bytes())
  return smallest


def _small_versions(
  traced: jax.stages.Traced, request: Request, platform: str
) -> Iterator[Variant]:
  """Yields the versions that may take the fewest bytes."""
  if scan.droppable_bytes(traced.jaxpr):
    yield stacking_less(traced, "all", request, platform)
  step = blocks.BlockStep(traced.jaxpr)
  number = step.blocks.number
  for num_groups in dict.fromkeys((number, (number + 1) // 2)):
    if num_groups:
      choice = blocks.BlockChoice(num_groups=num_groups)
      recomputed = step.recompute(choice, request.rates(platform))
      yield recomputing_blocks(traced, choice, recomputed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tried:
  """A version that was compiled up to its schedule.

  Attributes:
    variant: The version.
    module: Its scheduled module.
    planner: Of the module.
    edits_s: An estimate of the seconds that edits for the limit add; infinity
      if there may be none.
  """

  variant: Variant
  module: Module
  planner: LimitPlanner
  edits_s: float

  @property
  def schedule_s(self) -> float:
    """An estimate of what the schedule takes in the end; mostly too high."""
    return self.planner.step_s + self.edits_s

  @property
  def hopeful_s(self) -> float:
    """Seconds that its schedule will hardly be faster than."""
    if math.isinf(self.edits_s):
      # Another order, or the link to the host, may still do it for little.
      return self.planner.step_s
    return self.planner.step_s + _REFINED * self.edits_s


class _Search:
  """Compiles versions of a step, and fits the promising ones."""

  def __init__(self, as_written: Variant, capture: Capture, request: Request):
    assert request.limit_bytes is not None
    self._traced = as_written.traced
    self._capture = capture
    self._request = request
    self._limit_bytes = request.limit_bytes
    self._tried: list[_Tried] = []
    self._plans: dict[int, LimitPlan | None] = {}
    self._as_written = self._add(as_written)
    self._step_s = self._as_written.planner.step_s
    total_bytes = self._as_written.planner.total_bytes
    self.excess_bytes = total_bytes - self._limit_bytes

  def best(self) -> Variant:
    """Returns the cheapest version that fits, or else the smallest.

    Whole schedules are compared: less to store also saves time, and so do
    originals that need not run any more.
    """
    best: tuple[_Tried, LimitPlan] | None = None
    for tried in sorted(self._tried, key=lambda t: (t.schedule_s, t.hopeful_s)):
      if best is not None and tried.hopeful_s >= best[1].schedule_s:
        continue
      plan = self._find(tried)
      if plan and (best is None or plan.schedule_s < best[1].schedule_s):
        best = tried, plan
    found = best or self._nearest()
    if self._capture.options == self._request.options:
      platform = self._capture.platform
      self._request.remember(found[0].module, platform, found[1])
    return found[0].variant

  def _nearest(self) -> tuple[_Tried, LimitPlan | InfeasibleError]:
    """Returns the smallest version, and its plan or why there is none.

    Of versions that are there whatever the limit: else the smallest program
    that an error names would not be found for its own bytes.
    """
    best: tuple[_Tried, LimitPlan] | None = None
    nearest: tuple[_Tried, InfeasibleError] | None = None
    for tried in (self._as_written, *self._small_versions()):
      try:
        plan = tried.planner.fit(self._limit_bytes)
      except InfeasibleError as error:
        if nearest is None or error.smallest_bytes < nearest[1].smallest_bytes:
          nearest = tried, error
        continue
      if best is None or plan.schedule_s < best[1].schedule_s:
        best = tried, plan
    found = best or nearest
    assert found is not None
    return found

  def _small_versions(self) -> list[_Tried]:
    """Returns the versions that may take the fewest bytes."""
    platform = self._capture.platform
    known = {(t.variant.dropped, t.variant.choice): t for t in self._tried}
    found = []
    for variant in _small_versions(self._traced, self._request, platform):
      key = variant.dropped, variant.choice
      found.append(known[key] if key in known else self._try(variant))
    return found

  def stack_less(self, stacked_bytes: int) -> None:
    """Tries a few amounts that loops do not stack.

    Args:
      stacked_bytes: What could be dropped.
    """
    excess = self.excess_bytes
    amounts: list[SaveBytes] = [excess // 2, int(_NEARLY_ALL * excess), excess]
    shares = [int(share * stacked_bytes) for share in _SHARES]
    amounts += [amount for amount in shares if amount > excess]
    platform = self._capture.platform
    seen = set()
    for amount in (*amounts, "all"):
      variant = stacking_less(self._traced, amount, self._request, platform)
      if variant.dropped not in seen:
        seen.add(variant.dropped)
        self._try(variant)

  def recompute_blocks(self, step: blocks.BlockStep) -> None:
    """Tries all blocks; then less of them, or several at once.

    Nothing is tried where a version seems to fit already that costs less than
    blocks do at any limit. So a larger limit never costs more for want of them.

    Args:
      step: The step as it is written.
    """
    number = step.blocks.number
    most = blocks.BlockChoice(num_groups=number, keep_bytes=_EVERYTHING)
    kept = step.recompute(most, self._rates)
    least_s = max(_HAIR * self._step_s, _FUSED_LEAST * kept.fused_s)
    if self._least_s <= self._step_s + least_s:
      return
    choice = blocks.BlockChoice(num_groups=number)
    recomputed = step.recompute(choice, self._rates)
    every = self._try(recomputing_blocks(self._traced, choice, recomputed))
    room = self._limit_bytes - every.planner.total_bytes
    if room > 0:
      self._keep(step, every, recomputed, room)
    else:
      self._join(step, every, recomputed)

  def _keep(
    self,
    step: blocks.BlockStep,
    every: _Tried,
    nothing: blocks.Recomputed,
    room: int,
  ) -> None:
    """Lets blocks keep what there is room for.

    Args:
      step: The step as it is written.
      every: The version that keeps nothing.
      nothing: What it recomputes.
      room: Bytes to spare in it.
    """
    added_s = every.planner.step_s - self._step_s
    is_reliable = added_s <= _RELIABLE * _equation_seconds(nothing)
    number, crossing_bytes = step.blocks.number, step.blocks.crossing_bytes
    first: tuple[_Tried, blocks.Recomputed] | None = None
    # The planner mostly finds room for one thing more.
    for keep_bytes in (room + crossing_bytes, room):
      choice = blocks.BlockChoice(num_groups=number, keep_bytes=keep_bytes)
      kept = step.recompute(choice, self._rates)
      seconds = self._step_s + _PROMISE * _added_seconds(added_s, nothing, kept)
      if first is not None:
        if kept.kept_bytes == first[1].kept_bytes:
          return
        if is_reliable:
          more_s = kept.again_s - first[1].again_s
          seconds = max(seconds, first[0].planner.step_s + more_s)
      if kept.kept_bytes and self._is_promising(seconds):
        tried = self._try(recomputing_blocks(self._traced, choice, kept))
        first = tried, kept

  def _join(
    self, step: blocks.BlockStep, every: _Tried, single: blocks.Recomputed
  ) -> None:
    """Recomputes several blocks at once, until it fits.

    Args:
      step: The step as it is written.
      every: The version that recomputes each block on its own.
      single: What that recomputes.
    """
    number, tried = step.blocks.number, every
    for _ in range(_MAX_DIVISIONS):
      missing = tried.planner.total_bytes - self._limit_bytes
      joined = missing // max(1, step.blocks.crossing_bytes) + 1
      choice = blocks.BlockChoice(num_groups=max(1, number - max(1, joined)))
      several = step.recompute(choice, self._rates)
      more_s = several.again_s - single.again_s
      if number == 1 or not self._is_promising(every.planner.step_s + more_s):
        return
      number = choice.num_groups
      tried = self._try(recomputing_blocks(self._traced, choice, several))
      if not math.isinf(tried.edits_s):
        return

  def _is_promising(self, seconds: float) -> bool:
    """Whether no version that was tried has a schedule as fast as this.

    Plans those that might.
    """
    rivals = [tried for tried in self._tried if tried.hopeful_s <= seconds]
    for tried in sorted(rivals, key=lambda tried: tried.schedule_s):
      plan = self._find(tried)
      if plan is not None and plan.schedule_s <= seconds:
        return False
    return True

  def _find(self, tried: _Tried) -> LimitPlan | None:
    """Returns a plan for a version; each is planned once."""
    key = id(tried.planner)
    if key not in self._plans:
      self._plans[key] = tried.planner.find(self._limit_bytes)
    return self._plans[key]

  @property
  def _least_s(self) -> float:
    return min(tried.schedule_s for tried in self._tried)

  @property
  def _rates(self) -> cost.Rates:
    return self._request.rates(self._capture.platform)

  def _try(self, variant: Variant) -> _Tried:
    tried = self._add(variant)
    extra_s = tried.planner.step_s - self._step_s
    variant = dataclasses.replace(variant, extra_s=extra_s)
    self._tried[-1] = dataclasses.replace(tried, variant=variant)
    return self._tried[-1]

  def _add(self, variant: Variant) -> _Tried:
    module = self._capture.module(variant.traced)
    planner = self._capture.planner(module)
    edits_s = planner.estimate(self._limit_bytes)
    tried = _Tried(
      variant=variant, module=module, planner=planner, edits_s=edits_s
    )
    self._tried.append(tried)
    return tried


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
  if not most_s:
    return added_s
  in_proportion = _equation_seconds(kept) / _equation_seconds(nothing)
  # Equations that took longer by themselves than all do in the schedule say
  # nothing but proportions.
  saved_s = (most_s - kept.again_s) * min(1.0, added_s / most_s)
  return min(added_s * in_proportion, added_s - saved_s)


def _equation_seconds(recomputed: blocks.Recomputed) -> float:
  """Estimates from its equations what a step takes that runs again."""
  return recomputed.again_s + _FUSED_WEIGHT * recomputed.fused_s
