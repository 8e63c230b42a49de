"""Versions of a step that a byte limit is planned on, and which is cheapest.

Some of what a step holds for its backward pass is out of a planner's reach once
XLA has scheduled the program: what a loop stacks is one buffer, and what lies
between two blocks XLA may have fused, so that it is no buffer at all. So the
step is changed before XLA sees it: loops stack less (`jaxmem.scan`), or blocks
are recomputed (`jaxmem.blocks`). Each version is compiled up to its schedule
and fitted; the cheapest is taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxmem_hlo import transform
from jaxmem_hlo.module import Module

from jaxmem import blocks, hook, scan
from jaxmem.limit_plan import LimitPlanner
from jaxmem.plan import InfeasibleError
from jaxmem.scan.step import SaveBytes

# Traces and lowers a function for the arguments of the step.
Trace = Callable[[Callable[..., Any]], jax.stages.Traced]
Lower = Callable[[Callable[..., Any]], jax.stages.Lowered]

# A plan that adds less of the step's time is not worth further compiles.
_CHEAP = 0.08
_MAX_DIVISIONS = 3
# Of what loops stack, tried whatever the limit: to stack less can save time,
# and what a limit allows, a larger one must find, too.
_SHARES = (0.5, 0.875)


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
      # On CPU the results of a step do not change by a bit. A GPU may choose
      # other kernels anyway, and memory traffic is what its time goes to.
      keep_bits=self.platform == "cpu",
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
      search.stack_less(stacked_bytes)
    if found.number and not search.is_cheap:
      search.recompute_blocks(found)
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
  smallest = capture.planner(fun).smallest_bytes()
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
    planner = capture.planner(variant.apply(fun, request))
    smallest = min(smallest, planner.smallest_bytes())
  return smallest


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tried:
  """A version that was fitted.

  Attributes:
    variant: The version.
    planner: Of its module.
    extra_s: What it and the plan for the limit cost; None if nothing fits.
  """

  variant: Variant
  planner: LimitPlanner
  extra_s: float | None


class _Search:
  """Fits versions of a step, one after the other."""

  def __init__(
    self, fun: Callable[..., Any], capture: Capture, request: hook.Request
  ):
    assert request.limit_bytes is not None
    self._fun = fun
    self._capture = capture
    self._request = request
    self._limit_bytes = request.limit_bytes
    planner = capture.planner(fun)
    self._step_s = planner.step_s
    self.excess_bytes = planner.total_bytes - self._limit_bytes
    self._tried = [self._fitted(Variant(), planner)]

  @property
  def is_cheap(self) -> bool:
    """Whether a version fits that hardly costs anything."""
    fitting = [t.extra_s for t in self._tried if t.extra_s is not None]
    return bool(fitting) and min(fitting) <= _CHEAP * self._step_s

  def best(self) -> Variant:
    """Returns the cheapest version that fits, or else the smallest."""
    fitting = [t for t in self._tried if t.extra_s is not None]
    if fitting:
      return min(fitting, key=lambda t: t.extra_s or 0.0).variant
    return min(self._tried, key=lambda t: t.planner.smallest_bytes()).variant

  def stack_less(self, stacked_bytes: int) -> None:
    """Tries a few amounts that loops do not stack.

    Args:
      stacked_bytes: What could be dropped.
    """
    excess = self.excess_bytes
    shares = [int(share * stacked_bytes) for share in _SHARES]
    amounts: list[SaveBytes] = [excess // 2, excess]
    amounts += [amount for amount in shares if amount > excess]
    for amount in (*amounts, "all"):
      self._try(Variant(save_bytes=amount))

  def recompute_blocks(self, found: blocks.Blocks) -> None:
    """Tries all blocks; then less of them, or several at once."""
    number = found.number
    every = self._try(Variant(choice=blocks.BlockChoice(num_groups=number)))
    room = self._limit_bytes - every.planner.total_bytes
    if room > 0:
      # The planner may find room for one thing more.
      for keep_bytes in (room, room + found.crossing_bytes):
        choice = blocks.BlockChoice(num_groups=number, keep_bytes=keep_bytes)
        self._try(Variant(choice=choice))
      return
    for _ in range(_MAX_DIVISIONS):
      joined = -room // max(1, found.crossing_bytes) + 1
      number = max(1, min(number - 1, number - joined))
      tried = self._try(Variant(choice=blocks.BlockChoice(num_groups=number)))
      room = self._limit_bytes - tried.planner.total_bytes
      if number == 1 or tried.extra_s is not None:
        return

  def _try(self, variant: Variant) -> _Tried:
    variant = dataclasses.replace(variant, platform=self._capture.platform)
    seen: list[tuple[int, int]] = []
    changed = variant.apply(
      self._fun, self._request, lambda *counts: seen.append(counts)
    )
    planner = self._capture.planner(changed)
    num_residuals, saved_bytes = seen[-1]
    # Less to store also saves time, so whole schedules are compared.
    variant = dataclasses.replace(
      variant,
      num_residuals=num_residuals,
      saved_bytes=saved_bytes,
      extra_s=planner.step_s - self._step_s,
    )
    self._tried.append(self._fitted(variant, planner))
    return self._tried[-1]

  def _fitted(self, variant: Variant, planner: LimitPlanner) -> _Tried:
    extra_s = None
    with contextlib.suppress(InfeasibleError):
      extra_s = variant.extra_s + planner.fit(self._limit_bytes).extra_s
    return _Tried(variant=variant, planner=planner, extra_s=extra_s)


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
    # Quick plans are enough to compare versions.
    options = dataclasses.replace(request.options, effort="fast")
    self._request = dataclasses.replace(request, options=options)
    self._data = b""
    self.platform = ""

  def planner(self, fun: Callable[..., Any]) -> LimitPlanner:
    """Returns what plans the module of a step."""
    module = self.module(fun)
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
