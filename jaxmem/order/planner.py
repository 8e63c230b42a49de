"""The one place that decides which orderer runs when."""

import dataclasses
from collections.abc import Sequence

from jaxmem.graph import Graph, check_order, lower_bound
from jaxmem.options import Effort
from jaxmem.order.contraction import Contraction, contract
from jaxmem.order.displacement import reduce_displacement
from jaxmem.order.exact import CpSatOrderer
from jaxmem.order.probing import ProbingProver
from jaxmem.order.result import Orderer, OrderResult, unchanged
from jaxmem.order.search import MinCutSearch

# Of each effort, what finds orders, and what mainly proves that one is optimal:
# provers are asked in turn, as long as the gap between peak and bound is above
# the tolerance of the search. Probing comes first: its time is known
# beforehand, that of CP-SAT is not.
_TEAMS: dict[Effort, tuple[MinCutSearch, tuple[Orderer, ...]]] = {
  "fast": (
    MinCutSearch(max_passes=12, max_runs=200_000, max_flows=20, tolerance=1e-3),
    (),
  ),
  "normal": (
    MinCutSearch(
      max_passes=60,
      max_runs=200_000,
      max_stalled_passes=12,
      max_flows=60,
      tolerance=1e-4,
    ),
    (
      ProbingProver(max_flows=1_000, tolerance=1e-4),
      CpSatOrderer(max_nodes=24, max_deterministic_time=0.05),
    ),
  ),
  "prove": (
    MinCutSearch(max_passes=160, max_runs=4_000_000, max_flows=1_000),
    (
      ProbingProver(max_flows=20_000),
      CpSatOrderer(max_nodes=200, max_deterministic_time=20.0),
    ),
  ),
}


def plan_order(
  graph: Graph,
  initial_order: Sequence[int] | None = None,
  *,
  effort: Effort = "normal",
  prove: bool = True,
  start: Sequence[int] | None = None,
  near_initial: bool = True,
) -> OrderResult:
  """Finds an order with a low peak, close to the compiler's order.

  See docs/how-it-works.md, "The search". Deterministic for a given effort.

  Args:
    graph: The program.
    initial_order: The compiler's order; `range(num_nodes)` if None.
    effort: "fast" for a few passes, "normal", or "prove" to spend up to
      minutes on the proof.
    prove: Whether to run the methods whose main use is a proof (probing and
      CP-SAT), as far as the effort has them.
    start: An order that is known to be good, to begin the search with; the
      initial order if None.
    near_initial: Whether to bring the best order closer to the initial one as
      far as its peak allows. Without, buffers pack better: an order that is
      close uses what the peak allows at most steps.

  Returns:
    The best order found, never worse than the initial order. With
    `near_initial`, the candidates hold it as it was found, too.

  Raises:
    ValueError: If the effort is unknown or the order is not topological.
  """
  if effort not in _TEAMS:
    raise ValueError(
      f"effort must be one of {', '.join(_TEAMS)}, got {effort!r}."
    )
  initial = tuple(initial_order or range(graph.num_nodes))
  check_order(graph, initial)
  kept = unchanged(graph, initial, lower_bound(graph, initial, max_flows=1))
  if kept.status == "optimal":
    return kept
  contraction = contract(graph)
  small = contraction.graph
  searcher, provers = _TEAMS[effort]
  found = unchanged(small, contraction.shrink(start or initial), 0)
  found = searcher.improve(small, found)
  for prover in provers if prove else ():
    gap_bytes = found.peak_bytes - found.lower_bound_bytes
    rest_bytes = found.lower_bound_bytes - small.base_bytes
    if gap_bytes <= searcher.tolerance * rest_bytes:
      break
    found = prover.improve(small, found)
  return _expand(graph, contraction, kept, found, near_initial)


def _expand(
  graph: Graph,
  contraction: Contraction,
  kept: OrderResult,
  found: OrderResult,
  near_initial: bool,
) -> OrderResult:
  """Returns a result for the graph from one for the contracted graph.

  Orders of the contracted graph keep their peaks when expanded. `kept` is the
  result that keeps the initial order, `found` the best on the contracted graph.
  """
  initial = kept.order
  if found.peak_bytes >= kept.peak_bytes:
    return dataclasses.replace(
      found, order=initial, peak_bytes=kept.peak_bytes, candidates=(initial,)
    )
  best, peak_bytes = contraction.expand(found.order), found.peak_bytes
  first = best
  if near_initial:
    first, peak_bytes = reduce_displacement(graph, initial, best)
  orders = [contraction.expand(order) for order in found.candidates]
  candidates = dict.fromkeys((first, best, *orders))
  candidates.pop(initial, None)
  orders = (*candidates, initial)
  return dataclasses.replace(
    found, order=first, peak_bytes=peak_bytes, candidates=orders
  )
