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
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jaxmem_hlo import transform
from jaxmem_hlo.module import Module

from jaxmem import blocks, hook, scan
from jaxmem.limit_plan import LimitPlan, LimitPlanner
from jaxmem.plan import InfeasibleError
from jaxmem.scan.step import SaveBytes

# Traces and lowers a function for the arguments of the step.
Trace = Callable[[Callable[..., Any]], jax.stages.Traced]
Lower = Callable[[Callable[..., Any]], jax.stages.Lowered]

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
    save_bytes: What loops do not stack, as `scan.rewrite_step` takes it; 0 for
      nothing.
    choice: How blocks are recomputed; None for not at all.
    num_residuals: How many arrays do not wait for the backward pass any more.
    saved_bytes: Their bytes.
    extra_s: Estimated seconds that the step takes more; negative where storing
      took longer than making them again.
    platform: "cpu" or "cuda".
  """

  save_bytes: SaveBytes = 0
  choice: blocks.BlockChoice | None = None
  num_residuals: int = 0
  saved_bytes: int = 0
  extra_s: float = 0.0
  platform: str = "cpu"

  def apply(
    self,
    fun: Callable[..., Any],
    request: hook.Request,
    on_changed: Callable[[int, int], None] = lambda number, size: None,
  ) -> Callable[..., Any]:
    """Returns this version of a step.

    Args:
      fun: The step as it is written.
      request: Says which device is planned for.
      on_changed: Called at each trace, with the number of arrays that do not
        wait any more, and their bytes.
    """
    rates = request.rates(self.platform)
    if self.choice is not None:
      return blocks.recompute_blocks(
        fun,
        self.choice,
        rates=rates,
        on_recomputed=lambda r: on_changed(r.num_dropped, r.dropped_bytes),
      )
    if not self.save_bytes:
      return fun
    return scan.drop_scan_residuals(
      fun,
      self.save_bytes,
      rates=rates,
      keep_bits=_keeps_bits(self.platform),
      on_rewritten=lambda r: on_changed(len(r.dropped), r.saved_bytes),
    )


def pick(
  fun: Callable[..., Any],
  trace: Trace,
  lower: Lower,
  compiler_options: dict[str, Any] | None,
  request: hook.Request,
) -> Variant:
  """Finds the version with which the step fits the limit at the least cost.

  Args:
    fun: The step.
    trace: Traces it.
    lower: Lowers it, or a function of the same arguments.
    compiler_options: For compiling what was lowered.
    request: Its limit is the one to meet.

  Returns:
    The version; the step as it is written if it fits without edits, or cannot
    be changed. If none fits, the one that comes closest.
  """
  if request.limit_bytes is None:
    return Variant()
  jaxpr = trace(fun).jaxpr
  stacked_bytes = _stacked_bytes(jaxpr, request)
  found = blocks.describe_blocks(jaxpr)
  if not stacked_bytes and not found.number:
    return Variant()
  search = _Search(fun, Capture(lower, compiler_options, request), request)
  if search.excess_bytes > 0:
    if stacked_bytes:
      search.stack_less(jaxpr, stacked_bytes)
    if found.number and not search.is_cheap:
      search.recompute_blocks(jaxpr, found)
  return search.best()


def smallest_bytes(
  fun: Callable[..., Any],
  trace: Trace,
  lower: Lower,
  compiler_options: dict[str, Any] | None,
  request: hook.Request,
) -> int:
  """Returns the bytes of the smallest whole program that is found.

  Args:
    fun: The step.
    trace: See `pick`.
    lower: See `pick`.
    compiler_options: See `pick`.
    request: Options and target.
  """
  capture = Capture(lower, compiler_options, request)
  smallest = capture.planner(capture.module(fun)).smallest_bytes()
  jaxpr = trace(fun).jaxpr
  tries = []
  if _stacked_bytes(jaxpr, request):
    tries.append(Variant(save_bytes="all", platform=capture.platform))
  number = blocks.describe_blocks(jaxpr).number
  tries += [
    Variant(choice=blocks.BlockChoice(num_groups=n), platform=capture.platform)
    for n in dict.fromkeys((number, (number + 1) // 2))
    if n
  ]
  for variant in tries:
    module = capture.module(variant.apply(fun, request))
    smallest = min(smallest, capture.planner(module).smallest_bytes())
  return smallest


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
    self, fun: Callable[..., Any], capture: Capture, request: hook.Request
  ):
    assert request.limit_bytes is not None
    self._fun = fun
    self._capture = capture
    self._request = request
    self._limit_bytes = request.limit_bytes
    self._tried: list[_Tried] = []
    self._as_written = self._add(Variant(), fun)
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

  def stack_less(self, jaxpr: core.Jaxpr, stacked_bytes: int) -> None:
    """Tries a few amounts that loops do not stack.

    Args:
      jaxpr: Of the step as it is written.
      stacked_bytes: What could be dropped.
    """
    excess = self.excess_bytes
    amounts: list[SaveBytes] = [excess // 2, int(_NEARLY_ALL * excess), excess]
    shares = [int(share * stacked_bytes) for share in _SHARES]
    amounts += [amount for amount in shares if amount > excess]
    platform = self._capture.platform
    rates = self._request.rates(platform)
    seen = set()
    for amount in (*amounts, "all"):
      rewritten = scan.rewrite_step(
        jaxpr, amount, rates, keep_bits=_keeps_bits(platform)
      )
      dropped = tuple(candidate.name for candidate in rewritten.dropped)
      if dropped not in seen:
        seen.add(dropped)
        self._try(Variant(save_bytes=amount))

  def recompute_blocks(self, jaxpr: core.Jaxpr, found: blocks.Blocks) -> None:
    """Tries all blocks; then less of them, or several at once.

    Args:
      jaxpr: Of the step as it is written.
      found: Its blocks.
    """
    every = self._try(
      Variant(choice=blocks.BlockChoice(num_groups=found.number))
    )
    room = self._limit_bytes - every.planner.total_bytes
    if room > 0:
      self._keep(jaxpr, found, every, room)
    else:
      self._join(found, every)

  def _keep(
    self, jaxpr: core.Jaxpr, found: blocks.Blocks, every: _Tried, room: int
  ) -> None:
    """Lets blocks keep what there is room for."""
    rates = self._request.rates(self._capture.platform)
    nothing = blocks.BlockChoice(num_groups=found.number)
    most_s = blocks.recompute_step(jaxpr, nothing, rates).again_s
    seen = {0}
    tried = every
    # The planner may find room for one thing more.
    for keep_bytes in (room, room + found.crossing_bytes):
      if tried is not every and tried.hopeful_s > self._least_s:
        return
      choice = blocks.BlockChoice(
        num_groups=found.number, keep_bytes=keep_bytes
      )
      recomputed = blocks.recompute_step(jaxpr, choice, rates)
      if recomputed.kept_bytes in seen or not most_s:
        continue
      seen.add(recomputed.kept_bytes)
      # What is fused with products is saved with them, at best alike.
      added_s = every.planner.step_s - self._step_s
      hopeful_s = self._step_s + added_s * recomputed.again_s / most_s
      if hopeful_s < self._least_s:
        tried = self._try(Variant(choice=choice))

  def _join(self, found: blocks.Blocks, every: _Tried) -> None:
    """Recomputes several blocks at once, until it fits."""
    number, tried = found.number, every
    for _ in range(_MAX_DIVISIONS):
      if number == 1 or every.planner.step_s >= self._least_s:
        return
      missing = tried.planner.total_bytes - self._limit_bytes
      joined = missing // max(1, found.crossing_bytes) + 1
      number = max(1, min(number - 1, number - joined))
      tried = self._try(Variant(choice=blocks.BlockChoice(num_groups=number)))
      if not math.isinf(tried.edits_s):
        return

  @property
  def _least_s(self) -> float:
    return min(tried.schedule_s for tried in self._tried)

  def _try(self, variant: Variant) -> _Tried:
    variant = dataclasses.replace(variant, platform=self._capture.platform)
    seen: list[tuple[int, int]] = []
    changed = variant.apply(
      self._fun, self._request, lambda *counts: seen.append(counts)
    )
    tried = self._add(variant, changed)
    num_residuals, saved_bytes = seen[-1]
    variant = dataclasses.replace(
      variant,
      num_residuals=num_residuals,
      saved_bytes=saved_bytes,
      extra_s=tried.planner.step_s - self._step_s,
    )
    self._tried[-1] = dataclasses.replace(tried, variant=variant)
    return self._tried[-1]

  def _add(self, variant: Variant, fun: Callable[..., Any]) -> _Tried:
    module = self._capture.module(fun)
    planner = self._capture.planner(module)
    edits_s = planner.estimate(self._limit_bytes)
    tried = _Tried(
      variant=variant, module=module, planner=planner, edits_s=edits_s
    )
    self._tried.append(tried)
    return tried


def _keeps_bits(platform: str) -> bool:
  """Whether what loops recompute may not be fused with what reads it.

  On CPU the results of a step do not change by a bit. A GPU may choose other
  kernels anyway, and memory traffic is what its time goes to.
  """
  return platform == "cpu"


def _stacked_bytes(jaxpr: Any, request: hook.Request) -> int:
  """Returns what loops of a step stack that could be dropped."""
  # Only seconds depend on the rates, and these are not asked for here.
  candidates, _ = scan.find_candidates(jaxpr, request.rates("cpu"))
  return sum(candidate.size_bytes for candidate in candidates)


class Capture:
  """Compiles steps up to their schedule."""

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

  def module(self, fun: Callable[..., Any]) -> Module:
    """Returns the scheduled module of a step."""
    tag = hook.new_tag()
    self._data = b""
    transform.add_handler(tag, self._handle)
    try:
      lowered = self._lower(hook.marked(fun, tag))
      lowered.compile(compiler_options=self._compiler_options)
    except jax.errors.JaxRuntimeError:
      if not self._data:
        raise
    finally:
      transform.remove_handler(tag)
    return hook.read(self._data)

  def _handle(self, data: bytes, platform: str) -> bytes | None:
    self._data, self.platform = data, platform
    raise transform.CompileRefusedError("Only the schedule was wanted.")
