"""Plans one scheduled HLO module: an order for every computation it runs.

Two models guide the search. In one, memory of donated arguments and of
outputs is free for temporaries as long as it holds nothing; in the other it
never is. XLA's buffer assignment lies between the two (a slot takes one
temporary at a time), so orders found under either are priced with the exact
assignment model, and the cheapest wins. XLA's own order always competes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from jaxmem_hlo import schedule
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Computation, Module

from jaxmem import bounds, liveness, order, validate
from jaxmem.extract import CalleePeak, ComputationGraph, from_hlo
from jaxmem.graph import Graph
from jaxmem.options import Options

Status = Literal["optimal", "feasible", "baseline"]

# The most that packing may add to live bytes in a plan called optimal.
_PACKED_WELL = 1.01
# Of candidates this close to the best in bytes, the one closest to XLA's order
# is taken: it is the least likely to cost time.
_ALIKE = 1.002
_MIN_NODES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModulePlan:
  """What was decided for a module. Bytes are temporaries as XLA counts them.

  Attributes:
    platform: "cpu" or "cuda".
    orders: Computation id -> instruction ids in execution order, for the
      computations whose order changes.
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
    return bool(self.orders)


def plan_module(module: Module, platform: str, options: Options) -> ModulePlan:
  """Plans a module.

  Args:
    module: A scheduled module.
    platform: "cpu" or "cuda".
    options: How hard to try.

  Returns:
    The plan. Its orders are checked: every instruction once, after all it
    needs, in-place writers after all readers.

  Raises:
    UnsupportedModuleError: If the module holds something unknown.
    ScheduleError, ValidationError: If an orderer returned a wrong order.
  """
  return _ModulePlanner(module, platform, options).plan()


class _ModulePlanner:
  def __init__(self, module: Module, platform: str, options: Options):
    self._start = time.perf_counter()
    self._options = options
    self._module = module
    self._model = AssignmentModel(module, platform)
    self._orders: dict[int, tuple[int, ...]] = {}
    self._callees: dict[int, CalleePeak] = {}
    self._baseline = self._temp_bytes({})

  def plan(self) -> ModulePlan:
    module = self._module
    inner = {c.id for c in self._model.analysis.dataflow.computations}
    for computation in module.computations:
      if computation.id in inner and computation is not module.entry:
        self._plan_inner(computation)
    entry = from_hlo(self._model, module.entry, self._callees)
    found = order.plan_order(entry.graph, effort=self._options.effort)
    packed = order.plan_order(
      _without_slots(entry.graph), effort=self._options.effort
    )
    best, planned = self._choose(entry, (*found.candidates, *packed.candidates))
    if planned > self._baseline * (1 - self._options.min_gain):
      self._orders = {}
      best, planned = tuple(range(entry.graph.num_nodes)), self._baseline
    elif best != tuple(range(entry.graph.num_nodes)):
      self._set(entry, best)
    bound = self._bound(entry.graph, found.lower_bound_bytes)
    return ModulePlan(
      platform=self._model.platform,
      orders=dict(self._orders),
      baseline_bytes=self._baseline,
      planned_bytes=planned,
      lower_bound_bytes=max(0, bound - entry.graph.base_bytes),
      status=self._status(entry.graph, best, bound, planned),
      method=found.method,
      search_proved=found.status == "optimal",
      num_instructions=schedule.Timeline(module).length,
      num_pinned=entry.num_pinned,
      seconds=time.perf_counter() - self._start,
    )

  def _temp_bytes(self, orders: Mapping[int, Sequence[int]]) -> int:
    return self._model.assign(orders).temp_bytes

  def _plan_inner(self, computation: Computation) -> None:
    """Orders a called computation by its own peak, if that helps the whole."""
    inner = from_hlo(self._model, computation, self._callees)
    graph = inner.graph
    initial = tuple(range(graph.num_nodes))
    peak = liveness.peak_bytes(graph, initial)
    bound = 0
    if graph.num_nodes >= _MIN_NODES:
      found = order.plan_order(graph, effort=self._options.effort)
      bound = found.lower_bound_bytes
      if found.peak_bytes < peak:
        before = self._temp_bytes(self._orders)
        self._set(inner, found.order)
        if self._temp_bytes(self._orders) > before:
          del self._orders[computation.id]
        else:
          peak = found.peak_bytes
    self._callees[computation.id] = CalleePeak(
      extra_bytes=max(0, peak - inner.owned_bytes),
      bound_bytes=max(0, bound - inner.owned_bytes),
    )

  def _set(self, graph: ComputationGraph, nodes: Sequence[int]) -> None:
    validate.check_order(graph.graph, nodes)
    ids = graph.schedule(nodes)
    schedule.check_schedule(graph.computation, ids)
    self._orders[graph.computation.id] = tuple(ids)

  def _choose(
    self, entry: ComputationGraph, candidates: Sequence[tuple[int, ...]]
  ) -> tuple[tuple[int, ...], int]:
    initial = tuple(range(entry.graph.num_nodes))
    priced = {initial: self._temp_bytes(self._orders)}
    for candidate in dict.fromkeys(candidates):
      if candidate != initial:
        ids = entry.schedule(candidate)
        orders = {**self._orders, entry.computation.id: ids}
        priced[candidate] = self._temp_bytes(orders)
    least = min(priced.values())
    alike = [c for c, b in priced.items() if b <= least * _ALIKE]
    best = min(alike, key=lambda c: order.displacement(c, initial))
    return best, priced[best]

  def _bound(self, graph: Graph, bound: int) -> int:
    """Lowers the entry's bound where a callee's own order is not proven."""
    if all(c.extra_bytes == c.bound_bytes for c in self._callees.values()):
      return bound
    entry = self._module.entry
    callees = {
      key: CalleePeak(c.bound_bytes, c.bound_bytes)
      for key, c in self._callees.items()
    }
    optimistic = from_hlo(self._model, entry, callees).graph
    if optimistic == graph:
      return bound
    initial = range(graph.num_nodes)
    return bounds.lower_bound(optimistic, initial, max_flows=150).num_bytes

  def _status(
    self, graph: Graph, best: Sequence[int], bound: int, planned: int
  ) -> Status:
    is_met = liveness.peak_bytes(graph, best) <= bound
    if is_met and planned <= (bound - graph.base_bytes) * _PACKED_WELL:
      return "optimal"
    return "feasible" if self._orders else "baseline"


def _without_slots(graph: Graph) -> Graph:
  """The same program with donated and output memory always occupied."""
  kept = [
    i
    for i, b in enumerate(graph.buffers)
    if not (b.live_at_start or b.live_at_end)
  ]
  number = {b: i for i, b in enumerate(kept)}
  nodes = tuple(
    dataclasses.replace(
      node,
      shares=tuple(
        (number[a], number[b])
        for a, b in node.shares
        if a in number and b in number
      ),
    )
    for node in graph.nodes
  )
  return Graph(nodes=nodes, buffers=tuple(graph.buffers[i] for i in kept))
