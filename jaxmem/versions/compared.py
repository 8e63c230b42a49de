"""A version of a step that was compiled up to its schedule, to be compared."""

from __future__ import annotations

import dataclasses
import math

from jaxmem_hlo.module import Module

from jaxmem.cost import Rates
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
    fits: Whether it needs no edits.
    edits_s: An estimate of the seconds that edits for the limit add; infinity
      if there may be none.
    mapping_s: Seconds until its temporaries are mapped; see `Device.mapping_s`.
    may_move: Whether all that is above the limit may go to the host and come
      back behind kernels.
  """

  version: Version
  module: Module
  planner: LimitPlanner
  fits: bool
  edits_s: float
  mapping_s: float
  may_move: bool

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
    waits = self.planner.own.waiting_s > 0.0
    if math.isinf(self.edits_s) or self.may_move or waits:
      # Another order, or the link to the host, may still do it for little, and
      # what runs again may do so while the device waits.
      return self.planner.step_s + self.mapping_s
    refined_s = _TUNING.refined_share * self.edits_s
    return self.planner.step_s + refined_s + self.mapping_s


def hidden_bytes(planner: LimitPlanner, rates: Rates) -> int:
  """Returns bytes that may go to the host and come back behind kernels.

  Args:
    planner: Of a version.
    rates: Of the device planned for.
  """
  if not planner.has_link:
    return 0
  return int(_TUNING.moved_share * rates.moved_bytes(planner.step_s))
