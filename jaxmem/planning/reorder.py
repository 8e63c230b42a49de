"""Plans one scheduled HLO module: an order for every computation it runs.

Two models guide the search. In one, memory of donated arguments and of
outputs is free for temporaries as long as it holds nothing; in the other it
never is. XLA's buffer assignment lies between the two (a slot takes one
temporary at a time), so orders found under either are priced with the exact
assignment model, and the cheapest wins. XLA's own order always competes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import UnsupportedModuleError, schedule
from jaxmem_hlo.module import Computation, Module

from jaxmem import cost, order
from jaxmem.graph import (
  CalleePeak,
  ComputationGraph,
  Graph,
  bounds,
  from_hlo,
  liveness,
  validate,
)
from jaxmem.options import Options
from jaxmem.planning.decision import ModulePlan, Status
from jaxmem.planning.overlap import hide_planned_copies
from jaxmem.rewrite import find_copies

# Live bytes this close to the bound count as meeting it: solvers call a gap of
# 1e-4 proven optimal, and so does this.
_MET = 1 + 1e-4
# The most that packing may add to live bytes in a plan called optimal.
_PACKED_WELL = 1.01
# Of candidates this close to the best in bytes, the one closest to XLA's order
# is taken: it is the least likely to cost time.
_ALIKE = 1.002
_MIN_NODES = 3
_MAX_PRICED = 8
_QUICK_FLOWS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
  """The best that was found for one version of the module."""

  orders: Mapping[int, tuple[int, ...]]
  planned_bytes: int
  lower_bound_bytes: int
  is_optimal: bool
  search_proved: bool
  method: str


def plan_module(
  module: Module,
  platform: str,
  options: Options,
  rates: cost.Rates | None = None,
) -> ModulePlan:
  """Plans a module.

  Args:
    module: A scheduled module.
    platform: "cpu" or "cuda".
    options: How hard to try.
    rates: Of the device, to hide copies to and from the host behind kernels,
      as far as the bytes of XLA's own order allow. None leaves each where few
      bytes want it, even if the device waits there.

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
    decided = _plan_module(module, platform, options)
    if rates is not None:
      decided = hide_planned_copies(module, decided, rates)
    if options.verify:
      verify_module(decided.apply(module), platform)
    return decided


