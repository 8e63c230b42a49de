"""Versions of a step that a byte limit is planned on, and which is cheapest.

Some of what a step holds for its backward pass is out of a planner's reach once
XLA has scheduled the program: what a loop stacks is one buffer, and what lies
between two blocks XLA may have fused, so that it is no buffer at all. So the
step is changed before XLA sees it: loops stack less (`jaxmem.scan`), or blocks
are recomputed (`jaxmem.blocks`). Each version is compiled up to its schedule
and fitted; the cheapest is taken.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core
from jaxmem_hlo import transform
from jaxmem_hlo.module import Module

from jaxmem import blocks, cost, hook, scan
from jaxmem.jaxpr import internals
from jaxmem.limit_plan import LimitPlan, LimitPlanner
from jaxmem.plan import InfeasibleError
from jaxmem.scan.step import SaveBytes

Lower = Callable[[jax.stages.Traced], jax.stages.Lowered]

# A plan that adds less of the step's time is not worth further compiles.
_CHEAP = 0.02
# Of the estimate of what edits add, what is left at best of a plan in the end.
_REFINED = 0.85
_MAX_DIVISIONS = 3
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
  request: hook.Request,
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
    dropped=tuple(candidate.name for candidate in rewritten.dropped),
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
  traced: jax.stages.Traced,
  lower: Lower,
  compiler_options: dict[str, Any] | None,
  request: hook.Request,
) -> Variant:
  """Finds the version with which the step fits the limit at the least cost.

  The step is not traced again: versions are made of its jaxpr.

  Args:
    traced: The step as it is written.
    lower: Lowers a version of it.
    compiler_options: For compiling what was lowered.
    request: Its limit is the one to meet.

  Returns:
    The version; the step as it is written if it fits without edits, or cannot
    be changed. If none fits, the one that comes closest.
  """
  as_written = Variant(traced=traced)
  if request.limit_bytes is None:
    return as_written
  stacked_bytes = _stacked_bytes(traced.jaxpr, request)
  step = blocks.BlockStep(traced.jaxpr)
  if not stacked_bytes and not step.blocks.number:
    return as_written
  capture = Capture(lower, compiler_options, request)
  search = _Search(as_written, capture, request)
  if search.excess_bytes > 0:
    if stacked_bytes:
      search.stack_less(stacked_bytes)
    if step.blocks.number and not search.is_cheap:
      search.recompute_blocks(step)
  return search.best()


def smallest_bytes(
  traced: jax.stages.Traced,
  lower: Lower,
  compiler_options: dict[str, Any] | None,
  request: hook.Request,
) -> int:
  """Returns the bytes of the smallest whole program that is found.

  Args:
    traced: See `pick`.
    lower: See `pick`.
    compiler_options: See `pick`.
    request: Options and target.
  """
  capture = Capture(lower, compiler_options, request)
  smallest = capture.planner(capture.module(traced)).smallest_bytes()
  for variant in _small_versions(traced, request, capture.platform):
    module = capture.module(variant.traced)
    smallest = min(smallest, capture.planner(module).smallest_bytes())
  return smallest


def _small_versions(
  traced: jax.stages.Traced, request: hook.Request, platform: str
) -> Iterator[Variant]:
  """Yields the versions that may take the fewest bytes."""
  if _stacked_bytes(traced.jaxpr, request):
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

  def __init__(
    self, as_written: Variant, capture: Capture, request: hook.Request
  ):
    assert request.limit_bytes is not None
    self._traced = as_written.traced
    self._capture = capture
    self._request = request
    self._limit_bytes = request.limit_bytes
    self._tried: list[_Tried] = []
    self._as_written = self._add(as_written)
    self._step_s = self._as_written.planner.step_s
    total_bytes = self._as_written.planner.total_bytes
    self.excess_bytes = total_bytes - self._limit_bytes

  @property
  def is_cheap(self) -> bool:
    """Whether a version seems to fit that hardly costs anything."""
    least_s = min(tried.schedule_s for tried in self._tried)
    return least_s <= (1 + _CHEAP) * self._step_s

  def best(self) -> Variant:
    """Returns the cheapest version that fits, or else the smallest.

    Whole schedules are compared: less to store also saves time, and so do
    originals that need not run any more.
    """
    best: tuple[_Tried, LimitPlan] | None = None
    for tried in sorted(self._tried, key=lambda t: (t.schedule_s, t.hopeful_s)):
      if best is not None and tried.hopeful_s >= best[1].schedule_s:
        continue
      plan = tried.planner.find(self._limit_bytes)
      if plan and (best is None or plan.schedule_s < best[1].schedule_s):
        best = tried, plan
    found = best or self._nearest()
    if self._capture.options == self._request.options:
      platform = self._capture.platform
      self._request.remember(found[0].module, platform, found[1])
    return found[0].variant

  def _nearest(self) -> tuple[_Tried, LimitPlan | InfeasibleError]:
    """Returns the smallest version, and its plan or why there is none."""
    best: tuple[_Tried, LimitPlan] | None = None
    nearest: tuple[_Tried, InfeasibleError] | None = None
    for tried in self._tried:
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

    Args:
      step: The step as it is written.
    """
    choice = blocks.BlockChoice(num_groups=step.blocks.number)
    recomputed = step.recompute(choice, self._rates)
    every = self._try(recomputing_blocks(self._traced, choice, recomputed))
    room = self._limit_bytes - every.planner.total_bytes
    if room > 0:
      self._keep(step, every, recomputed.again_s, room)
    else:
      self._join(step, every)

  def _keep(
    self, step: blocks.BlockStep, every: _Tried, most_s: float, room: int
  ) -> None:
    """Lets blocks keep what there is room for."""
    seen = {0}
    tried = every
    # The planner may find room for one thing more.
    for keep_bytes in (room, room + step.blocks.crossing_bytes):
      if tried is not every and tried.hopeful_s > self._least_s:
        return
      choice = blocks.BlockChoice(
        num_groups=step.blocks.number, keep_bytes=keep_bytes
      )
      recomputed = step.recompute(choice, self._rates)
      if recomputed.kept_bytes in seen or not most_s:
        continue
      seen.add(recomputed.kept_bytes)
      # What is fused with products is saved with them, at best alike.
      added_s = every.planner.step_s - self._step_s
      hopeful_s = self._step_s + added_s * recomputed.again_s / most_s
      if hopeful_s < self._least_s:
        tried = self._try(recomputing_blocks(self._traced, choice, recomputed))

  def _join(self, step: blocks.BlockStep, every: _Tried) -> None:
    """Recomputes several blocks at once, until it fits."""
    number, tried = step.blocks.number, every
    for _ in range(_MAX_DIVISIONS):
      if number == 1 or every.planner.step_s >= self._least_s:
        return
      missing = tried.planner.total_bytes - self._limit_bytes
      joined = missing // max(1, step.blocks.crossing_bytes) + 1
      number = max(1, min(number - 1, number - joined))
      choice = blocks.BlockChoice(num_groups=number)
      recomputed = step.recompute(choice, self._rates)
      tried = self._try(recomputing_blocks(self._traced, choice, recomputed))
      if not math.isinf(tried.edits_s):
        return

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


