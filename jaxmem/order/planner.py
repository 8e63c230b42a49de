"""The one place that decides which orderer runs when."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxmem.graph import Graph, liveness, lower_bound
from jaxmem.order.contraction import Contraction, contract
from jaxmem.order.displacement import reduce_displacement
from jaxmem.order.exact import CpSatOrderer
from jaxmem.order.probing import ProbingProver
from jaxmem.order.result import Orderer, OrderResult, unchanged
from jaxmem.order.search import MinCutSearch

Effort = Literal["fast", "normal", "prove"]

# Pricing a candidate takes longer than finding it, and the first ones are best.
_MAX_CANDIDATES = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Team:
  """The orderers of an effort.

  Attributes:
    searcher: Finds orders.
    provers: Mainly prove that an order is optimal; they are asked in turn, as
      long as the gap is above the tolerance. Probing comes first: its time is
      known beforehand, that of CP-SAT is not.
    tolerance: The gap between peak and bound that needs no more work, relative
      to the bound less `graph.base_bytes`.
  """

  searcher: Orderer
  provers: tuple[Orderer, ...]
  tolerance: float

  def accepts(self, graph: Graph, found: OrderResult) -> bool:
    """Whether a result is good enough."""
    gap_bytes = found.peak_bytes - found.lower_bound_bytes
    bound_bytes = found.lower_bound_bytes - graph.base_bytes
    return gap_bytes <= self.tolerance * bound_bytes


_TEAMS: dict[Effort, _Team] = {
  "fast": _Team(
    searcher=MinCutSearch(
      max_passes=12, max_runs=200_000, max_flows=20, tolerance=1e-3
    ),
    provers=(),
    tolerance=1e-3,
  ),
  "normal": _Team(
    searcher=MinCutSearch(
      max_passes=60, max_runs=200_000, max_flows=60, tolerance=1e-4
    ),
    provers=(
      ProbingProver(max_flows=2_000, tolerance=1e-4),
      CpSatOrderer(max_nodes=200, max_deterministic_time=0.5),
    ),
    tolerance=1e-4,
  ),
  "prove": _Team(
    searcher=MinCutSearch(
      max_passes=160, max_runs=4_000_000, max_flows=1_000, tolerance=0.0
    ),
    provers=(
      ProbingProver(max_flows=20_000),
      CpSatOrderer(max_nodes=200, max_deterministic_time=20.0),
    ),
    tolerance=0.0,
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

  Bounds first: if the initial order is optimal already, it is returned as it
  is. Otherwise the graph is contracted and searched; CP-SAT decides small
  graphs; destructive probing may prove the rest. Deterministic for a given
  effort: no clock, no randomness.

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
      far as its peak allows. It then uses what the peak allows at most steps,
      so that little may be wasted when buffers are placed: without, they pack
      better.

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
  initial = tuple(range(graph.num_nodes))
  if initial_order is not None:
    initial = tuple(initial_order)
  if not liveness.is_topological(graph, initial):
    raise ValueError(
      "initial_order must be a topological permutation of the nodes;"
      " jaxmem.graph.check_order says what is wrong."
    )
  bound = lower_bound(graph, initial, max_flows=1).num_bytes
  kept = unchanged(graph, initial, bound)
  if kept.status == "optimal":
    return kept
  contraction = contract(graph)
  found = _improve(contraction, start or initial, _TEAMS[effort], prove)
  return _expand(graph, contraction, kept, found, near_initial)


def _improve(
  contraction: Contraction, start: Sequence[int], team: _Team, prove: bool
) -> OrderResult:
  """Runs the orderers on the contracted graph."""
  graph = contraction.graph
  found = unchanged(graph, contraction.shrink(start), 0)
  found = team.searcher.improve(graph, found)
  for prover in team.provers if prove else ():
    if team.accepts(graph, found):
      break
    found = prover.improve(graph, found)
  return found


def _expand(
  graph: Graph,
  contraction: Contraction,
  kept: OrderResult,
  found: OrderResult,
  near_initial: bool,
) -> OrderResult:
  """Returns a result for the graph from one for the contracted graph.

  Args:
    graph: The program.
    contraction: Of the program; its orders keep their peaks when expanded.
    kept: The result that keeps the initial order.
    found: The best result on the contracted graph.
    near_initial: See `plan_order`.
  """
  initial = kept.order
  if found.peak_bytes >= kept.peak_bytes:
    return dataclasses.replace(
      found,
      order=initial,
      peak_bytes=kept.peak_bytes,
      candidates=(initial,),
    )
  best, peak_bytes = contraction.expand(found.order), found.peak_bytes
  first = best
  if near_initial:
    first, peak_bytes = reduce_displacement(graph, initial, best)
  orders = [contraction.expand(order) for order in found.candidates]
  candidates = dict.fromkeys((first, best, *orders))
  candidates.pop(initial, None)
  return dataclasses.replace(
    found,
    order=first,
    peak_bytes=peak_bytes,
    candidates=(*[*candidates][: _MAX_CANDIDATES - 1], initial),
  )
