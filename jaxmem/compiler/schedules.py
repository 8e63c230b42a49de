"""Modules as XLA schedules them, of steps that are compiled no further."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any

import jax
from jaxmem_hlo import compiler_hook

from jaxmem.compiler.handling import handling
from jaxmem.compiler.steps import Step

if TYPE_CHECKING:
  # The doors are in this package, and must not load the planner.
  from jaxmem_hlo.module import Module

  from jaxmem.planning import Request


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
  """What XLA showed of a program.

  Attributes:
    data: The scheduled module, serialized.
    platform: "cpu" or "cuda".
  """

  data: bytes
  platform: str


class ScheduleCapture:
  """Compiles versions of a step up to their schedule.

  Args:
    request: Says which device is compiled for.

  Attributes:
    platform: "cpu" or "cuda", once something was compiled.
  """

  def __init__(self, request: Request):
    self._request = request
    self._compiled: Step | None = None
    self._shown: Module | None = None
    self._threads: futures.ThreadPoolExecutor | None = None
    self._begun: dict[Step, futures.Future[_Shown]] = {}
    self.platform = ""

  def begin(self, step: Step) -> None:
    """Begins to compile a version in a thread of its own, where that helps.

    On GPUs most of a compile comes before the schedule is there, on one core.
    Processes that compile one program together have to do so in one order.
    """
    is_known = step is self._compiled or step in self._begun
    if self.begins_early and not is_known:
      if self._threads is None:
        self._threads = futures.ThreadPoolExecutor()
      self._begun[step] = self._threads.submit(
        contextvars.copy_context().run, _schedule, step.prepare()
      )

  @property
  def begins_early(self) -> bool:
    """Whether `begin` does anything."""
    return self._request.platform == "cuda" and jax.process_count() == 1

  def end(self) -> None:
    """Waits for what was begun; nothing compiles any more after that."""
    if self._threads is not None:
      self._threads.shutdown(cancel_futures=True)
    self._threads, self._begun = None, {}

  def module(self, step: Step) -> Module:
    """Returns the scheduled module of a version, as on the target."""
    if self._compiled is step and self._shown is not None:
      return self._shown
    begun = self._begun.pop(step, None)
    if begun is None or begun.exception() is not None:
      # What is wrong shows here, under all of jax's settings of this thread.
      shown = _schedule(step.prepare())
    else:
      shown = begun.result()
    self.platform = shown.platform
    return self._request.read(shown.data, shown.platform)[0]

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


def _schedule(compile_: Callable[[Mapping[str, Any]], Any]) -> _Shown:
  """Compiles a program up to its schedule.

  Args:
    compile_: Compiles it with compiler options.

  Raises:
    JaxRuntimeError: If XLA does not get so far.
  """
  shown: list[_Shown] = []

  def refuse(data: bytes, platform: str) -> bytes | None:
    shown.append(_Shown(data=data, platform=platform))
    raise compiler_hook.CompileRefusedError("Only the schedule was wanted.")

  try:
    with handling(refuse) as options:
      compile_(options)
  except jax.errors.JaxRuntimeError:
    if not shown:
      raise
  return shown[-1]
