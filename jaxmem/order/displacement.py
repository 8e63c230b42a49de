"""How far nodes have moved from the compiler's order, and moving them back.

A compiler's order also serves the run time: it keeps producers and consumers
together and overlaps transfers. So once a good order is known, it is turned
back, node by node, into the compiler's order as far as its peak allows.
"""

import bisect
from collections.abc import Sequence

import numpy as np

from jaxmem.graph import Graph, liveness
from jaxmem.order.pass_state import DirectedGraph, PassState

# How many nodes are tried at each step, those that the compiler runs earliest:
# what stands further back seldom fits.
_MAX_TRIES = 16


def total_displacement(
  order: Sequence[int], initial_order: Sequence[int]
) -> int:
  """Returns the sum over all nodes of how many steps each has moved.

  Spearman's footrule: between one and two times the number of inversions.
  """
  position = np.argsort(np.asarray(initial_order, np.int64))
  steps = np.arange(len(order))
  return int(np.abs(position[np.asarray(order, np.int64)] - steps).sum())


def reduce_displacement(
  graph: Graph, initial_order: Sequence[int], order: tuple[int, ...]
) -> tuple[tuple[int, ...], int]:
  """Brings an order closer to the initial one without raising its peak.

  From the first step on, the node that the initial order would run earliest is
  pulled forward to this step, if all steps that it passes still fit; otherwise
  the next, and at last the node that is there. O(num_nodes**2), but vectorised.

  Args:
    graph: The program.
    initial_order: The compiler's order.
    order: A topological order whose peak is to be kept.

  Returns:
    A topological order and its peak in bytes, at most that of `order`.
  """
  timeline = _Timeline(graph, order)
  rank = np.argsort(np.asarray(initial_order, np.int64)).tolist()
  waiting = [len(node.predecessors) for node in graph.nodes]
  ready = sorted(rank[v] for v, count in enumerate(waiting) if not count)
  for step in range(graph.num_nodes):
    current = int(timeline.order[step])
    for earliest in ready[:_MAX_TRIES]:
      node = initial_order[earliest]
      if node == current or timeline.pull(node, step):
        current = node
        break
    timeline.state.run(current)
    del ready[bisect.bisect_left(ready, rank[current])]
    for successor in graph.successors[current]:
      waiting[successor] -= 1
      if not waiting[successor]:
        bisect.insort(ready, rank[successor])
  found = tuple(timeline.order.tolist())
  peak_bytes = liveness.peak_bytes(graph, found)
  # Where nodes have several pairs to share, a pair that saves less may have
  # become possible and be used before a better one.
  if peak_bytes > timeline.peak_bytes:
    return order, timeline.peak_bytes
  return found, peak_bytes


class _Timeline:
  """An order, run up to some step, and the bytes live at each step."""

  def __init__(self, graph: Graph, order: Sequence[int]):
    self.state = PassState(DirectedGraph.of(graph, forward=True))
    self.order = np.array(order, np.int64)
    self._position = np.argsort(self.order)
    # The same memory; single numbers are read several times as fast.
    self._position_of = memoryview(self._position)
    self._live = liveness.live_bytes(graph, order)
    self.peak_bytes = int(self._live.max(initial=0))
    # Node -> the last step that leaves no room for it to be pulled past. What
    # runs before that step changes nothing there, so this holds until a pull.
    self._blocked_at: dict[int, int] = {}

  def pull(self, node: int, step: int) -> bool:
    """Moves a node forward to the next step to run, if all of it fits.

    Steps that share more, because an operand now dies there, are not credited
    with it: the bytes kept here are never too low.
    """
    if self._blocked_at.get(node, -1) >= step:
      return False
    own_bytes = self.state.peak_of(node)
    if own_bytes > self.peak_bytes:
      return False
    old = self._position_of[node]
    live = self._live[step:old] + self._change(node, step, old)
    if live.max() > self.peak_bytes:
      too_high = (live > self.peak_bytes).nonzero()[0]
      self._blocked_at[node] = step + int(too_high[-1])
      return False
    self._blocked_at.clear()
    self._live[step] = own_bytes
    self._live[step + 1 : old + 1] = live
    self.order[step + 1 : old + 1] = self.order[step:old].copy()
    self.order[step] = node
    self._position[self.order[step : old + 1]] = np.arange(step, old + 1)
    return True

  def _change(self, node: int, step: int, old: int) -> np.ndarray:
    """What the pull adds to the steps from `step` up to `old`, in bytes."""
    graph, started = self.state.graph, self.state.started
    position_of = self._position_of
    change = np.zeros(old - step, np.int64)
    for b in graph.buffers_of[node]:
      size_bytes = graph.sizes[b]
      others = [position_of[t] for t in graph.touchers[b] if t != node]
      if not started[b] and (others or graph.live_last[b]):
        start = min(others, default=old)
        change[: max(start - step, 0)] += size_bytes
      last = max(others, default=-1)
      was_live = bool(others or started[b])
      if last < old and was_live and not graph.live_last[b]:
        change[max(last + 1 - step, 0) :] -= size_bytes
    return change
