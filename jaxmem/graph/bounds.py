"""Lower bounds on the peak of every order, by minimum cuts.

Any order splits the nodes at v into the set S that ran before v and the rest. S
is closed under predecessors, holds those of v and not v itself. While v runs,
every buffer that was defined in S and is touched outside S is live, and so is
what v defines. Minimising over all such S is a minimum cut, so no order does
better at v, and the best of the bounds of all v holds for the whole program.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
from ortools.graph.python import max_flow

from jaxmem.graph import liveness
from jaxmem.graph.graph import Graph
from jaxmem.graph.topological import reachable

# Bytes of closures that one network remembers.
_MAX_REMEMBERED = 1 << 26


class MinCut:
  """Minimum cuts of one graph: one flow network, arcs switched on per query.

  The network has a vertex per node and one per buffer. Its source side is S.
    x -> p, infinite, for each predecessor p of x: S is closed;
    definer -> buffer with the buffer's size, buffer -> other touchers infinite:
      a buffer with its definer in S and a toucher outside costs its size.
  Buffers live at the start hang on the source, those live at the end can only
  be on the sink side. All ancestors of a query's node are forced to the source
  side and all descendants to the sink side: implied, but it leaves so little to
  decide that the time grows linearly with the program.

  Attributes:
    graph: The graph.
    num_flows: How many cuts were computed.
  """

  def __init__(self, graph: Graph):
    self.graph = graph
    before = [node.predecessors for node in graph.nodes]
    self._ancestors = _remembered_closures(before)
    self._descendants = _remembered_closures(graph.successors)
    self._source = graph.num_nodes + graph.num_buffers
    self._sink = self._source + 1
    sizes = graph.arrays.size_bytes
    self._infinite = int(sizes.sum() + graph.arrays.extra_bytes.sum()) + 1
    self._flow = max_flow.SimpleMaxFlow()
    arcs = [*self._precedence_arcs(), *self._buffer_arcs()]
    self._first_switch = len(arcs)
    nodes = range(graph.num_nodes)
    arcs += [(self._source, node, 0) for node in nodes]
    arcs += [(node, self._sink, 0) for node in nodes]
    tails, heads, capacities = np.array(arcs, np.int64).reshape(-1, 3).T
    # The stub of OR-Tools 9 takes the arrays for scalars.
    self._flow.add_arcs_with_capacity(
      tails.astype(np.int32),  # pyright: ignore[reportArgumentType]
      heads.astype(np.int32),  # pyright: ignore[reportArgumentType]
      capacities.copy(),  # pyright: ignore[reportArgumentType]
    )
    self._own_bytes = [node.extra_bytes for node in graph.nodes]
    for buffer in graph.buffers:
      if buffer.definer is not None:
        self._own_bytes[buffer.definer] += buffer.size_bytes
    self._forced = np.empty(0, np.int32)
    self._bounds: dict[int, int] = {}
    self.num_flows = 0

  def bound(
    self, node: int, *, before: Sequence[int] = (), after: Sequence[int] = ()
  ) -> int:
    """Returns the least bytes that can be live while `node` runs.

    Args:
      node: The node.
      before: Nodes to be assumed to run before it.
      after: Nodes to be assumed to run after it.

    Returns:
      Bytes. A bound above what the program allows (the sum of everything)
      means that the assumptions contradict the precedences.
    """
    if before or after:
      return self._solve(node, before, after)
    if node not in self._bounds:
      self._bounds[node] = self._solve(node)
    return self._bounds[node]

  def side(self, node: int, which: Literal["least", "most"]) -> set[int]:
    """Returns the nodes to run before `node` in a minimum cut.

    Args:
      node: The node, itself never in the set.
      which: The smallest or the largest of the minimum cuts' sets.
    """
    self._bounds[node] = self._solve(node)
    nodes = set(range(self.graph.num_nodes))
    if which == "least":
      return nodes.intersection(self._flow.get_source_side_min_cut())
    return nodes.difference(self._flow.get_sink_side_min_cut())

  def _solve(
    self, node: int, before: Sequence[int] = (), after: Sequence[int] = ()
  ) -> int:
    ancestors = np.any([self._ancestors(v) for v in (node, *before)], axis=0)
    ancestors[node] = False
    descendants = np.any([self._descendants(v) for v in (node, *after)], axis=0)
    forced = np.concatenate([ancestors, descendants]).nonzero()[0]
    self._switch(self._forced, 0)
    self._forced = (forced + self._first_switch).astype(np.int32)
    self._switch(self._forced, self._infinite)
    status = self._flow.solve(self._source, self._sink)
    if status != self._flow.OPTIMAL:
      raise RuntimeError(
        f"SimpleMaxFlow must return OPTIMAL, got status {status} for node"
        f" {self.graph.nodes[node].name!r}."
      )
    self.num_flows += 1
    own_bytes = self._own_bytes[node] - _max_shared_bytes(self.graph, node)
    return self._flow.optimal_flow() + own_bytes

  def _switch(self, arcs: np.ndarray, capacity: int) -> None:
    capacities = np.full(len(arcs), capacity, np.int64)
    self._flow.set_arcs_capacity(
      arcs,  # pyright: ignore[reportArgumentType]
      capacities,  # pyright: ignore[reportArgumentType]
    )

  def _precedence_arcs(self) -> Iterable[tuple[int, int, int]]:
    for index, node in enumerate(self.graph.nodes):
      for predecessor in node.predecessors:
        yield index, predecessor, self._infinite

  def _buffer_arcs(self) -> Iterable[tuple[int, int, int]]:
    for index, buffer in enumerate(self.graph.buffers):
      if not buffer.size_bytes or not (buffer.touchers or buffer.live_at_end):
        continue
      vertex = self.graph.num_nodes + index
      tail = self._source if buffer.definer is None else buffer.definer
      yield tail, vertex, buffer.size_bytes
      if buffer.live_at_end:
        yield vertex, self._sink, self._infinite
        continue
      for toucher in buffer.touchers:
        if toucher != buffer.definer:
          yield vertex, toucher, self._infinite


def _remembered_closures(
  neighbours: Sequence[Sequence[int]],
) -> Callable[[int], np.ndarray]:
  """Returns what says of one node which nodes can be reached, itself too."""
  num_nodes = len(neighbours)

  @functools.lru_cache(_MAX_REMEMBERED // max(1, num_nodes))
  def closure(start: int) -> np.ndarray:
    reached = np.zeros(num_nodes, bool)
    reached[list(reachable([start], neighbours.__getitem__))] = True
    return reached

  return closure


def _max_shared_bytes(graph: Graph, node: int) -> int:
  """Returns at least the bytes that a node's outputs can share, in any order.

  Exact where every operand and every output is in one pair only; otherwise each
  output takes its best operand, or each operand its best output, whichever is
  less.
  """
  best_of_operand: dict[int, int] = {}
  best_of_output: dict[int, int] = {}
  later = graph.successors[node]
  for operand, output in graph.nodes[node].shares:
    buffer = graph.buffers[operand]
    if buffer.live_at_end or not set(buffer.touchers).isdisjoint(later):
      continue
    saved = min(buffer.size_bytes, graph.buffers[output].size_bytes)
    best_of_operand[operand] = max(best_of_operand.get(operand, 0), saved)
    best_of_output[output] = max(best_of_output.get(output, 0), saved)
  return min(sum(best_of_operand.values()), sum(best_of_output.values()))


def lower_bound(
  graph: Graph,
  order: Sequence[int],
  max_flows: int,
  cut: MinCut | None = None,
) -> int:
  """Returns the best bound of the nodes at the top of an order's profile.

  Visits nodes by falling live bytes under `order` and stops where those do not
  exceed the bound any more: no later node could raise it.

  Args:
    graph: The program.
    order: A topological order, the lower its peak the better.
    max_flows: How many minimum cuts to compute at most.
    cut: A network to be used again, with the bounds it remembers: of `graph`,
      or of one whose nodes differ in nothing but their extra bytes. Of these
      cuts know nothing.

  Returns:
    Bytes that no order's peak is below. If they are the peak of this one, it is
    optimal.
  """
  cut = cut or MinCut(graph)
  more_bytes = graph.arrays.extra_bytes - cut.graph.arrays.extra_bytes
  live = liveness.live_bytes(graph, order)
  best = 0
  last_flow = cut.num_flows + max_flows
  for step in np.argsort(-live, kind="stable").tolist():
    if live[step] <= best or cut.num_flows >= last_flow:
      break
    node = order[step]
    best = max(best, cut.bound(node) + int(more_bytes[node]))
  return best
