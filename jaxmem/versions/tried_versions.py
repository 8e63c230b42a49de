"""Versions of a step that were compiled to meet a limit, and which may be."""

from __future__ import annotations

import dataclasses
import functools

from jaxmem_hlo.module import Module

from jaxmem.compiler import ScheduleCapture
from jaxmem.cost import Device
from jaxmem.planning import TUNING, LimitPlanner, Request, Wanted
from jaxmem.versions.compared import ComparedVersion
from jaxmem.versions.compiled_version import compile_version, try_to_compile
from jaxmem.versions.found_plans import FoundPlans
from jaxmem.versions.version import Version

_TUNING = TUNING.versions


class TriedVersions:
  """Compiles versions of a step, each once, and says which are promising.

  With effort "fast", only those are that are estimated to be much faster than
  what was found, and any while nothing fits.

  Args:
    as_written: The step as it is written.
    schedules: Compiles versions of it.
    request: Its limit is the one to meet.

  Attributes:
    schedules: Likewise.
    request: Likewise.
    limit_bytes: The limit.
    is_fast: Whether little effort is wanted.
    compiled: What was compiled, in that order.
    found: Plans of these.
    written: The step as it is written, compiled up to its schedule.
    base: What other versions are made of.
  """

  def __init__(
    self, as_written: Version, schedules: ScheduleCapture, request: Request
  ):
    assert request.limit_bytes is not None
    self.schedules = schedules
    self.request = request
    self.limit_bytes = request.limit_bytes
    self.is_fast = request.options.effort == "fast"
    self.compiled: list[ComparedVersion] = []
    # By what was dropped, and how; None where XLA could not compile it.
    self._known: dict[tuple[object, ...], ComparedVersion | None] = {}
    self.found = FoundPlans(self.limit_bytes)
    module, planner = compile_version(as_written.step, schedules, request)
    self.written = self._compared(as_written, module, planner)
    self.base = self.written

  @functools.cached_property
  def device(self) -> Device:
    """The device planned for; known once something was compiled."""
    return self.request.device(self.schedules.platform)

  def begin_with(self, base: Version) -> None:
    """Tries a version that others are made of from then on."""
    self.base = self.compile(base) or self.base

  def compile(self, version: Version) -> ComparedVersion | None:
    """Compiles a version of the step; None if that cannot be done."""
    key = _key(version)
    if key in self._known:
      return self._known[key]
    compiled = try_to_compile(version.step, self.schedules, self.request)
    if compiled is None:
      self._known[key] = None
      return None
    module, planner = compiled
    extra_s = planner.step_s - self.written.planner.step_s
    version = dataclasses.replace(version, extra_s=extra_s)
    return self._compared(version, module, planner)

  def _compared(
    self, version: Version, module: Module, planner: LimitPlanner
  ) -> ComparedVersion:
    promise = planner.promise(self.limit_bytes)
    tried = ComparedVersion(
      version=version,
      module=module,
      planner=planner,
      excess_bytes=planner.total_bytes - self.limit_bytes,
      edits_s=promise.edits_s,
      mapping_s=promise.mapping_s,
    )
    self.compiled.append(tried)
    self._known[_key(version)] = tried
    return tried

  def is_promising(self, seconds: float, total_bytes: int) -> bool:
    """Whether no version that was tried has a schedule as fast as this.

    Plans those that might.

    Args:
      seconds: Of what runs.
      total_bytes: Of the whole program; at most the limit counts.
    """
    if self.written.waits:
      # It may run while the device waits for the host.
      return True
    temp_bytes = min(total_bytes, self.limit_bytes)
    temp_bytes -= self.written.planner.fixed_bytes
    seconds += self.device.mapping_s(temp_bytes)
    if self.is_fast:
      return self.is_much_faster(seconds)
    wanted = Wanted(worse_s=seconds, is_any=False)
    rivals = [t for t in self.compiled if self.found.hopeful_s(t) <= seconds]
    rivals.sort(key=lambda tried: tried.schedule_s)
    for find_s in (self.found.sketched_s, self.found.planned_s):
      for tried in rivals:
        found_s = find_s(tried, wanted)
        if found_s is not None and found_s <= seconds:
          return False
      rivals = [t for t in rivals if self.found.usual_s(t) <= seconds]
    return True

  def is_much_faster(self, seconds: float) -> bool:
    """Whether all plans of versions that were tried are estimated to be slower.

    By so much that another compile is worth it with little effort.

    Args:
      seconds: Of a whole schedule.
    """
    gain_s = _TUNING.quick_gain_share * self.written.planner.step_s
    wanted = Wanted(is_any=False)
    rivals = [t for t in self.compiled if t.schedule_s <= seconds + gain_s]
    rivals.sort(key=lambda tried: tried.schedule_s)
    return all(self.found.find(tried, wanted) is None for tried in rivals)


def _key(version: Version) -> tuple[object, ...]:
  """What versions are alike by."""
  return version.dropped, version.recipe
