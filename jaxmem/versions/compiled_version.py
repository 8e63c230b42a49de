"""Compiles a version up to its schedule, and plans it; some cannot be.

A version is a program that nobody wrote. XLA's kernels may not be there for it,
as where a Triton product has no tiling that compiles, and what it is scheduled
to may hold something that is not understood. The step as it is written, and
other versions, are planned all the same.
"""

from __future__ import annotations

import logging

import jax
from jaxmem_hlo.buffers import UnsupportedModuleError
from jaxmem_hlo.module import Module

from jaxmem.compiler import ScheduleCapture, Step
from jaxmem.errors import PlanningError
from jaxmem.planning import LimitPlanner, Request

_LOG = logging.getLogger("jaxmem")
_FAILURES = (
  jax.errors.JaxRuntimeError,
  PlanningError,
  UnsupportedModuleError,
)


def compile_version(
  step: Step, schedules: ScheduleCapture, request: Request
) -> tuple[Module, LimitPlanner]:
  """Returns a version's module and its planner.

  Args:
    step: The version.
    schedules: Compiles it up to its schedule.
    request: Options and target.

  Raises:
    jax.errors.JaxRuntimeError: If XLA cannot compile it.
    PlanningError: If XLA cannot show its schedule.
    UnsupportedModuleError: If that holds something unknown.
  """
  module = schedules.module(step)
  return module, request.planner(module, schedules.platform)


def try_to_compile(
  step: Step, schedules: ScheduleCapture, request: Request
) -> tuple[Module, LimitPlanner] | None:
  """Returns what `compile_version` does, None where it raises."""
  try:
    return compile_version(step, schedules, request)
  except _FAILURES as error:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    _LOG.info("A version of a step is left out: %s", reason)
    return None
