"""What is known of a planned step: everything decided, and XLA's figures."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxmem.report.communication import Communication, Replicated
from jaxmem.report.donation import DonationAdvice
from jaxmem.report.layout import Layout, PlannedBuffer
from jaxmem.report.peak import PeakRow
from jaxmem.report.timing import Timing

Status = Literal["optimal", "feasible", "baseline"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
  """What of a step is in the host's memory, and what that costs.

  Attributes:
    argument_bytes: Of arguments that are there, by XLA's figures.
    to_host_bytes: Copied there in a step.
    from_host_bytes: Copied to the device in a step.
    step_s: Estimated seconds of the step.
    waiting_s: Of these, while nothing runs but copies.
  """

  argument_bytes: int
  to_host_bytes: int
  from_host_bytes: int
  step_s: float
  waiting_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LimitShare:
  """What a limit is a share of, that was not given in bytes.

  Attributes:
    written: The limit as it was given: "80%", or "auto" for what is free.
    pool_bytes: What jax takes of the device's memory; on a CPU, the machine's
      memory.
    device_bytes: Of a described device's memory, of which jax's pool is a
      fraction; None for a device that is here, which says its pool itself.
  """

  written: str
  pool_bytes: int
  device_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EditCost:
  """What one thing that was done for a limit saves, and takes.

  Attributes:
    kind: "recompute", "gather again", "offload", "blocks", "loop residuals",
      "loop stacks", "order", or "all else".
    name: The instruction that runs again, or whose value moves; in words what
      else was done.
    source: Where in the user's program it comes from; empty if not known.
    freed_bytes: How much less temporary memory there is for it. Of a value that
      is made again or moved: its bytes, if it would be live at the peak of the
      same order without edits, and is not.
    extra_s: Estimated seconds that it adds to a step.
  """

  kind: str
  name: str
  source: str
  freed_bytes: int
  extra_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
  """What a byte limit cost. Seconds are estimates for the target.

  Attributes:
    limit_bytes: Most bytes that the whole program may take.
    share: What that is a share of; None for a limit in bytes.
    num_recomputed: Operations that run a second time.
    num_offloaded: Values that move to the host and back.
    num_dropped: Residuals that do not wait for the backward pass, but are made
      again: those of blocks, or arrays that loops would have stacked.
    dropped_bytes: Their bytes before compilation; of several devices those of
      one, as if they were divided evenly. Where blocks are recomputed, XLA
      would not have kept them all.
    num_stacks: Stacks of loops that take fewer bytes, or none: they hold what
      was computed and not what that was converted to, or the loop does itself
      what an optimizer does to them.
    step_s: Seconds of the step without these.
    extra_s: Seconds that they add.
    written_s: Seconds of XLA's own schedule of the step as it is written.
    schedule_s: Seconds of the planned schedule. It counts what else became of
      it, too: copies that are gone, originals that nobody reads any more, what
      XLA fuses otherwise, waiting for the host. Both count what mapping the
      temporaries takes on a CPU.
    least_schedule_s: No edits of the same version of the step, on the orders
      that were tried, make a schedule that takes less; None unless effort
      "prove" asks for it.
    edits: What each thing that was done for the limit saves, and takes. They
      add up: to the temporaries that the plan saves of XLA's own, and to the
      seconds that its schedule takes more.
  """

  limit_bytes: int
  share: LimitShare | None
  num_recomputed: int
  num_offloaded: int
  num_dropped: int
  dropped_bytes: int
  num_stacks: int = 0
  step_s: float
  extra_s: float
  written_s: float
  schedule_s: float
  least_schedule_s: float | None = None
  edits: tuple[EditCost, ...] = dataclasses.field(default=(), repr=False)

  @property
  def extra(self) -> float:
    """The time that is added, as a fraction of the step's."""
    return self.extra_s / self.step_s if self.step_s else 0.0

  @property
  def change(self) -> float:
    """What a step takes more than XLA's own, as a fraction of that."""
    return self.schedule_s / self.written_s - 1.0 if self.written_s else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanData:
  """A plan, measured. All bytes are for one execution of the step.

  Attributes:
    name: The function's name.
    target: The device planned for.
    status: "optimal": no order has a lower peak, and that is proven;
      "feasible": better than XLA's order; "baseline": XLA's own order is kept.
    method: What found the order.
    is_order_proved: Whether an order was found whose live bytes are proven
      minimal (within 0.01 %) when empty slots of arguments and outputs count
      as free. XLA's packing may still prefer another.
    baseline_temp_bytes: XLA's temporaries without jaxmem, as measured by
      `memory_analysis` on a compile of its own.
    temp_bytes: The same for the plan.
    predicted_temp_bytes: What the assignment model said it would be.
    baseline_predicted_bytes: The same for XLA's own order.
    baseline_num_rematerialized: Operations that XLA's own rematerialisation
      recomputes without jaxmem. Its temporaries are then fewer than those of
      its schedule, which is what the plan of a byte limit is compared with.
    lower_bound_bytes: No order of this program has smaller temporaries. 0,
      which says nothing, where XLA rematerialised after the plan, or reports
      other temporaries than the assignment model.
    argument_bytes: Of all arguments.
    output_bytes: Of all outputs.
    alias_bytes: Of outputs that reuse a donated argument.
    num_instructions: Length of the flattened schedule.
    num_rematerialized: Operations that XLA's own rematerialisation recomputes
      after the plan was made, which it does without a byte limit only. All but
      the bytes of `memory_analysis` is then said of the program before that.
    num_removed_copies: Copies of donated arguments that the plan does without.
    kept_copy_bytes: Why other copies stay -> their bytes; see
      `jaxmem.rewrite.removable_copies`.
    num_pinned: Instructions whose mutual order was left alone because another
      device, the host or a hidden state sees it.
    planning_s: Seconds spent on planning.
    compile_s: Seconds of both compiles, planning included.
    versions: Of jax, jaxlib and jaxmem.
    budget: What the byte limit cost; None if none was given.
    host: What is in the host's memory; None if nothing is.
    communication: Of the planned schedule; None if there is none.
    baseline_communication: Of XLA's own schedule.
    replicated: Large arguments that every device has all of.
    resharded: Buffers at the plan's peak that are there because operations read
      arrays that are divided otherwise.
    order: Names of the entry's instructions in execution order.
    donation: What donating each array does, or could do.
    peak: What the bytes of the whole program are when most are in use; they add
      up to `total_bytes`.
    before: The buffers under XLA's own order.
    after: The buffers under the plan.
    baseline_timing: When the steps of XLA's own schedule run.
    timing: When those of the plan run.
  """

  name: str
  target: str
  status: Status
  method: str
  is_order_proved: bool
  baseline_temp_bytes: int
  temp_bytes: int
  predicted_temp_bytes: int
  baseline_predicted_bytes: int
  baseline_num_rematerialized: int
  lower_bound_bytes: int
  argument_bytes: int
  output_bytes: int
  alias_bytes: int
  num_instructions: int
  num_rematerialized: int
  num_removed_copies: int
  kept_copy_bytes: dict[str, int]
  num_pinned: int
  planning_s: float
  compile_s: float
  versions: dict[str, str]
  budget: Budget | None
  host: HostTraffic | None
  communication: Communication | None
  baseline_communication: Communication | None
  replicated: tuple[Replicated, ...]
  # These would make the representation megabytes long.
  resharded: tuple[PlannedBuffer, ...] = dataclasses.field(repr=False)
  order: tuple[str, ...] = dataclasses.field(repr=False)
  donation: tuple[DonationAdvice, ...] = dataclasses.field(repr=False)
  peak: tuple[PeakRow, ...] = dataclasses.field(repr=False)
  before: Layout = dataclasses.field(repr=False)
  after: Layout = dataclasses.field(repr=False)
  baseline_timing: Timing = dataclasses.field(repr=False)
  timing: Timing = dataclasses.field(repr=False)

  @property
  def total_bytes(self) -> int:
    """Device bytes of one execution: arguments, outputs, temporaries."""
    return (
      self.argument_bytes
      + self.output_bytes
      - self.alias_bytes
      + self.temp_bytes
    )

  @property
  def saved_bytes(self) -> int:
    """Bytes of temporaries that the plan saves."""
    return self.baseline_temp_bytes - self.temp_bytes

  @property
  def gap(self) -> float:
    """How far the plan's temporaries lie above the bound, as a fraction."""
    above_bytes = self.temp_bytes - self.lower_bound_bytes
    return above_bytes / max(1, self.lower_bound_bytes)

  @property
  def model_error(self) -> int:
    """Bytes by which the assignment model missed what XLA reported."""
    return self.predicted_temp_bytes - self.temp_bytes

  @property
  def baseline_model_error(self) -> int:
    """The same for XLA's own order."""
    return self.baseline_predicted_bytes - self.baseline_temp_bytes
