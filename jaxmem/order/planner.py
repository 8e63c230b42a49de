"""The one place that decides which orderer runs when."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxmem.graph import Graph, liveness, lower_bound
from jaxmem.order.contraction import Contraction, contract
from jaxmem.order.exact import cpsat_order
from jaxmem.order.nearness import stay_close
from jaxmem.order.probing import refute
from jaxmem.order.result import OrderResult
from jaxmem.order.search import search

Effort = Literal["fast", "normal", "prove"]

_MAX_CANDIDATES = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
  """What an effort may spend.

  Attributes:
    max_passes: Passes of the search.
    max_runs: Node executions of the search, a few microseconds each, while
      they bring nothing; `search` says how many more it may spend.
    max_flows: Minimum cuts for the final bound.
    tolerance: The relative gap that needs no more search and no proof.
    max_cpsat_nodes: The largest contracted graph that CP-SAT is given.
    max_cpsat_time: Its deterministic time.
    max_probe_flows: Minimum cuts for the destructive proof.
  """

  max_passes: int
  max_runs: int
  max_flows: int
  tolerance: float
  max_cpsat_nodes: int
  max_cpsat_time: float
  max_probe_flows: int


_BUDGETS = {
  "fast": _Budget(
    max_passes=12,
    max_runs=200_000,
    max_flows=20,
    tolerance=1e-3,
    max_cpsat_nodes=0,
    max_cpsat_time=0.0,
    max_probe_flows=0,
  ),
  "normal": _Budget(
    max_passes=60,
    max_runs=200_000,
    max_flows=60,
    tolerance=1e-4,
    max_cpsat_nodes=200,
    max_cpsat_time=0.5,
    max_probe_flows=2_000,
  ),
  "prove": _Budget(
    max_passes=160,
    max_runs=4_000_000,
    max_flows=1_000,
    tolerance=0.0,
    max_cpsat_nodes=200,
    max_cpsat_time=20.0,
    max_probe_flows=20_000,
  ),
}


def plan_order(
  graph: Graph,
  initial_order: Sequence[int] | None = None,
  *,
  effort: Effort = "normal",
  prove: bool = True,
  start: Sequence[int] | None = None,
  close: bool = True,
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
    close: Whether to bring the best order closer to the initial one as far as
      its peak allows. It then uses what the peak allows at most steps, so that
      little may be wasted when buffers are placed: without, they pack better.

  Returns:
    The best order found, never worse than the initial order. With `close`,
    the candidates hold it as it was found, too.

  Raises:
    ValueError: If the effort is unknown or the order is not topological.
  """
  if effort not in _BUDGETS:
    raise ValueError(
      f"effort must be one of {', '.join(_BUDGETS)}, got {effort!r}."
    )
  initial = tuple(range(graph.num_nodes))
  if initial_order is not None:
    initial = tuple(initial_order)
  if not liveness.is_topological(graph, initial):
    raise ValueError(
      "initial_order must be a topological permutation of the nodes; see"
      " validate.check_order for what is wrong."
    )
  peak_bytes = liveness.peak_bytes(graph, initial)
  bound = lower_bound(graph, initial, max_flows=1).num_bytes
  if bound == peak_bytes:
    return unchanged(graph, initial, bound)
  contraction = contract(graph)
  budget = _BUDGETS[effort]
  if not prove:
    budget = dataclasses.replace(budget, max_cpsat_nodes=0, max_probe_flows=0)
  found = _improve(contraction, start or initial, budget)
  return _expand(graph, contraction, initial, found, close)


def unchanged(
  graph: Graph, order: Sequence[int], lower_bound_bytes: int
) -> OrderResult:
  """Returns the result that keeps an order.

  Args:
    graph: The program.
    order: The order to keep.
    lower_bound_bytes: No order has a lower peak.
  """
  peak_bytes = liveness.peak_bytes(graph, order)
  return OrderResult(
    order=tuple(order),
    peak_bytes=peak_bytes,
    lower_bound_bytes=lower_bound_bytes,
    status="optimal" if lower_bound_bytes == peak_bytes else "feasible",
    method="min cut",
    num_passes=0,
    candidates=(tuple(order),),
  )


def _improve(
  contraction: Contraction, start: Sequence[int], budget: _Budget
) -> OrderResult:
  """Runs the orderers on the contracted graph."""
  graph = contraction.graph
  found = search(
    graph,
    contraction.shrink(start),
    max_passes=budget.max_passes,
    max_runs=budget.max_runs,
    max_flows=budget.max_flows,
    tolerance=budget.tolerance,
  )
  accepted = budget.tolerance * (found.lower_bound_bytes - graph.base_bytes)
  if found.peak_bytes - found.lower_bound_bytes <= accepted:
    return found
  # Probing first: its time is known beforehand, that of CP-SAT is not.
  below = found.peak_bytes - 1 - int(accepted)
  if refute(graph, below, max_flows=budget.max_probe_flows).refuted:
    return dataclasses.replace(
      found,
      lower_bound_bytes=below + 1,
      status="optimal" if below + 1 == found.peak_bytes else "feasible",
      method=f"{found.method} + probing",
    )
  if graph.num_nodes <= budget.max_cpsat_nodes:
    decided = cpsat_order(
      graph,
      found.order,
      lower_bound_bytes=found.lower_bound_bytes,
      max_deterministic_time=budget.max_cpsat_time,
    )
    found = dataclasses.replace(
      decided,
      method=f"{found.method} + cp-sat",
      num_passes=found.num_passes,
      candidates=tuple(dict.fromkeys((decided.order, *found.candidates))),
    )
  return found


def bring_closer(
  graph: Graph, initial: Sequence[int], best: tuple[int, ...]
) -> tuple[int, ...]:
  """Returns an order closer to the initial one, with no higher peak.

  Args:
    graph: The program.
    initial: The compiler's order.
    best: An order whose peak is to be kept.
  """
  found = stay_close(graph, initial, best)
  if liveness.peak_bytes(graph, found) > liveness.peak_bytes(graph, best):
    return best
  return found


def _expand(
  graph: Graph,
  contraction: Contraction,
  initial: tuple[int, ...],
  found: OrderResult,
  close: bool,
) -> OrderResult:
  """Returns a result for the graph from one for the contracted graph."""
  best = contraction.expand(found.order)
  peak_bytes = liveness.peak_bytes(graph, best)
  if peak_bytes >= liveness.peak_bytes(graph, initial):
    return _with_order(found, graph, initial, (initial,))
  first = bring_closer(graph, initial, best) if close else best
  orders = [contraction.expand(order) for order in found.candidates]
  candidates = dict.fromkeys((first, best, *orders))
  candidates.pop(initial, None)
  kept = (*[*candidates][: _MAX_CANDIDATES - 1], initial)
  return _with_order(found, graph, first, kept)


def _with_order(
  found: OrderResult,
  graph: Graph,
  order: tuple[int, ...],
  candidates: tuple[tuple[int, ...], ...],
) -> OrderResult:
  peak_bytes = liveness.peak_bytes(graph, order)
  proven = peak_bytes == found.lower_bound_bytes
  return dataclasses.replace(
    found,
    order=order,
    peak_bytes=peak_bytes,
    status="optimal" if proven else "feasible",
    candidates=candidates,
  )
