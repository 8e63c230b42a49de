"""What XLA makes of a step by itself, before and after it recomputes."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxmem_hlo.module import Module

from jaxmem.planning.decision import num_rematerialized


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnPlan:
  """XLA's own plan of a step.

  Attributes:
    scheduled: The step as XLA scheduled it.
    temp_bytes: Its temporaries, as measured.
    predicted_bytes: Those of its schedule, as predicted.
    num_rematerialized: Operations that XLA recomputed after it had scheduled
      the step.
  """

  scheduled: Module
  temp_bytes: int
  predicted_bytes: int
  num_rematerialized: int

  @classmethod
  def of(
    cls, executable: Any, scheduled: Module, predicted_bytes: int
  ) -> OwnPlan:
    """Reads a plan.

    Args:
      executable: What XLA made of the step.
      scheduled: The step as XLA scheduled it.
      predicted_bytes: Its temporaries.
    """
    memory = executable.get_compiled_memory_stats()
    number = num_rematerialized(executable, scheduled, predicted_bytes)
    return cls(
      scheduled=scheduled,
      temp_bytes=memory.temp_size_in_bytes,
      predicted_bytes=predicted_bytes,
      num_rematerialized=number,
    )

  @property
  def scheduled_bytes(self) -> int:
    """Temporaries of the schedule: as measured, if that is what runs."""
    is_changed = self.num_rematerialized > 0
    return self.predicted_bytes if is_changed else self.temp_bytes

  @property
  def missed_bytes(self) -> int:
    """By how much the prediction of the schedule missed."""
    return abs(self.scheduled_bytes - self.predicted_bytes)
