"""Modules as XLA schedules them, and compiles that go on from there or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import jax
from jaxmem_hlo import compiler_hook

from jaxmem.compiler.handling import handling
from jaxmem.compiler.held_compile import HeldCompile, Shown
from jaxmem.compiler.steps import Step

if TYPE_CHECKING:
  # The doors are in this package, and must not load the planner.
  from jaxmem_hlo.module import Module

  from jaxmem.planning import Request


class ScheduleCapture:
  """Compiles versions of a step up to their schedule.

      with ScheduleCapture(request) as schedules:
        module = schedules.module(step)
        executable = schedules.finish(step, handler)

  Inside of the context compiles wait at their schedules, each in a thread of
  its own, so that the one that is wanted goes on from there; the others are
  given up at its end. Programs of several processes do not wait, as these have
  to compile in one order.

  Args:
    request: Says which device is compiled for.

  Attributes:
    platform: "cpu" or "cuda", once something was compiled.
  """

  def __init__(self, request: Request):
    self._request = request
    self._compiled: Step | None = None
    self._shown: Module | None = None
    self._is_open = False
    self._held: dict[Step, HeldCompile] = {}
    self.platform = ""

  def __enter__(self) -> Self:
    self._is_open = True
    return self

  def __exit__(self, *unused: object) -> None:
    self._is_open = False
    try:
      self._end()
    except BaseException:  # Such as Ctrl-C: nothing must stay behind.
      self._end()
      raise

  def begin(self, step: Step) -> None:
    """Begins to compile a version where that helps; see `begins_early`."""
    is_known = step is self._compiled or step in self._held
    if self.begins_early and not is_known:
      self._start(step)

  @property
  def begins_early(self) -> bool:
    """Whether `begin` does anything.

    On GPUs most of a compile comes before the schedule is there, on one core.
    """
    return self._request.platform == "cuda" and self._is_holding

  @property
  def _is_holding(self) -> bool:
    return self._is_open and jax.process_count() == 1

  def module(self, step: Step) -> Module:
    """Returns the scheduled module of a version, as on the target."""
    if self._compiled is step and self._shown is not None:
      return self._shown
    shown = self._schedule(step)
    self.platform = shown.platform
    return self._request.read(shown.data, shown.platform)[0]

  def _schedule(self, step: Step) -> Shown:
    held = self._held.get(step) or self._start(step)
    if self._is_holding:
      return held.shown()
    try:
      return held.shown()
    finally:
      self._end()

  def _start(self, step: Step) -> HeldCompile:
    # It is known before it starts: else an interrupt could leave it waiting.
    held = self._held[step] = HeldCompile(
      step.prepare(), as_scheduled=self._request.runs_as_scheduled
    )
    held.start()
    return held

  def held(self, step: Step) -> HeldCompile | None:
    """Returns a version's compile that may be finished, if there is one."""
    held = self._held.get(step)
    return held if held is not None and held.is_open else None

  def finish(self, step: Step, handler: compiler_hook.Handler) -> Any:
    """Compiles a version to the end, from its schedule if it waits there.

    Args:
      step: The version.
      handler: Answers XLA.

    Returns:
      What `step.compile` returns.
    """
    held = self.held(step)
    if held is not None:
      return held.finish(handler)
    as_scheduled = self._request.runs_as_scheduled
    with handling(handler, as_scheduled=as_scheduled) as options:
      return step.compile(options)

  def compiled(self, step: Step) -> Any:
    """Compiles a version to the end, as `jax.jit` does on the target.

    What XLA showed is kept, so that `module` need not compile it again.
    """
    self._shown = None
    with handling(self._show) as options:
      result = step.compile(options)
    self._compiled = step
    return result

  def _show(self, data: bytes, platform: str) -> bytes | None:
    self.platform = platform
    self._shown, is_changed = self._request.read(data, platform)
    return self._shown.to_bytes() if is_changed else None

  def _end(self) -> None:
    """Gives up what waits; nothing compiles any more after that."""
    for held in self._held.values():
      held.give_up()
    for held in self._held.values():
      held.join()
    self._held = {}
