"""Searches the order of one module, with its copies or with some removed.

Two models guide the search. In one, memory of donated arguments and of
outputs is free for temporaries as long as it holds nothing; in the other it
never is. XLA's buffer assignment lies between the two (a slot takes one
temporary at a time), so orders found under either are priced with the exact
assignment model, and the cheapest wins.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import order
from jaxmem.graph import Graph, bounds, from_hlo, liveness
from jaxmem.options import Options
from jaxmem.planning.callee_orders import CalleeOrders, checked_schedule
from jaxmem.planning.tuning import TUNING

# Live bytes this close to the bound count as meeting it: solvers call a gap of
# 1e-4 proven optimal, and so does this.
_MET = 1 + 1e-4
# The most that packing may add to live bytes in a plan called optimal.
PACKED_WELL = 1.01
_TUNING = TUNING.order


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FoundOrders:
  """The best that was found for one version of the module.

  Attributes:
    orders: Computation id -> instruction ids in execution order, where that is
      another than the module's.
    planned_bytes: Predicted temporaries.
    lower_bound_bytes: No order of this version needs fewer.
    is_optimal: Whether no order has fewer live bytes at its peak, and packing
      adds next to nothing to them.
    search_proved: See `ModulePlan`.
    method: What found the order.
  """

  orders: Mapping[int, tuple[int, ...]]
  planned_bytes: int
  lower_bound_bytes: int
  is_optimal: bool
  search_proved: bool
  method: str


class OrderSearch:
  """Orders one module as it is given.

  Args:
    module: A scheduled module.
    platform: "cpu" or "cuda".
    options: How hard to try.
    proves: Whether to show that no order needs less, as far as the effort goes.
    like: The search of the module that this one was made from, if any.

  Attributes:
    model: Predicts the assignment of the module.
    entry: The graph of the module's entry computation. What it calls is ordered
      once that is asked for.
  """

  def __init__(
    self,
    module: Module,
    platform: str,
    options: Options,
    proves: bool,
    like: OrderSearch | None = None,
  ):
    self._module = module
    self.model = AssignmentModel(module, platform, like and like.model)
    self._options = options
    self._proves = proves
    # What the module calls is mostly what the one called that it was made from.
    self._known: dict[Graph, order.OrderResult] = like._known if like else {}
    self.entry = from_hlo(self.model, module.entry, lambda: self._callees.peaks)
    # As in `FoundOrders`.
    self._orders: dict[int, tuple[int, ...]] = {}
    self._initial = tuple(range(len(self.entry.instructions)))

  def may_reach(self, limit_bytes: float) -> bool:
    """Whether a quick bound allows as few bytes of temporaries."""
    return self._quick_bound <= limit_bytes

  @functools.cached_property
  def _callees(self) -> CalleeOrders:
    return CalleeOrders(self.model, self._options, self._proves, self._known)

  @functools.cached_property
  def _cut(self) -> bounds.MinCut:
    return bounds.MinCut(self.entry.graph)

  @functools.cached_property
  def _low_bytes(self) -> int:
    """A quick bound for the entry's graph, memory of slots included."""
    return self._quick_bound_of(self._initial)

  def _quick_bound_of(self, nodes: Sequence[int]) -> int:
    flows = _TUNING.quick_flows
    graph = self.entry.graph
    return bounds.lower_bound(graph, nodes, flows, self._cut)

  @functools.cached_property
  def _quick_bound(self) -> int:
    graph = self.entry.graph
    return self._bound(self._low_bytes) - graph.base_bytes

  def run(
    self, enough_bytes: float, initial_bytes: int | None = None
  ) -> FoundOrders:
    """Orders what the entry calls, then the entry.

    Args:
      enough_bytes: Temporaries that a plan must not exceed to be worth it.
        Where the bound already does, nothing is searched, unless a proof is
        asked for.
      initial_bytes: Temporaries of the module as it is, if known.
    """
    graph, initial = self.entry.graph, self._initial
    self._orders = dict(self._callees.orders)
    free, candidates = self._search_models()
    if not self.may_reach(enough_bytes) and self._options.effort != "prove":
      candidates = iter((initial,))
    bound = self._bound(free.lower_bound_bytes) - graph.base_bytes
    known = {}
    if initial_bytes is not None and not self._orders:
      known[initial] = initial_bytes
    best, planned = self._choose(candidates, bound, known)
    live = self._live_bytes(best)
    if best != initial or self.entry.is_repaired:
      ids = checked_schedule(self.entry, best)
      self._orders[self._module.entry.id] = ids
    return FoundOrders(
      orders=self._orders,
      planned_bytes=planned,
      lower_bound_bytes=max(0, bound),
      is_optimal=live <= bound * _MET and planned <= bound * PACKED_WELL,
      search_proved=self._meets(free.peak_bytes, free.lower_bound_bytes),
      method=free.method,
    )

  def _search_models(
    self,
  ) -> tuple[order.OrderResult, Iterator[tuple[int, ...]]]:
    """Returns the result where slots are free, and orders to be priced."""
    graph, low = self.entry.graph, self._low_bytes
    if self._meets(liveness.peak_bytes(graph, self._initial), low):
      free = order.unchanged(graph, self._initial, low)
      return free, self._by_turns(free.candidates)
    taken = self._taken()
    if taken is not None and (
      self._options.effort == "fast"
      or self._meets(taken.peak_bytes, taken.lower_bound_bytes)
    ):
      return taken, self._with_closer(self._packed_graph, taken.candidates)
    free = self._search(graph, self._proves, start=self._packed.order)
    return free, self._by_turns(free.candidates)

  def _search(
    self, graph: Graph, proves: bool, start: Sequence[int] | None = None
  ) -> order.OrderResult:
    return order.plan_order(
      graph,
      effort=self._options.effort,
      prove=proves,
      start=start,
      near_initial=self._is_close_first,
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
      near, _ = order.reduce_displacement(graph, self._initial, candidates[0])
      yield near
    yield from candidates[1:]

  def _taken(self) -> order.OrderResult | None:
    """The result where slots are taken, with the bytes where they are not."""
    packed = self._packed
    if not packed.candidates:
      return None
    low = max(self._quick_bound_of(packed.order), self._low_bytes)
    return dataclasses.replace(
      packed,
      peak_bytes=liveness.peak_bytes(self.entry.graph, packed.order),
      lower_bound_bytes=low,
    )

  def _meets(self, peak_bytes: int, bound_bytes: int) -> bool:
    base_bytes = self.entry.graph.base_bytes
    return peak_bytes - base_bytes <= (bound_bytes - base_bytes) * _MET

  @functools.cached_property
  def _packed(self) -> order.OrderResult:
    return self._search(self._packed_graph, proves=False)

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

  def _choose(
    self,
    candidates: Iterator[tuple[int, ...]],
    bound_bytes: int,
    known: Mapping[tuple[int, ...], int],
  ) -> tuple[tuple[int, ...], int]:
    """Prices orders; of those that need the fewest bytes, the closest wins."""
    initial = self._initial
    priced: dict[tuple[int, ...], int] = {}
    limit = None
    for candidate in itertools.chain(
      itertools.islice(candidates, _TUNING.max_priced), (initial,)
    ):
      if candidate in priced:
        continue
      if limit is not None and self._live_bytes(candidate) > limit:
        # No assignment takes fewer bytes than what is live.
        continue
      priced[candidate] = known.get(candidate) or self._price(candidate, limit)
      limit = int(min(priced.values()) * _TUNING.alike_ratio)
      if limit <= bound_bytes * _TUNING.alike_ratio**2:
        break
    least = min(priced.values())
    alike = [c for c, b in priced.items() if b <= least * _TUNING.alike_ratio]
    best = min(alike, key=lambda c: order.total_displacement(c, initial))
    return best, priced[best]

  def _live_bytes(self, nodes: Sequence[int]) -> int:
    graph = self.entry.graph
    return liveness.peak_bytes(graph, nodes) - graph.base_bytes

  def _price(self, nodes: Sequence[int], limit_bytes: int | None) -> int:
    ids = self.entry.schedule(nodes)
    orders = {**self._orders, self._module.entry.id: ids}
    return self.model.temp_bytes(orders, limit_bytes)

  def _bound(self, bound: int) -> int:
    """Lowers the entry's bound where a callee's own order is not proven."""
    return bound if self._optimistic_bound is None else self._optimistic_bound

  @functools.cached_property
  def _optimistic_bound(self) -> int | None:
    """A bound if callees take no more than they must; None if all do so."""
    callees, flows = self._callees, _TUNING.callee_flows
    if callees.peaks == callees.bounds:
      return None
    entry = self._module.entry
    optimistic = from_hlo(self.model, entry, lambda: callees.bounds).graph
    if optimistic == self.entry.graph:
      return None
    return bounds.lower_bound(optimistic, self._initial, flows, self._cut)


def _without_slots(graph: Graph) -> Graph:
  """The same program with donated and output memory always occupied."""
  kept = [
    i
    for i, b in enumerate(graph.buffers)
    if not (b.live_at_start or b.live_at_end)
  ]
  number = {b: i for i, b in enumerate(kept)}
  nodes = []
  for node in graph.nodes:
    inside = (pair for pair in node.shares if number.keys() >= {*pair})
    shares = tuple((number[a], number[b]) for a, b in inside)
    nodes.append(dataclasses.replace(node, shares=shares))
  buffers = tuple(graph.buffers[i] for i in kept)
  return Graph(nodes=tuple(nodes), buffers=buffers)