def _stacked_bytes(jaxpr: core.Jaxpr, request: hook.Request) -> int:
  """Returns what loops of a step stack that could be dropped."""
  # Only seconds depend on the rates, and these are not asked for here.
  candidates, _ = scan.find_candidates(jaxpr, request.rates("cpu"))
  return sum(candidate.size_bytes for candidate in candidates)


class Capture:
  """Compiles versions of a step up to their schedule."""

  def __init__(
    self,
    lower: Lower,
    compiler_options: dict[str, Any] | None,
    request: hook.Request,
  ):
    self._lower = lower
    self._compiler_options = compiler_options
    self.options = request.options
    if self.options.effort == "prove":
      # To compare versions, less is enough.
      self.options = dataclasses.replace(self.options, effort="normal")
    self._request = dataclasses.replace(request, options=self.options)
    self._data = b""
    self.platform = ""

  def planner(self, module: Module) -> LimitPlanner:
    """Returns what plans a module of a step."""
    return self._request.planner(module, self.platform)

  def module(self, traced: jax.stages.Traced) -> Module:
    """Returns the scheduled module of a version."""
    tag = hook.new_tag()
    self._data = b""
    transform.add_handler(tag, self._handle)
    try:
      lowered = self._lower(hook.with_mark(traced, tag))
      lowered.compile(compiler_options=self._compiler_options)
    except jax.errors.JaxRuntimeError:
      if not self._data:
        raise
    finally:
      transform.remove_handler(tag)
    module = hook.read(self._data)
    return self._request.as_on_device(module, self.platform)

  def _handle(self, data: bytes, platform: str) -> bytes | None:
    self._data, self.platform = data, platform
    raise transform.CompileRefusedError("Only the schedule was wanted.")
