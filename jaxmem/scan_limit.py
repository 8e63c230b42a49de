"""How much of what loops stack for their backward pass a byte limit drops.

What a loop stacks is one buffer of XLA's program, which nothing can recompute
piece by piece once the program is scheduled. So it is dropped before XLA sees
the program, and the two kinds of recompute are priced together: for a few
amounts to drop, the step is compiled up to its schedule and fitted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jaxmem_hlo import transform
from jaxmem_hlo.module import Module

from jaxmem import hook, scan
from jaxmem.limit_plan import LimitPlanner
from jaxmem.plan import InfeasibleError
from jaxmem.scan.step import SaveBytes

# Traces and lowers a function for the arguments of the step.
Trace = Callable[[Callable[..., Any]], jax.stages.Traced]
Lower = Callable[[Callable[..., Any]], jax.stages.Lowered]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drop:
  """What is dropped.

  Attributes:
    save_bytes: As `scan.rewrite_step` takes it; 0 for nothing.
    num_residuals: How many arrays are not stacked any more.
    saved_bytes: Their bytes.
    extra_s: Estimated seconds that the step takes more; negative where stacking
      took longer than making them again.
    platform: "cpu" or "cuda".
  """

  save_bytes: SaveBytes = 0
  num_residuals: int = 0
  saved_bytes: int = 0
  extra_s: float = 0.0
  platform: str = "cpu"

  def apply(
    self, fun: Callable[..., Any], request: hook.Request
  ) -> Callable[..., Any]:
    """Returns the step that stacks less."""
    if not self.save_bytes:
      return fun
    rates = request.rates(self.platform)
    return scan.drop_scan_residuals(fun, self.save_bytes, rates=rates)


def pick(
  fun: Callable[..., Any],
  trace: Trace,
  lower: Lower,
  compiler_options: dict[str, Any] | None,
  request: hook.Request,
) -> Drop:
  """Finds the amount with which the step fits the limit at the least cost.

  Args:
    fun: The step.
    trace: Traces it.
    lower: Lowers it, or a function of the same arguments.
    compiler_options: For compiling what was lowered.
    request: Its limit is the one to meet.

  Returns:
    What to drop; nothing if the step fits as it is or stacks nothing that can
    be dropped. If no amount makes it fit, the one that comes closest.
  """
  limit_bytes = request.limit_bytes
  if limit_bytes is None or not _candidates(trace(fun).jaxpr, request):
    return Drop()
  capture = Capture(lower, compiler_options, request)
  planner = capture.planner(fun)
  excess = planner.total_bytes - limit_bytes
  if excess <= 0:
    return Drop()
  step_s = planner.step_s
  tried = [_Tried(Drop(), planner, limit_bytes)]
  for drop, changed in _tries(fun, request, capture.platform, excess):
    planner = capture.planner(changed)
    # Dropping also saves the time of stacking, so both schedules are asked.
    found = dataclasses.replace(drop(), extra_s=planner.step_s - step_s)
    tried.append(_Tried(found, planner, limit_bytes))
  fitting = [t for t in tried if t.extra_s is not None]
  if fitting:
    return min(fitting, key=lambda t: t.extra_s or 0.0).drop
  return min(tried, key=lambda t: t.planner.smallest_bytes()).drop


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
  planner = capture.planner(fun)
  smallest = planner.smallest_bytes()
  if _candidates(trace(fun).jaxpr, request):
    rates = request.rates(capture.platform)
    changed = scan.drop_scan_residuals(fun, "all", rates=rates)
    smallest = min(smallest, capture.planner(changed).smallest_bytes())
  return smallest


class _Tried:
  """An amount that was tried.

  Attributes:
    drop: What it drops.
    planner: Of the step that stacks less.
    extra_s: What it and the plan for the limit cost; None if nothing fits.
  """

  def __init__(self, drop: Drop, planner: LimitPlanner, limit_bytes: int):
    self.drop = drop
    self.planner = planner
    self.extra_s: float | None = None
    with contextlib.suppress(InfeasibleError):
      self.extra_s = drop.extra_s + planner.fit(limit_bytes).extra_s


def _tries(
  fun: Callable[..., Any], request: hook.Request, platform: str, excess: int
) -> Iterator[tuple[Callable[[], Drop], Callable[..., Any]]]:
  """Yields steps that stack less, and what they drop once they are traced."""
  amounts: tuple[SaveBytes, ...] = (excess // 2, excess, "all")
  for amount in amounts:
    seen: list[scan.Rewritten] = []
    changed = scan.drop_scan_residuals(
      fun, amount, rates=request.rates(platform), on_rewritten=seen.append
    )
    yield functools.partial(_drop, amount, seen, platform), changed


def _drop(amount: SaveBytes, seen: list[scan.Rewritten], platform: str) -> Drop:
  rewritten = seen[-1]
  return Drop(
    save_bytes=amount,
    num_residuals=len(rewritten.dropped),
    saved_bytes=rewritten.saved_bytes,
    platform=platform,
  )


def _candidates(jaxpr: Any, request: hook.Request) -> bool:
  """Whether a step stacks anything that could be dropped."""
  # Only seconds depend on the rates, and these are not asked for here.
  candidates, _ = scan.find_candidates(jaxpr, request.rates("cpu"))
  return bool(candidates)


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
    # Quick plans are enough to compare amounts.
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
