"""What was decided for a module, and the module that comes of it.

A decision names instructions by their ids, so it also holds for the same module
of another compile.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem.report import Status
from jaxmem.rewrite import Edits, apply_edits


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

  def as_given(self) -> ModulePlan:
    """Returns the plan that changes nothing."""
    return dataclasses.replace(
      self,
      orders={},
      removed_copies=(),
      planned_bytes=self.baseline_bytes,
      status="baseline",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EditBound:
  """What no edits of a module under a byte limit go below.

  Attributes:
    temp_bytes: Temporaries, whatever the limit is.
    schedule_s: Seconds of a schedule that fits the limit; None unless effort
      "prove" asks for it.
  """

  temp_bytes: int
  schedule_s: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitPlan:
  """What was decided for a module under a byte limit.

  Attributes:
    base: The order and the copies that the edits are made on.
    edits: What runs again and what moves to the host; ids of the module that
      `base` makes.
    order: Ids of the edited entry in execution order, where copies to and from
      the host were moved behind kernels, or XLA's own order saves as much; None
      where neither is so.
    limit_bytes: Most bytes of the whole program.
    fixed_bytes: Bytes of arguments and outputs.
    planned_bytes: Predicted temporaries.
    bound: What no plan with edits of this kind, on any order that was tried,
      goes below.
    step_s: Estimated seconds of the step without edits.
    extra_s: Estimated seconds that the edits add.
    schedule_s: Estimated seconds of all that the planned schedule runs, and of
      mapping its temporaries (see `Device.mapping_s`). Without that, it is less
      than `step_s` and `extra_s` together where originals are not needed
      any more, or copies were removed.
    first_s: Wall time until something fitted, planning the order and other
      limits included.
    seconds: Wall time of planning the module, likewise.
  """

  base: ModulePlan
  edits: Edits
  order: tuple[int, ...] | None
  limit_bytes: int
  fixed_bytes: int
  planned_bytes: int
  bound: EditBound
  step_s: float
  extra_s: float
  schedule_s: float
  first_s: float
  seconds: float

  @property
  def platform(self) -> str:
    """What the module was compiled for: "cpu" or "cuda"."""
    return self.base.platform

  @property
  def baseline_bytes(self) -> int:
    """Predicted for XLA's own order of the module."""
    return self.base.baseline_bytes

  @property
  def lower_bound_bytes(self) -> int:
    """Temporaries that no edits, on any order that was tried, go below."""
    return self.bound.temp_bytes

  @property
  def is_changed(self) -> bool:
    """Whether the plan differs from XLA's."""
    return self.base.is_changed or bool(self.edits) or self.order is not None

  def apply(self, module: Module) -> Module:
    """Returns the module that was planned, as planned."""
    changed = self.base.apply(module)
    if self.edits:
      changed = apply_edits(changed, self.edits, self.base.platform)
    if self.order is not None:
      changed = changed.with_schedules({changed.entry.id: self.order})
    return changed


Decision = ModulePlan | LimitPlan


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedModule[D: Decision]:
  """A module before and after it was planned.

  Attributes:
    given: The scheduled module that was planned.
    module: The same as planned: what XLA gets.
    decision: What made the one of the other.
  """

  given: Module
  module: Module
  decision: D

  @staticmethod
  def of[E: Decision](given: Module, decision: E) -> PlannedModule[E]:
    """Applies a decision to the module it was made for."""
    module = decision.apply(given) if decision.is_changed else given
    return PlannedModule(given=given, module=module, decision=decision)

  @functools.cached_property
  def model(self) -> AssignmentModel:
    """Predicts the buffer assignment of the planned module."""
    return AssignmentModel(self.module, self.decision.platform)

  @property
  def order(self) -> tuple[str, ...]:
    """Names of the entry's instructions in the planned execution order."""
    return tuple(i.name for i in self.module.schedule(self.module.entry.id))

  @property
  def planned_bytes(self) -> int:
    """Predicted temporaries of the planned module."""
    return self.decision.planned_bytes

  def num_rematerialized(self, executable: Any) -> int:
    """Counts the operations that XLA recomputes beyond the planned module.

    Args:
      executable: What XLA made of the module.
    """
    return num_rematerialized(executable, self.module, self.planned_bytes)


def num_rematerialized(
  executable: Any, scheduled: Module, predicted_bytes: int
) -> int:
  """Counts the operations that XLA recomputes beyond a scheduled module.

  On GPUs XLA rematerialises on its own once a schedule stands, if the program
  takes more than its share of the device. What it adds is named
  "fusion.7.remat". Where XLA made as many bytes of the module as were
  predicted, it added nothing.

  Args:
    executable: What XLA made of the module.
    scheduled: The module.
    predicted_bytes: Its temporaries.
  """
  memory = executable.get_compiled_memory_stats()
  if memory.temp_size_in_bytes == predicted_bytes:
    return 0
  proto = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
  return sum(
    ".remat" in instruction.name and instruction.name not in scheduled.names
    for computation in Module.from_bytes(proto).computations
    if not computation.is_fusion
    for instruction in computation.instructions
    if instruction.opcode != "bitcast"
  )
