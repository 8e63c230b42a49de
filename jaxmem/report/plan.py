"""The plan of one step: everything decided, and what XLA made of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxmem_hlo.replay import ReplayReport

from jaxmem import units
from jaxmem.report.donation import DonationAdvice, donation_lines
from jaxmem.report.layout import Layout, PlannedBuffer

if TYPE_CHECKING:
  from jaxmem.report.frontier import Frontier

_FORMAT = 3
_NUM_TOP_BUFFERS = 8


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
class Budget:
  """What a byte limit cost. Seconds are estimates for the target.

  Attributes:
    limit_bytes: Most bytes that the whole program may take.
    num_recomputed: Operations that run a second time.
    num_offloaded: Values that move to the host and back.
    num_dropped: Residuals that do not wait for the backward pass, but are made
      again: those of blocks, or arrays that loops would have stacked.
    dropped_bytes: Their bytes before compilation. Where blocks are recomputed,
      XLA would not have kept them all.
    step_s: Seconds of the step without these.
    extra_s: Seconds that they add.
    written_s: Seconds of XLA's own schedule of the step as it is written.
    schedule_s: Seconds of the planned schedule. It counts what else became of
      it, too: copies that are gone, originals that nobody reads any more, what
      XLA fuses otherwise, waiting for the host.
  """

  limit_bytes: int
  num_recomputed: int
  num_offloaded: int
  num_dropped: int
  dropped_bytes: int
  step_s: float
  extra_s: float
  written_s: float
  schedule_s: float

  @property
  def extra(self) -> float:
    """The time that is added, as a fraction of the step's."""
    return self.extra_s / self.step_s if self.step_s else 0.0

  @property
  def change(self) -> float:
    """What a step takes more than XLA's own, as a fraction of that."""
    return self.schedule_s / self.written_s - 1.0 if self.written_s else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
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
    lower_bound_bytes: No order of this program has smaller temporaries.
    argument_bytes: Of all arguments.
    output_bytes: Of all outputs.
    alias_bytes: Of outputs that reuse a donated argument.
    num_instructions: Length of the flattened schedule.
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
    order: Names of the entry's instructions in execution order.
    donation: What donating each array does, or could do.
    before: The buffers under XLA's own order.
    after: The buffers under the plan.
    replay: What `verify` calls; None in a plan that was read from a file.
    frontier_of: What `frontier` calls; None likewise.
  """

  name: str
  target: str
  status: str
  method: str
  is_order_proved: bool
  baseline_temp_bytes: int
  temp_bytes: int
  predicted_temp_bytes: int
  baseline_predicted_bytes: int
  lower_bound_bytes: int
  argument_bytes: int
  output_bytes: int
  alias_bytes: int
  num_instructions: int
  num_removed_copies: int
  kept_copy_bytes: dict[str, int]
  num_pinned: int
  planning_s: float
  compile_s: float
  versions: dict[str, str]
  budget: Budget | None
  host: HostTraffic | None
  order: tuple[str, ...]
  donation: tuple[DonationAdvice, ...]
  before: Layout
  after: Layout
  replay: Callable[[], ReplayReport] | None = dataclasses.field(
    default=None, repr=False, compare=False
  )

  frontier_of: Callable[[Sequence[int] | None], Frontier] | None = (
    dataclasses.field(default=None, repr=False, compare=False)
  )

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
  def arena(self) -> Layout:
    """Where every buffer lives: the one arena of temporaries, and the slots."""
    return self.after

  @property
  def saved_bytes(self) -> int:
    """Bytes of temporaries that the plan saves."""
    return self.baseline_temp_bytes - self.temp_bytes

  @property
  def gap(self) -> float:
    """How far the plan's temporaries lie above the bound, as a fraction."""
    return self.temp_bytes / max(1, self.lower_bound_bytes) - 1

  @property
  def model_error(self) -> int:
    """Bytes by which the assignment model missed what XLA reported."""
    return self.predicted_temp_bytes - self.temp_bytes

  @property
  def baseline_model_error(self) -> int:
    """The same for XLA's own order."""
    return self.baseline_predicted_bytes - self.baseline_temp_bytes

  def __str__(self) -> str:
    return "\n".join(_summary(self))

  def verify(self) -> ReplayReport:
    """Proves the plan against XLA's real buffer assignment.

    Compiles the planned step once more, has XLA write down its schedule and
    where it placed every buffer, and replays each read and write.

    Returns:
      How much was checked.

    Raises:
      FaultyAssignmentError: If some read would see something else than it
        should; the error names it.
      RuntimeError: If the plan was read from a file.
    """
    if self.replay is None:
      raise RuntimeError(
        "A plan read from a file knows no program to verify; call verify on"
        " what jaxmem.plan returns."
      )
    report = self.replay()
    report.raise_if_faulty()
    return report

  def frontier(
    self, limits: Sequence[units.ByteQuantity] | None = None
  ) -> Frontier:
    """Plans for several byte limits: bytes against estimated time.

    Nothing is compiled or run.

    Args:
      limits: Most bytes of the whole program, as `memory_limit` takes them,
        but for shares of a device. By default ten from what the plan takes
        without a limit down to the least that was found.

    Raises:
      RuntimeError: If the plan was read from a file.
    """
    if self.frontier_of is None:
      raise RuntimeError(
        "A plan read from a file knows no program; call frontier on what"
        " jaxmem.plan returns."
      )
    if limits is None:
      return self.frontier_of(None)
    return self.frontier_of([units.parse_bytes(limit) for limit in limits])

  def to_json(self) -> str:
    """Serializes the plan; `from_json` reads it back equal."""
    plain = dataclasses.replace(self, replay=None, frontier_of=None)
    fields = dataclasses.asdict(plain)
    del fields["replay"], fields["frontier_of"]
    return json.dumps({"format": _FORMAT, **fields})

  @classmethod
  def from_json(cls, text: str) -> Plan:
    """Reads what `to_json` wrote.

    Raises:
      ValueError: If the text is not such a plan.
    """
    try:
      fields: dict[str, Any] = json.loads(text)
      if fields.pop("format") != _FORMAT:
        raise ValueError("an unknown format version")
      for key in ("before", "after"):
        fields[key] = _layout(fields[key])
      if fields["budget"] is not None:
        fields["budget"] = Budget(**fields["budget"])
      if fields["host"] is not None:
        fields["host"] = HostTraffic(**fields["host"])
      fields["order"] = tuple(fields["order"])
      fields["donation"] = tuple(
        DonationAdvice(**advice) for advice in fields["donation"]
      )
      return cls(**fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"Not a plan written by Plan.to_json: {error!r}. Write it anew with"
        " this version of jaxmem."
      ) from error

  def save_html(self, path: str | os.PathLike[str]) -> None:
    """Writes a page that shows all buffers, before and after.

    It opens from disk in any browser and needs no network.
    """
    # The page's template is read on demand.
    from jaxmem.report.plan_page import plan_html

    with open(path, "w", encoding="utf-8") as file:
      file.write(plan_html(self))

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes `to_json()` to a file."""
    with open(path, "w", encoding="utf-8") as file:
      file.write(self.to_json())


def _layout(fields: dict[str, Any]) -> Layout:
  buffers = tuple(PlannedBuffer(**b) for b in fields.pop("buffers"))
  return Layout(buffers=buffers, **fields)


def _summary(plan: Plan) -> list[str]:
  before, after = plan.baseline_temp_bytes, plan.temp_bytes
  change = 100.0 * (after / before - 1) if before else 0.0
  lines = [
    f"{plan.name} on {plan.target}: {_STATUS[plan.status]}",
    f"  temporaries   {units.format_bytes(before)} ->"
    f" {units.format_bytes(after)} ({change:+.1f} %)",
    f"  lower bound   {units.format_bytes(plan.lower_bound_bytes)}"
    f" (gap {100 * plan.gap:.1f} %)",
    f"  whole program {units.format_bytes(plan.total_bytes)}"
    f" (arguments {units.format_bytes(plan.argument_bytes)}, outputs"
    f" {units.format_bytes(plan.output_bytes)}, of these aliased"
    f" {units.format_bytes(plan.alias_bytes)})",
    f"  planning      {plan.planning_s:.2f} s of {plan.compile_s:.1f} s for"
    f" two compiles; {plan.num_instructions} instructions, {plan.method}",
  ]
  if plan.budget is not None:
    lines.append(f"  byte limit    {_budget_line(plan.budget)}")
  if plan.host is not None:
    lines.append(f"  on the host   {_host_line(plan.host)}")
  arena = plan.arena
  fragmentation = units.format_bytes(arena.fragmentation_bytes)
  lines.append(
    f"  arena         {len(arena.buffers)} buffers, {fragmentation} lost to"
    " packing"
  )
  if plan.model_error:
    lines.append(f"  model error   {plan.model_error:+d} bytes")
  if plan.num_removed_copies:
    lines.append(f"  copies        {plan.num_removed_copies} removed")
  if plan.kept_copy_bytes.get("relayout"):
    size = units.format_bytes(plan.kept_copy_bytes["relayout"])
    lines.append(f"  relayouts     {size} of copies change a layout and stay")
  if plan.num_pinned:
    lines.append(f"  left in place {plan.num_pinned} ordered instructions")
  labels = itertools.chain(["donation"], itertools.repeat(""))
  told = zip(labels, donation_lines(plan.donation), strict=False)
  lines += [f"  {label:14}{line}" for label, line in told]
  return [*lines, *_peak_table(plan.after.at_peak())]


def _budget_line(budget: Budget) -> str:
  limit = units.format_bytes(budget.limit_bytes)
  if not (budget.num_recomputed or budget.num_offloaded or budget.num_dropped):
    return f"{limit} met without recomputing anything"
  moved = ""
  if budget.num_offloaded:
    moved = f", {budget.num_offloaded} values moved to the host"
  if budget.num_dropped:
    size = units.format_bytes(budget.dropped_bytes)
    moved += f", {budget.num_dropped} residuals ({size}) made again"
  return (
    f"{limit}: {budget.num_recomputed} operations run twice{moved}; by estimate"
    f" {100 * budget.extra:+.1f} % of {1e3 * budget.step_s:.2f} ms, all in all"
    f" {100 * budget.change:+.1f} % against XLA's"
  )


def _host_line(host: HostTraffic) -> str:
  argument, outward, inward = map(
    units.format_bytes,
    (host.argument_bytes, host.to_host_bytes, host.from_host_bytes),
  )
  return (
    f"{argument} of arguments; {inward} come in and {outward} go out, for which"
    f" the device waits {1e3 * host.waiting_s:.2f} of {1e3 * host.step_s:.2f}"
    " ms by estimate"
  )


_STATUS = {
  "optimal": "optimal, proven",
  "feasible": "better than XLA's order, not proven optimal",
  "baseline": "XLA's own order kept",
}


def _peak_table(buffers: Sequence[PlannedBuffer]) -> list[str]:
  if not buffers:
    return []
  lines = [f"  at the peak   {len(buffers)} buffers, the largest:"]
  for buffer in buffers[:_NUM_TOP_BUFFERS]:
    size = units.format_bytes(buffer.size_bytes)
    lines.append(f"    {size:>10}  {buffer.name}  {buffer.source}".rstrip())
  return lines
