"""Plans that come from a file, checked as if somebody else had written them.

A plan that was just made is right by construction. One that was read says which
copies go, and what runs when: each of these could make a program of other
results, so that all of it is checked again before XLA gets it.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import schedule
from jaxmem_hlo.module import Computation, Module

from jaxmem.graph import check_order, from_hlo
from jaxmem.planning.collector import paused_collector
from jaxmem.planning.decision import (
  Decision,
  LimitPlan,
  ModulePlan,
  PlannedModule,
)
from jaxmem.planning.reorder import verify_module
from jaxmem.rewrite import apply_edits, find_copies


def check_again(planned: PlannedModule[Decision], platform: str) -> None:
  """Checks that a planned module computes what the given one does.

  Args:
    planned: The module, and the plan that was read for it.
    platform: What it is compiled for: "cpu" or "cuda".

  Raises:
    ValueError, FaultyAssignmentError: If the plan may not run.
  """
  plan = planned.decision
  assert isinstance(plan, LimitPlan)
  if plan.platform != platform:
    raise ValueError(f"The plan is for {plan.platform}, not {platform}.")
  with paused_collector():
    ordered = _check_base(planned.given, plan.base)
    if plan.order is not None:
      edited = apply_edits(ordered, plan.edits, platform)
      model = AssignmentModel(edited, platform)
      _check_order(model, edited.entry, plan.order)
    verify_module(planned.model)


def _check_base(given: Module, base: ModulePlan) -> Module:
  """Checks copies that go, and orders; returns the module with both."""
  model = AssignmentModel(given, base.platform)
  module = given
  if base.removed_copies:
    entry = from_hlo(model, given.entry)
    removable = find_copies(model, entry).removable
    if not removable.keys() >= {*base.removed_copies}:
      raise ValueError("The plan removes what is no needless copy.")
    module = given.with_bitcasts(base.removed_copies)
    model = AssignmentModel(module, base.platform, model)
  for computation_id, order in base.orders.items():
    _check_order(model, module.by_id[computation_id], order)
  return module.with_schedules(base.orders)


def _check_order(
  model: AssignmentModel, computation: Computation, order: Sequence[int]
) -> None:
  """Checks that each instruction runs once, after all that must come first."""
  schedule.check_schedule(computation, order)
  entry = from_hlo(model, computation)
  nodes = {i.id: node for node, i in enumerate(entry.instructions)}
  check_order(entry.graph, [nodes[i] for i in order if i in nodes])