def verify_module(module: Module, platform: str) -> None:
  """Replays a changed module against its predicted assignment.

  Raises:
    FaultyAssignmentError: If a read would see something else than it should.
  """
  assignment = AssignmentModel(module, platform).assign()
  report = replay.check_assignment(module, assignment.to_proto(), platform)
  report.raise_if_faulty()


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
  """Keeps the cyclic garbage collector from scanning a growing graph.

  Planning allocates many small objects and drops few; each full collection
  would visit them all, and everything that jax holds.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()


def _plan_module(module: Module, platform: str, options: Options) -> ModulePlan:
  start = time.perf_counter()
  original = _ModulePlanner(module, platform, options)
  _check_understood(original.entry)
  baseline = original.model.assign().temp_bytes
  enough = baseline * (1 - options.min_gain)
  copies = find_copies(original.model, original.entry)
  removed = tuple(c.copy.id for c in copies.removable)
  found = None
  if removed and options.remove_copies:
    changed = module.with_bitcasts(removed)
    planner = _ModulePlanner(changed, platform, options, original.model)
    # Copies that need not be made save time, too.
    copied = sum(c.size_bytes for c in copies.removable)
    is_copied_much = copied >= baseline * options.min_gain
    limit = baseline if is_copied_much else enough
    if planner.may_reach(limit):
      found = planner.search(enough)
      if found.planned_bytes > limit:
        found = None
  kept = False
  if found is None:
    removed = ()
    found = original.search(enough, baseline)
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


def _check_understood(graph: ComputationGraph) -> None:
  """Refuses a computation whose given order already breaks our rules."""
  if graph.is_repaired:
    raise UnsupportedModuleError(
      f"{graph.computation.name}: XLA's own schedule seems to read a buffer"
      " that was already overwritten; something in it is not understood."
    )


def _status(found: _Found, kept: bool, baseline: int) -> Status:
  if not kept:
    return "optimal" if found.is_optimal else "feasible"
  # XLA's order is as good as the best that was found, up to packing.
  is_close = baseline <= found.lower_bound_bytes * _PACKED_WELL
  return "optimal" if found.is_optimal and is_close else "baseline"


class _ModulePlanner:
  """Plans one module as it is given: with its copies, or with some removed."""

  def __init__(
    self,
    module: Module,
    platform: str,
    options: Options,
    like: AssignmentModel | None = None,
  ):
    self.module = module
    self.model = AssignmentModel(module, platform, like)
    self.orders: dict[int, tuple[int, ...]] = {}
    self._options = options
    self._callees: dict[int, CalleePeak] = {}
    self._plan_callees()
    self.entry = from_hlo(self.model, module.entry, self._callees)

  def _plan_callees(self) -> None:
    sequential = {c.id for c in self.model.analysis.dataflow.computations}
    for computation in self.module.computations:
      if computation.id in sequential and computation is not self.module.entry:
        self._plan_inner(computation)

  def may_reach(self, limit_bytes: float) -> bool:
    """Whether a quick bound allows as few bytes of temporaries."""
    return self._quick_bound <= limit_bytes

  @functools.cached_property
  def _cut(self) -> bounds.MinCut:
    return bounds.MinCut(self.entry.graph)

  @functools.cached_property
  def _low_bytes(self) -> int:
    """A quick bound for the entry's graph, memory of slots included."""
    graph = self.entry.graph
    initial = range(graph.num_nodes)
    found = bounds.lower_bound(graph, initial, _QUICK_FLOWS, self._cut)
    return found.num_bytes

  @functools.cached_property
  def _quick_bound(self) -> int:
    graph = self.entry.graph
    return self._bound(graph, self._low_bytes) - graph.base_bytes

  def search(
    self, enough_bytes: float, initial_bytes: int | None = None
  ) -> _Found:
    """Orders the entry; `orders` holds what was chosen for the callees.

    Args:
      enough_bytes: Temporaries that a plan must not exceed to be worth it.
        Where the bound already does, nothing is searched, unless a proof is
        asked for.
      initial_bytes: Temporaries of the module as it is, if known.
    """
    graph = self.entry.graph
    initial = tuple(range(graph.num_nodes))
    free, candidates = self._search_models(initial)
    if not self.may_reach(enough_bytes) and self._options.effort != "prove":
      candidates = iter((initial,))
    bound = self._bound(graph, free.lower_bound_bytes) - graph.base_bytes
    known = {}
    if initial_bytes is not None and not self.orders:
      known[initial] = initial_bytes
    best, planned = self._choose(candidates, bound, known)
    live = liveness.peak_bytes(graph, best) - graph.base_bytes
    if best != initial or self.entry.is_repaired:
      self._set(self.entry, best)
    return _Found(
      orders=dict(self.orders),
      planned_bytes=planned,
      lower_bound_bytes=max(0, bound),
      is_optimal=live <= bound * _MET and planned <= bound * _PACKED_WELL,
      search_proved=self._meets(free.peak_bytes, free.lower_bound_bytes),
      method=free.method,
    )

  def _search_models(
    self, initial: tuple[int, ...]
  ) -> tuple[order.OrderResult, Iterator[tuple[int, ...]]]:
    """Returns the result where slots are free, and orders to be priced."""
    graph, low = self.entry.graph, self._low_bytes
    if self._meets(liveness.peak_bytes(graph, initial), low):
      free = order.unchanged(graph, initial, low)
      return free, self._by_turns(free.candidates)
    proven = self._proven()
    if proven is not None:
      return proven, self._with_closer(self._packed_graph, proven.candidates)
    free = self._search(graph, start=self._packed.order)
    return free, self._by_turns(free.candidates)

  def _search(self, graph: Graph, **options: Any) -> order.OrderResult:
    return order.plan_order(
      graph,
      effort=self._options.effort,
      close=self._is_close_first,
      **options,
    )

  @property
  def _is_close_first(self) -> bool:
    """Whether an order close to XLA's is tried before the one it comes from.

    On GPUs, XLA's order hides latency. On CPU it hides none, and packing
    seldom spares what closeness costs: there, only if the first will not do.
    """
    return self.model.platform != "cpu"

  def _with_closer(
    self, graph: Graph, candidates: Sequence[tuple[int, ...]]
  ) -> Iterator[tuple[int, ...]]:
    """Yields orders, and after the first one that is close to XLA's."""
    yield from candidates[:1]
    if not self._is_close_first and candidates:
      initial = range(graph.num_nodes)
      yield order.bring_closer(graph, initial, candidates[0])
    yield from candidates[1:]

  def _proven(self) -> order.OrderResult | None:
    """The result where slots are taken, if it is optimal where they are not."""
    graph, packed = self.entry.graph, self._packed
    if not packed.candidates:
      return None
    bound = bounds.lower_bound(graph, packed.order, _QUICK_FLOWS, self._cut)
    low = max(bound.num_bytes, self._low_bytes)
    peak_bytes = liveness.peak_bytes(graph, packed.order)
    if not self._meets(peak_bytes, low):
      return None
    return dataclasses.replace(
      packed,
      peak_bytes=peak_bytes,
      lower_bound_bytes=low,
      status="optimal" if peak_bytes == low else "feasible",
    )

  def _meets(self, peak_bytes: int, bound_bytes: int) -> bool:
    base_bytes = self.entry.graph.base_bytes
    return peak_bytes - base_bytes <= (bound_bytes - base_bytes) * _MET

  @functools.cached_property
  def _packed(self) -> order.OrderResult:
    return self._search(self._packed_graph, prove=False)

  @functools.cached_property
  def _packed_graph(self) -> Graph:
    return _without_slots(self.entry.graph)

  def _by_turns(
    self, free: Sequence[tuple[int, ...]]
  ) -> Iterator[tuple[int, ...]]:
    """Yields orders to be priced, those of both slot models by turns."""
    orders = self._with_closer(self.entry.graph, free)
    yield from itertools.islice(orders, 1)
    # Only searched when the first was not good enough.
    packed = self._with_closer(self._packed_graph, self._packed.candidates)
    yield from itertools.islice(packed, 1)
    for pair in itertools.zip_longest(orders, packed):
      yield from (c for c in pair if c is not None)

  def _temp_bytes(
    self,
    orders: Mapping[int, Sequence[int]],
    limit_bytes: int | None = None,
  ) -> int:
    return self.model.temp_bytes(orders, limit_bytes)

  def _plan_inner(self, computation: Computation) -> None:
    """Orders a called computation by its own peak, if that helps the whole."""
    inner = from_hlo(self.model, computation, self._callees)
    _check_understood(inner)
    graph = inner.graph
    initial = tuple(range(graph.num_nodes))
    peak = liveness.peak_bytes(graph, initial)
    bound = 0
    if graph.num_nodes >= _MIN_NODES:
      found = order.plan_order(graph, effort=self._options.effort)
      bound = found.lower_bound_bytes
      if found.peak_bytes < peak:
        before = self._temp_bytes(self.orders)
        self._set(inner, found.order)
        if self._temp_bytes(self.orders) > before:
          del self.orders[computation.id]
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
    self.orders[graph.computation.id] = tuple(ids)

  def _choose(
    self,
    candidates: Iterator[tuple[int, ...]],
    bound_bytes: int,
    known: Mapping[tuple[int, ...], int],
  ) -> tuple[tuple[int, ...], int]:
    """Prices orders; of those that need the fewest bytes, the closest wins."""
    initial = tuple(range(self.entry.graph.num_nodes))
    priced: dict[tuple[int, ...], int] = {}
    limit = None
    for candidate in itertools.chain(
      itertools.islice(candidates, _MAX_PRICED), (initial,)
    ):
      if candidate in priced:
        continue
      priced[candidate] = known.get(candidate) or self._price(candidate, limit)
      limit = int(min(priced.values()) * _ALIKE)
      if limit <= bound_bytes * _ALIKE**2:
        break
    least = min(priced.values())
    alike = [c for c, b in priced.items() if b <= least * _ALIKE]
    best = min(alike, key=lambda c: order.displacement(c, initial))
    return best, priced[best]

  def _price(self, nodes: Sequence[int], limit_bytes: int | None) -> int:
    ids = self.entry.schedule(nodes)
    orders = {**self.orders, self.module.entry.id: ids}
    return self._temp_bytes(orders, limit_bytes)

  def _bound(self, graph: Graph, bound: int) -> int:
    """Lowers the entry's bound where a callee's own order is not proven."""
    if all(c.extra_bytes == c.bound_bytes for c in self._callees.values()):
      return bound
    entry = self.module.entry
    callees = {
      key: CalleePeak(c.bound_bytes, c.bound_bytes)
      for key, c in self._callees.items()
    }
    optimistic = from_hlo(self.model, entry, callees).graph
    if optimistic == graph:
      return bound
    initial = range(graph.num_nodes)
    return bounds.lower_bound(optimistic, initial, max_flows=150).num_bytes


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
