"""Compiles versions of a step up to their schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.module import Module

from jaxmem.compiler import mark
from jaxmem.planning import LimitPlanner, Request

Lower = Callable[[jax.stages.Traced], jax.stages.Lowered]


class Capture:
  """Compiles versions of a step up to their schedule.

  Args:
    lower: Lowers a version of the step.
    compiler_options: For compiling what was lowered.
    request: Options and target.

  Attributes:
    options: What versions are compared with.
    platform: "cpu" or "cuda", once something was compiled.
  """

  def __init__(
    self,
    lower: Lower,
    compiler_options: dict[str, Any] | None,
    request: Request,
  ):
    self._lower = lower
    self._compiler_options = compiler_options
    self.options = request.options
    if self.options.effort == "prove":
      # To compare versions, less is enough.
      self.options = dataclasses.replace(self.options, effort="normal")
    self._request = dataclasses.replace(request, options=self.options)
    self._data = b""
    self._compiled: jax.stages.Traced | None = None
    self._shown: Module | None = None
    self.platform = ""

  def planner(self, module: Module) -> LimitPlanner:
    """Returns what plans a module of a step."""
    return self._request.planner(module, self.platform)

  def module(self, traced: jax.stages.Traced) -> Module:
    """Returns the scheduled module of a version, as on the target."""
    if self._compiled is traced and self._shown is not None:
      return self._shown
    try:
      self._compile(traced, self._refuse)
    except jax.errors.JaxRuntimeError:
      if not self._data:
        raise
    return self._request.read(self._data, self.platform)[0]

  def compiled(self, traced: jax.stages.Traced) -> jax.stages.Compiled:
    """Compiles a version to the end, as `jax.jit` does on the target.

    What XLA showed is kept, so that `module` need not compile it again.
    """
    self._shown = None
    result = self._compile(traced, self._show)
    self._compiled = traced
    return result

  def _compile(
    self, traced: jax.stages.Traced, handler: compiler_hook.Handler
  ) -> jax.stages.Compiled:
    tag = mark.new_tag()
    self._data = b""
    compiler_hook.add_handler(tag, handler)
    try:
      lowered = self._lower(mark.with_mark(traced, tag))
      return lowered.compile(compiler_options=self._compiler_options)
    finally:
      compiler_hook.remove_handler(tag)

  def _show(self, data: bytes, platform: str) -> bytes | None:
    self.platform = platform
    self._shown, is_changed = self._request.read(data, platform)
    return self._shown.to_bytes() if is_changed else None

  def _refuse(self, data: bytes, platform: str) -> bytes | None:
    self._data, self.platform = data, platform
    raise compiler_hook.CompileRefusedError("Only the schedule was wanted.")
