"""Destructive probing: prove that no order has a peak of at most M bytes.

Assume that one has. Where forcing node u after node v lifts v's minimum cut
above M, u must precede v in that order, and the other way round. Add what was
learnt as precedences and start again: a cut above M, or a cycle, refutes the
assumption (Klein and Scholl's destructive improvement, for peak memory).
"""

import dataclasses

from jaxmem.graph import Graph, MinCut, topological_order
from jaxmem.order import reachability
from jaxmem.order.result import OrderResult

# A round probes so many nodes, those with the highest minimum cuts: what is
# learnt there carries furthest.
_MAX_PROBED_NODES = 25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbingProver:
  """An orderer that leaves the order as it is and tries to prove it optimal.

  Attributes:
    max_flows: How many minimum cuts to compute at most.
    tolerance: The gap that needs no proof, relative to the bound less
      `graph.base_bytes`.
  """

  max_flows: int = 5_000
  tolerance: float = 0.0

  def improve(self, graph: Graph, known: OrderResult) -> OrderResult:
    """Refutes lower peaks; see `Orderer.improve`."""
    accepted = self.tolerance * (known.lower_bound_bytes - graph.base_bytes)
    below = known.peak_bytes - 1 - int(accepted)
    if not refute(graph, below, self.max_flows):
      return known
    return dataclasses.replace(
      known, lower_bound_bytes=below + 1, method=f"{known.method} + probing"
    )


def refute(graph: Graph, peak_bytes: int, max_flows: int = 5_000) -> bool:
  """Tries to prove that every order's peak exceeds `peak_bytes`.

  Args:
    graph: The program, contracted if possible.
    peak_bytes: The peak to refute, usually one less than the best known.
    max_flows: How many minimum cuts to compute at most. A graph with fewer than
      three for each node is not tried: no proof was seen that took less.

  Returns:
    Whether it is proved; that it is not says nothing.
  """
  if 3 * graph.num_nodes > max_flows:
    return False
  try:
    return _Prober(graph, peak_bytes, max_flows).refute()
  except _OutOfFlowsError:
    return False


class _OutOfFlowsError(Exception):
  """The budget is spent."""


class _Prober:
  """The graph with all precedences learnt so far."""

  def __init__(self, graph: Graph, peak_bytes: int, max_flows: int):
    self._graph = graph
    self._peak_bytes = peak_bytes
    self._flows_left = max_flows

  def refute(self) -> bool:
    while True:
      self._cut = MinCut(self._graph)
      self._ancestors, self._descendants = reachability.closure(self._graph)
      bounds = []
      for v in range(self._graph.num_nodes):
        bounds.append(self._bound(v))
        if bounds[v] > self._peak_bytes:
          return True
      nodes = sorted(range(len(bounds)), key=lambda v: -bounds[v])
      edges = []
      for v in nodes[:_MAX_PROBED_NODES]:
        edges += self._probe(v)
      if not edges:
        return False
      if not self._add(edges):
        return True

  def _bound(
    self, v: int, before: tuple[int, ...] = (), after: tuple[int, ...] = ()
  ) -> int:
    if self._flows_left <= 0:
      raise _OutOfFlowsError
    self._flows_left -= 1
    return self._cut.bound(v, before=before, after=after)

  def _probe(self, v: int) -> list[tuple[int, int]]:
    """Returns the precedences that follow at v.

    A node can only be forced to one side if every minimum cut has it there, so
    only those are tried, and an implied precedence is not tried again.
    """
    everything = (1 << self._graph.num_nodes) - 1
    known = self._ancestors[v] | self._descendants[v] | (1 << v)
    edges = []
    todo = sum(1 << u for u in self._cut.side(v, "least")) & ~known
    while todo:
      u = todo.bit_length() - 1
      todo &= ~(1 << u)
      if self._bound(v, after=(u,)) > self._peak_bytes:
        edges.append((u, v))
        todo &= ~self._ancestors[u]
    most = sum(1 << u for u in self._cut.side(v, "most"))
    todo = everything & ~most & ~known
    while todo:
      u = (todo & -todo).bit_length() - 1
      todo &= ~(1 << u)
      if self._bound(v, before=(u,)) > self._peak_bytes:
        edges.append((v, u))
        todo &= ~self._descendants[u]
    self._flows_left -= 2
    return edges

  def _add(self, edges: list[tuple[int, int]]) -> bool:
    """Adds precedences; returns whether there is still no cycle."""
    before = [set(node.predecessors) for node in self._graph.nodes]
    for u, v in edges:
      before[v].add(u)
    if len(topological_order([[*b] for b in before])) < len(before):
      return False
    nodes = tuple(
      dataclasses.replace(node, predecessors=tuple(sorted(b)))
      for node, b in zip(self._graph.nodes, before, strict=True)
    )
    self._graph = dataclasses.replace(self._graph, nodes=nodes)
    return True
