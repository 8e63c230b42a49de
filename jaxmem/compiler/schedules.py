"""Modules as XLA schedules them, of steps that are compiled no further."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jaxmem_hlo import compiler_hook

from jaxmem.compiler.handling import handling
from jaxmem.compiler.steps import Step

if TYPE_CHECKING:
  # The doors are in this package, and must not load the planner.
  from jaxmem_hlo.module import Module

  from jaxmem.planning import Request


class ScheduleCapture:
  """Compiles versions of a step up to their schedule.

  Args:
    request: Says which device is compiled for.

  Attributes:
    platform: "cpu" or "cuda", once something was compiled.
  """

  def __init__(self, request: Request):
    self._request = request
    self._data = b""
    self._compiled: Step | None = None
    self._shown: Module | None = None
    self.platform = ""

  def module(self, step: Step) -> Module:
    """Returns the scheduled module of a version, as on the target."""
    if self._compiled is step and self._shown is not None:
      return self._shown
    self._data = b""
    try:
      self._compile(step, self._refuse)
    except jax.errors.JaxRuntimeError:
      if not self._data:
        raise
    return self._request.read(self._data, self.platform)[0]

  def compiled(self, step: Step) -> Any:
    """Compiles a version to the end, as `jax.jit` does on the target.

    What XLA showed is kept, so that `module` need not compile it again.
    """
    self._shown = None
    result = self._compile(step, self._show)
    self._compiled = step
    return result

  def _compile(self, step: Step, handler: compiler_hook.Handler) -> Any:
    with handling(handler) as options:
      return step.compile(options)

  def _show(self, data: bytes, platform: str) -> bytes | None:
    self.platform = platform
    self._shown, is_changed = self._request.read(data, platform)
    return self._shown.to_bytes() if is_changed else None

  def _refuse(self, data: bytes, platform: str) -> bytes | None:
    self._data, self.platform = data, platform
    raise compiler_hook.CompileRefusedError("Only the schedule was wanted.")
