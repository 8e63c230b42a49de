"""What a byte limit cost a step: in all, and edit by edit."""

from __future__ import annotations

import dataclasses

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import cost
from jaxmem.planning import Decision, LimitPlan, PlannedModule
from jaxmem.report import Budget, EditCost, edit_costs
from jaxmem.versions.version import Version


def budget_of(plan: LimitPlan, version: Version, written_s: float) -> Budget:
  """Returns what a byte limit cost.

  Args:
    plan: The plan that meets it.
    version: The version of the step that was planned.
    written_s: Estimated seconds of XLA's own schedule of the step as written.
  """
  return Budget(
    limit_bytes=plan.limit_bytes,
    share=None,
    num_recomputed=len(plan.edits.recomputes),
    num_offloaded=len(plan.edits.offloads),
    num_dropped=version.num_residuals,
    dropped_bytes=version.saved_bytes,
    num_stacks=version.num_stacks,
    # The version recomputes what it dropped already.
    step_s=plan.step_s - version.extra_s,
    extra_s=plan.extra_s + version.extra_s,
    written_s=written_s,
    schedule_s=plan.schedule_s,
    least_schedule_s=plan.bound.schedule_s,
  )


def cost_of_limit(
  planned: PlannedModule[Decision],
  version: Version,
  written: Module,
  device: cost.Device,
  own_bytes: int,
  temp_bytes: int,
) -> Budget:
  """Returns what a byte limit cost, and what each thing done for it did.

  Args:
    planned: The module that was planned for the limit.
    version: The version of the step that it is of.
    written: XLA's own schedule of the step as it is written.
    device: The device planned for.
    own_bytes: Temporaries of XLA's own plan of that, as measured.
    temp_bytes: Those of the plan, likewise.
  """
  plan = planned.decision
  assert isinstance(plan, LimitPlan)
  written_s = cost.step_time(written, device.rates).seconds
  written_s += device.mapping_s(own_bytes)
  rows = _edit_costs(planned, version, device.rates, own_bytes)
  edits = edit_costs.completed(
    rows, own_bytes - temp_bytes, plan.schedule_s - written_s
  )
  budget = budget_of(plan, version, written_s)
  return dataclasses.replace(budget, edits=edits)


def _edit_costs(
  planned: PlannedModule[Decision],
  version: Version,
  rates: cost.Rates,
  own_bytes: int,
) -> list[EditCost]:
  """Returns what each thing that was done for a limit frees and takes.

  Args:
    planned: The module that was planned for the limit.
    version: The version of the step that it is of.
    rates: Of the device.
    own_bytes: Temporaries of XLA's own plan of the step as it is written.
  """
  plan = planned.decision
  assert isinstance(plan, LimitPlan)
  base = plan.base
  rows = []
  if version.num_residuals or version.num_stacks:
    freed_bytes = own_bytes - base.baseline_bytes
    rows.append(_version_cost(version, freed_bytes))
  # Another order frees what it does before anything is edited.
  order = EditCost(
    kind="order",
    name=f"{base.method} instead of XLA's",
    source="",
    freed_bytes=base.baseline_bytes - base.planned_bytes,
    extra_s=0.0,
  )
  rows.append(order)
  if plan.edits:
    ordered = AssignmentModel(base.apply(planned.given), base.platform)
    rows += edit_costs.edit_costs(ordered, plan.edits, planned.module, rates)
  return rows


def _version_cost(version: Version, freed_bytes: int) -> EditCost:
  """Returns what a version does before XLA sees it, and frees by that."""
  words = []
  kind = "loop stacks"
  if version.num_residuals:
    kind = "loop residuals" if version.choice is None else "blocks"
    words.append(f"{version.num_residuals} residuals made again")
  if version.choice is not None and version.choice.reads_again:
    words.append("what they are made of read anew")
  if version.num_stacks:
    words.append(f"{version.num_stacks} stacks of loops made smaller")
  return EditCost(
    kind=kind,
    name=", ".join(words),
    source="",
    freed_bytes=freed_bytes,
    extra_s=version.extra_s,
  )
