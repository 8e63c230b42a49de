"""A plan in words: the lines that `print(plan)` shows, and a page's facts."""

import itertools
from collections.abc import Sequence

from jaxmem import units
from jaxmem.report.communication import (
  communication_lines,
  replicated_lines,
  resharded_lines,
)
from jaxmem.report.donation import donation_lines
from jaxmem.report.edits_report import edits_lines
from jaxmem.report.layout import PlannedBuffer
from jaxmem.report.plan_data import (
  Budget,
  HostTraffic,
  LimitShare,
  PlanData,
)

_MAX_BUFFERS_SHOWN = 8


def summary(plan: PlanData) -> str:
  """Returns what matters of a plan to a person, one fact a line."""
  before, after = plan.baseline_temp_bytes, plan.temp_bytes
  change = 100.0 * (after / before - 1) if before else 0.0
  lines = [
    f"{plan.name} on {plan.target}: {_STATUS[plan.status]}",
    f"  temporaries   {units.format_bytes(before)} ->"
    f" {units.format_bytes(after)} ({change:+.1f} %)",
    *_rematerialized_lines(plan),
    f"  lower bound   {_bound_line(plan)}",
    f"  whole program {units.format_bytes(plan.total_bytes)}"
    f" (arguments {units.format_bytes(plan.argument_bytes)}, outputs"
    f" {units.format_bytes(plan.output_bytes)}, of these aliased"
    f" {units.format_bytes(plan.alias_bytes)})",
    f"  planning      {plan.planning_s:.2f} s of {plan.compile_s:.1f} s for"
    f" two compiles; {plan.num_instructions} instructions, {plan.method}",
  ]
  if plan.budget is not None:
    lines.append(f"  byte limit    {_budget_line(plan.budget)}")
    lines += [f"    {line}" for line in edits_lines(plan.budget.edits)]
  if plan.host is not None:
    lines.append(f"  on the host   {_host_line(plan.host)}")
  exchanged = communication_lines(
    plan.communication, plan.baseline_communication
  )
  exchanged += resharded_lines(plan.resharded)
  for label, line in [*exchanged, *replicated_lines(plan.replicated)]:
    lines.append(f"  {label:14}{line}")
  arena = plan.after
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
  return "\n".join([*lines, *_peak_table(plan.after.at_peak())])


def facts(plan: PlanData) -> list[tuple[str, str]]:
  """Returns what the page of a plan says above the picture."""
  exchanged = communication_lines(
    plan.communication, plan.baseline_communication
  )
  return [
    ("Status", plan.status),
    ("XLA's temporaries", units.format_bytes(plan.baseline_temp_bytes)),
    ("Planned temporaries", units.format_bytes(plan.temp_bytes)),
    ("Lower bound", _bound_line(plan)),
    ("Whole program", units.format_bytes(plan.total_bytes)),
    ("Instructions", str(plan.num_instructions)),
    ("Copies removed", str(plan.num_removed_copies)),
    *((_title(label), line) for label, line in exchanged[:2]),
    ("jax", plan.versions.get("jax", "")),
  ]


def _title(label: str) -> str:
  words = label.strip()
  return words[:1].upper() + words[1:]


def _rematerialized_lines(plan: PlanData) -> list[str]:
  number = plan.baseline_num_rematerialized
  if plan.num_rematerialized or not number:
    return []
  size = units.format_bytes(plan.baseline_predicted_bytes)
  words = f"XLA's: {size} as scheduled, less {number} operations run again"
  return [f"{'':16}{words}"]


def _bound_line(plan: PlanData) -> str:
  if plan.num_rematerialized:
    return (
      f"none: XLA recomputes {plan.num_rematerialized} operations more, since"
      " the program is above its share of the device; estimated times and"
      " buffers are of the plan before that"
    )
  is_exact = not (plan.model_error or plan.baseline_model_error)
  if not (plan.lower_bound_bytes or is_exact):
    return "none: not modelled, XLA allocates other bytes than was predicted"
  size = units.format_bytes(plan.lower_bound_bytes)
  return f"{size} (gap {100 * plan.gap:.1f} %)"


def _budget_line(budget: Budget) -> str:
  limit = units.format_bytes(budget.limit_bytes)
  if budget.share is not None:
    limit += f" ({_share_words(budget.share)})"
  stacks = ""
  if budget.num_stacks:
    stacks = f", {budget.num_stacks} stacks of loops made smaller"
  if not (budget.num_recomputed or budget.num_offloaded or budget.num_dropped):
    return f"{limit} met without recomputing anything{stacks}"
  moved = stacks
  if budget.num_offloaded:
    moved += f", {budget.num_offloaded} values moved to the host"
  if budget.num_dropped:
    size = units.format_bytes(budget.dropped_bytes)
    moved += f", {budget.num_dropped} residuals ({size}) made again"
  return (
    f"{limit}: {budget.num_recomputed} operations run twice{moved}; by estimate"
    f" {100 * budget.extra:+.1f} % of {1e3 * budget.step_s:.2f} ms, all in all"
    f" {100 * budget.change:+.1f} % against XLA's{_least_words(budget)}"
  )


def _least_words(budget: Budget) -> str:
  """Says what no other edits go below, if that was asked for."""
  if budget.least_schedule_s is None or not budget.written_s:
    return ""
  least = 100 * (budget.least_schedule_s / budget.written_s - 1)
  return f", and at least {least:+.1f} % with any edits on these orders"


def _share_words(share: LimitShare) -> str:
  words = f"{share.written} of jax's pool of"
  words += f" {units.format_bytes(share.pool_bytes)}"
  if share.device_bytes is not None:
    fraction = 100 * share.pool_bytes / share.device_bytes
    size = units.format_bytes(share.device_bytes)
    words += f", {fraction:.3g} % of the device's {size}"
  return words


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
  for buffer in buffers[:_MAX_BUFFERS_SHOWN]:
    size = units.format_bytes(buffer.size_bytes)
    lines.append(f"    {size:>10}  {buffer.name}  {buffer.source}".rstrip())
  return lines
