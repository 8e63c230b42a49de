"""Plans one scheduled HLO module: an order for every computation it runs.

XLA's own order always competes. Where copies of donated arguments can go with
another order, the module is first planned without them.
"""

from __future__ import annotations

import dataclasses
import time

from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import schedule
from jaxmem_hlo.module import Module

from jaxmem.cost import Device
from jaxmem.graph import from_hlo
from jaxmem.options import Options
from jaxmem.planning.callee_orders import check_understood
from jaxmem.planning.collector import paused_collector
from jaxmem.planning.decision import ModulePlan, PlannedModule
from jaxmem.planning.inner_orders import without_needless
from jaxmem.planning.order_search import (
  PACKED_WELL,
  FoundOrders,
  OrderSearch,
)
from jaxmem.planning.overlap import hide_planned_transfers
from jaxmem.planning.own_order import with_own_order
from jaxmem.report import Status
from jaxmem.rewrite import find_copies


def plan_module(
  module: Module,
  device: Device,
  options: Options,
  is_final: bool = True,
  proves: bool = True,
) -> PlannedModule[ModulePlan]:
  """Plans a module.

  Args:
    module: A scheduled module.
    device: The device planned for.
    options: How hard to try.
    is_final: Whether nothing will be edited in the plan. Then orders of callees
      that save nothing are given back, and collectives, and copies to and from
      the host, are put behind kernels. If not, each stays where few bytes want
      it, even if the device waits there.
    proves: Whether to spend time on showing that no order needs less, as far as
      the effort allows. Who edits the order next has no use for that.

  Returns:
    The plan. Its orders are checked: every instruction once, after all it
    needs, in-place writers after all readers.

  Raises:
    UnsupportedModuleError: If the module holds something unknown.
    ScheduleError, ValidationError: If an orderer returned a wrong order.
    FaultyAssignmentError: If `options.verify` is set and a read would see
      something else than it should.
  """
  with paused_collector():
    decision = _decide(module, device.platform, options, proves)
    planned = PlannedModule.of(module, decision)
    if is_final:
      planned = with_own_order(without_needless(planned))
      planned = hide_planned_transfers(planned, device, options)
    if options.verify:
      verify_module(planned.model)
    return planned


def verify_module(model: AssignmentModel) -> None:
  """Replays a module against its predicted assignment.

  Args:
    model: Of the module as it was planned.

  Raises:
    FaultyAssignmentError: If a read would see something else than it should.
  """
  assignment = model.assign().to_proto()
  report = replay.check_assignment(model.module, assignment, model.platform)
  report.raise_if_faulty()


def _decide(
  module: Module, platform: str, options: Options, proves: bool
) -> ModulePlan:
  start = time.perf_counter()
  original = OrderSearch(module, platform, options, proves)
  check_understood(original.entry)
  baseline = original.model.temp_bytes()
  enough = baseline * (1 - options.min_gain)
  copies = find_copies(original.model, original.entry)
  removed = tuple(copies.removable)
  found = None
  if removed and options.remove_copies:
    changed = module.with_bitcasts(removed)
    search = OrderSearch(changed, platform, options, proves, original)
    # Copies that need not be made save time, too.
    copied = sum(copies.removable.values())
    is_copied_much = copied >= baseline * options.min_gain
    limit = baseline if is_copied_much else enough
    if search.may_reach(limit):
      found = search.run(enough)
      if found.planned_bytes > limit:
        found = None
  kept = False
  if found is None:
    removed = ()
    found = original.run(enough, baseline)
    kept = found.planned_bytes > enough
  return ModulePlan(
    platform=platform,
    orders={} if kept else found.orders,
    removed_copies=() if kept else removed,
    kept_copy_bytes=copies.kept_bytes,
    baseline_bytes=baseline,
    planned_bytes=baseline if kept else found.planned_bytes,
    lower_bound_bytes=found.lower_bound_bytes,
    status=_status(found, kept, baseline),
    method=found.method,
    search_proved=found.search_proved,
    num_instructions=schedule.Timeline(module).length,
    num_pinned=original.entry.num_pinned,
    seconds=time.perf_counter() - start,
  )


def _status(found: FoundOrders, kept: bool, baseline: int) -> Status:
  if not kept:
    return "optimal" if found.is_optimal else "feasible"
  # XLA's order is as good as the best that was found, up to packing.
  is_close = baseline <= found.lower_bound_bytes * PACKED_WELL
  return "optimal" if found.is_optimal and is_close else "baseline"


def in_given_order(
  planned: PlannedModule[ModulePlan], *, keeps_callees: bool = True
) -> PlannedModule[ModulePlan] | None:
  """Returns the plan that removes the same copies and keeps XLA's order.

  None if the plan keeps that order itself.

  Args:
    planned: The plan.
    keeps_callees: Whether what the entry calls keeps its planned order.
  """
  decision, entry_id = planned.decision, planned.given.entry.id
  orders = dict(decision.orders)
  is_other = orders.pop(entry_id, None) is not None
  if not keeps_callees:
    is_other, orders = is_other or bool(orders), {}
  if not is_other:
    return None
  kept = PlannedModule.of(
    planned.given, dataclasses.replace(decision, orders={**orders})
  )
  entry = from_hlo(kept.model, kept.module.entry)
  if not entry.is_repaired:
    return kept
  # Without a copy, whoever reads its operand may have to run earlier.
  orders[entry_id] = tuple(entry.schedule(range(entry.graph.num_nodes)))
  return PlannedModule.of(
    planned.given, dataclasses.replace(decision, orders=orders)
  )
