"""What was decided for a module: its orders, and copies that go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from jaxmem_hlo.module import Module

Status = Literal["optimal", "feasible", "baseline"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModulePlan:
  """What was decided for a module. Bytes are temporaries as XLA counts them.

  Attributes:
    platform: "cpu" or "cuda".
    orders: Computation id -> instruction ids in execution order, for the
      computations whose order changes.
    removed_copies: Ids of the entry's copies that become bitcasts.
    kept_copy_bytes: Why other copies of the entry stay -> their bytes.
    baseline_bytes: Predicted for XLA's own order.
    planned_bytes: Predicted for the plan.
    lower_bound_bytes: No order of this module needs fewer.
    status: "optimal" if no order has fewer live bytes at its peak and XLA's
      packing adds less than one percent to them, "baseline" if XLA's own order
      is kept without that proof, else "feasible".
    method: What found the order.
    search_proved: Whether the search proved its best order optimal in the
      model where empty slots are free.
    num_instructions: Of the whole timeline.
    num_pinned: Instructions of the entry that keep their mutual order.
    seconds: Wall time of planning.
  """

  platform: str
  orders: Mapping[int, tuple[int, ...]]
  removed_copies: tuple[int, ...]
  kept_copy_bytes: Mapping[str, int]
  baseline_bytes: int
  planned_bytes: int
  lower_bound_bytes: int
  status: Status
  method: str
  search_proved: bool
  num_instructions: int
  num_pinned: int
  seconds: float

  @property
  def is_changed(self) -> bool:
    """Whether the plan differs from XLA's."""
    return bool(self.orders or self.removed_copies)

  def apply(self, module: Module) -> Module:
    """Returns the module that was planned, as planned."""
    changed = module.with_bitcasts(self.removed_copies)
    return changed.with_schedules(self.orders)
