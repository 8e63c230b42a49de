"""Which version of a step meets a byte limit at the least cost.

Each version is compiled up to its schedule and fitted; the cheapest is taken.
Estimates from the jaxpr say which versions are worth a compile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from jaxmem.compiler import ScheduleCapture, Step
from jaxmem.planning import (
  DecidedModule,
  LimitPlan,
  LimitPlanner,
  PlannedModule,
  Request,
  paused_collector,
  smallest_program_bytes,
)
from jaxmem.versions import blocks, scan
from jaxmem.versions.best_version import best_version
from jaxmem.versions.block_search import BlockSearch
from jaxmem.versions.block_versions import BlockVersion
from jaxmem.versions.compiled_version import compile_version, try_to_compile
from jaxmem.versions.loop_search import stack_less, update_in_loops
from jaxmem.versions.tried_versions import TriedVersions
from jaxmem.versions.version import (
  Version,
  base_of,
  may_update,
  small_versions,
)


@paused_collector()
def pick(
  written: Step, schedules: ScheduleCapture, request: Request
) -> tuple[Version, DecidedModule | None]:
  """Finds the version with which the step fits the limit at the least cost.

  The step is not traced again: versions are made of its jaxpr.

  Args:
    written: The step as it is written.
    schedules: Compiles versions of it.
    request: Its limit is the one to meet.

  Returns:
    The version; the step as it is written if it fits without edits, or cannot
    be changed. If none fits, the one that comes closest. And what planning its
    module led to, if that was planned as the request says.
  """
  as_written = Version(step=written)
  if request.limit_bytes is None:
    return as_written, None
  base = base_of(as_written, request.platform)
  parts, jaxpr = request.num_devices, base.step.jaxpr
  stacked_bytes = scan.droppable_bytes(jaxpr) // parts
  step = blocks.BlockStep(jaxpr, num_devices=parts)
  is_changed = base is not as_written
  updates = may_update(base, request.platform)
  if not (stacked_bytes or step.blocks.number or is_changed or updates):
    return as_written, None
  every = None
  schedules.begin(written)
  is_fast = request.options.effort == "fast"
  if schedules.begins_early and step.blocks.number and not is_fast:
    device = request.device(request.platform)
    every = BlockVersion.every(base, step, device)
    schedules.begin(every.version.step)
  compared = _for_comparison(request)
  versions = TriedVersions(as_written, schedules, compared)
  xla_bytes = versions.written.planner.xla_bytes
  if xla_bytes > request.limit_bytes or versions.written.waits:
    if is_changed:
      versions.begin_with(base)
    if stacked_bytes:
      stack_less(versions, stacked_bytes)
    if step.blocks.number:
      BlockSearch(versions, step).run(every)
    if updates:
      update_in_loops(versions)
  best, outcome = best_version(versions)
  decided = None
  if compared == request:
    if isinstance(outcome, LimitPlan):
      planned = PlannedModule.of(best.module, outcome)
      outcome = best.planner.finished(planned).decision
    decided = DecidedModule.of(best.module, schedules.platform, outcome)
  return dataclasses.replace(best.version, xla_bytes=xla_bytes), decided


def small_planners(
  written: Step, schedules: ScheduleCapture, request: Request
) -> Iterator[LimitPlanner]:
  """Yields planners of the step as it is written, and of its small versions.

  Args:
    written: See `pick`.
    schedules: See `pick`.
    request: Options and target.
  """
  request = _for_comparison(request)
  as_written = Version(step=written)
  base = base_of(as_written, request.platform)
  totals: list[int] = []
  for version in small_versions(base, as_written, schedules, request, totals):
    # Of the step as it is written there must be a plan.
    compile_ = try_to_compile if totals else compile_version
    compiled = compile_(version.step, schedules, request)
    if compiled is not None:
      _, planner = compiled
      totals.append(planner.total_bytes)
      yield planner


@paused_collector()
def smallest_bytes(
  written: Step, schedules: ScheduleCapture, request: Request
) -> int:
  """Returns the bytes of the smallest whole program that is found.

  Args:
    written: See `pick`.
    schedules: See `pick`.
    request: Options and target.
  """
  return smallest_program_bytes(small_planners(written, schedules, request))


def _for_comparison(request: Request) -> Request:
  """Returns what is asked of plans that are compared: not to prove them."""
  if request.options.effort != "prove":
    return request
  options = dataclasses.replace(request.options, effort="normal")
  return dataclasses.replace(request, options=options)
