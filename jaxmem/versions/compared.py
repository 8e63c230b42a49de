"""A version of a step that was compiled up to its schedule, to be compared."""

from __future__ import annotations

import dataclasses
import math

from jaxmem_hlo.module import Module

from jaxmem.planning import TUNING, LimitPlanner
from jaxmem.versions.version import Version

_TUNING = TUNING.versions


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparedVersion:
  """A version that was compiled up to its schedule.

  Attributes:
    version: The version.
    module: Its scheduled module.
    planner: Of the module.
    excess_bytes: What its whole program takes above the limit without edits.
    edits_s: An estimate of the seconds that edits for the limit add; infinity
      if there may be none.
    mapping_s: Seconds until its temporaries are mapped; see `Device.mapping_s`.
  """

  version: Version
  module: Module
  planner: LimitPlanner
  excess_bytes: int
  edits_s: float
  mapping_s: float

  @property
  def fits(self) -> bool:
    """Whether it needs no edits."""
    return self.excess_bytes <= 0

  @property
  def waits(self) -> bool:
    """Whether XLA's own schedule waits for copies to or from the host."""
    return self.planner.own.waiting_s > 0.0

  @property
  def hidden_bytes(self) -> int:
    """Bytes that may go to the host and come back behind kernels."""
    return int(_TUNING.moved_share * self.planner.moved_bytes)

  @property
  def edited_s(self) -> float:
    """An estimate of what runs in the end; mostly too high."""
    return self.planner.step_s + self.edits_s

  @property
  def schedule_s(self) -> float:
    """The same, and what mapping temporaries takes."""
    return self.edited_s + self.mapping_s

  @property
  def hopeful_s(self) -> float:
    """Seconds that its schedule will hardly be faster than."""
    may_move = 0 < self.excess_bytes <= self.hidden_bytes
    if math.isinf(self.edits_s) or may_move or self.waits:
      # Another order, or the link to the host, may still do it for little, and
      # what runs again may do so while the device waits.
      return self.planner.step_s + self.mapping_s
    refined_s = _TUNING.refined_share * self.edits_s
    return self.planner.step_s + refined_s + self.mapping_s
