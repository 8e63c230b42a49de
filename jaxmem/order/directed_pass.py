"""One incremental list-scheduling pass under a soft byte budget.

A pass builds a whole order from one end of the program. Four rules, the first
that applies decides the next step:

  1. drain: run every ready node that frees at least what it starts, if it fits.
  2. excursion: run a node and what it leads to, if that ends no higher than it
     began and never leaves the budget; keep the part up to its lowest point.
  3. Run the ready node that comes first by priority, if it fits.
  4. If none fits, run the one that exceeds the budget least, unless that passes
     the hard limit: then the pass fails.
"""

import heapq
from collections.abc import Sequence

from jaxmem.graph import Graph
from jaxmem.order.pass_state import Budget, DirectedGraph, PassState

# How many steps an excursion may add to its first, each of the node that adds
# least, and how many it may drain after each.
_MAX_EXCURSION_STEPS = 4
_MAX_DRAINED_STEPS = 32
# A changed node that waits for more than so many others is too far from running
# for these to be worth an excursion.
_MAX_WAITING_TO_WAKE = 3

# Where a node that waits for lazy nodes only is to be found: nowhere yet, in
# the heap of candidates, or among those that did not fit when they were tried.
_HIDDEN, _IN_HEAP, _BLOCKED = 0, 1, 2


# Buffers of more touchers are left out of account, the smallest first, while
# they are so small a part of all bytes: to begin one, and to take that back, is
# work for each toucher, and would keep excursions from ending as low as before.
_MANY_TOUCHERS = 256
_NEGLIGIBLE_SHARE = 1e-6


def _negligible_buffers(graph: Graph) -> set[int]:
  sizes = graph.arrays.size_bytes
  order = sizes.argsort(kind="stable")
  fits = sizes[order].cumsum() <= sizes.sum() * _NEGLIGIBLE_SHARE
  small = order[fits].tolist()
  return {b for b in small if len(graph.buffers[b].touchers) > _MANY_TOUCHERS}


class DirectedPass:
  """Makes passes over one graph in one direction.

  Attributes:
    num_runs: Node executions so far, undone ones included: a clock for budgets
      that does not depend on the machine.
  """

  def __init__(self, graph: Graph, *, forward: bool):
    ignored = _negligible_buffers(graph)
    self._graph = DirectedGraph.of(graph, forward=forward, ignored=ignored)
    self._initial = PassState(self._graph)
    self.num_runs = 0

  def __call__(
    self, priority_order: Sequence[int], budget: Budget, limit_bytes: int
  ) -> tuple[int, ...] | None:
    """Makes one pass.

    Args:
      priority_order: All nodes, in the program's direction; earlier is
        preferred (later, in a backward pass).
      budget: The peak that the pass tries not to exceed.
      limit_bytes: The peak at which it gives up.

    Returns:
      A topological order whose peak is below `limit_bytes`, or None.
    """
    step = 1 if self._graph.forward else -1
    self._state = self._initial.copy()
    self._node_at = priority_order[::step]
    self._budget = budget
    self._limit_bytes = limit_bytes
    self._priority = [0] * self._graph.num_nodes
    for rank, v in enumerate(self._node_at):
      self._priority[v] = rank
    self._place = [_HIDDEN] * self._graph.num_nodes
    self._heap: list[int] = []
    # Pairs of peak minus live bytes, and priority.
    self._blocked: list[tuple[int, int]] = []
    # The nodes to try an excursion from; the last one comes first.
    self._dirty: dict[int, None] = {}
    is_complete = self._complete()
    self.num_runs += self._state.num_runs
    return tuple(self._state.log[::step]) if is_complete else None

  def _complete(self) -> bool:
    """Runs everything; False if the hard limit was reached."""
    state, num_nodes = self._state, self._graph.num_nodes
    for v in range(num_nodes):
      if not state.waiting[v] and state.net[v] <= 0:
        state.falling.append(v)
      if not state.eager_waiting[v] and not self._graph.lazy[v]:
        state.ready.append(v)
        self._mark(v)
    self._absorb(0)
    while len(state.log) < num_nodes:
      first = len(state.log)
      state.drain(0, self._budget)
      self._absorb(first)
      self._make_excursions()
      if len(state.log) == num_nodes:
        break
      v = self._select()
      first = len(state.log)
      if v < 0 or state.run_with_lazy(v) >= self._limit_bytes:
        return False
      self._absorb(first)
    return True

  def _make_excursions(self) -> None:
    """Tries an excursion from every node that a step has changed."""
    state, dirty = self._state, self._dirty
    while dirty:
      v, _ = dirty.popitem()
      if state.waiting[v] < 0:
        continue
      first, num_falling = len(state.log), len(state.falling)
      num_steps = self._excursion(v)
      if num_steps is None:
        state.undo_to(first)
        del state.falling[num_falling:]
        state.ready.clear()
        continue
      while len(state.log) > num_steps:
        u = state.undo()
        if state.net[u] <= 0:
          state.falling.append(u)
      eager_waiting = state.eager_waiting
      state.ready = [w for w in state.ready if not eager_waiting[w]]
      state.drain(0, self._budget)
      self._absorb(first)

  def _excursion(self, v: int) -> int | None:
    """Runs v and what pays it back, and leaves it all in the state.

    Returns the length of the log at the lowest point; None if that is higher
    than it began, or if the budget was left.
    """
    state, budget, admits = self._state, self._budget, self._budget.admits
    base, num_falling = state.live, len(state.falling)
    num_ready = len(state.ready)
    # The lazy nodes that v waits for mostly start what v touches: enough to
    # tell that v does not fit, without running them.
    if not (admits(state.peak_of(v)) and admits(state.run_with_lazy(v))):
      return None
    state.drain(num_falling, budget, base, _MAX_DRAINED_STEPS)
    lowest, num_steps = state.live, len(state.log)
    for _ in range(_MAX_EXCURSION_STEPS):
      if lowest <= base:
        break
      w = self._least_net(num_ready)
      if w < 0:
        break
      state.run_with_lazy(w)
      if state.live > base:
        state.drain(num_falling, budget, base, _MAX_DRAINED_STEPS)
      if state.live < lowest:
        lowest, num_steps = state.live, len(state.log)
    return num_steps if lowest <= base else None

  def _least_net(self, num_ready: int) -> int:
    """The node of `ready[num_ready:]` that adds least and fits, or -1."""
    state = self._state
    best, best_net = -1, 0
    for v in state.ready[num_ready:]:
      if state.waiting[v] < 0:
        continue
      peak, net = self._try(v)
      if self._budget.admits(peak) and (best < 0 or net < best_net):
        best, best_net = v, net
    return best

  def _try(self, v: int) -> tuple[int, int]:
    """The peak and the net bytes of running v with its missing lazy nodes."""
    state = self._state
    peak = state.peak_of(v)
    if not state.waiting[v] or not self._budget.admits(peak):
      return peak, state.net[v]
    base, first = state.live, len(state.log)
    num_falling, num_ready = len(state.falling), len(state.ready)
    peak = state.run_with_lazy(v)
    net = state.live - base
    state.undo_to(first)
    del state.falling[num_falling:]
    del state.ready[num_ready:]
    return peak, net

  def _select(self) -> int:
    """Rules 3 and 4: the next node; -1 if it would reach the hard limit."""
    state, heap, blocked = self._state, self._heap, self._blocked
    while blocked and self._budget.admits(state.live + blocked[0][0]):
      self._unblock(self._node_at[heapq.heappop(blocked)[1]])
    while heap:
      rank = heapq.heappop(heap)
      v = self._node_at[rank]
      if state.waiting[v] < 0:
        continue
      peak, _ = self._try(v)
      if self._budget.admits(peak):
        return v
      self._place[v] = _BLOCKED
      heapq.heappush(blocked, (peak - state.live, rank))
    while blocked:
      relative_peak, rank = heapq.heappop(blocked)
      v = self._node_at[rank]
      if state.waiting[v] < 0 or self._place[v] != _BLOCKED:
        continue
      return v if state.live + relative_peak < self._limit_bytes else -1
    return next(v for v in self._node_at if not state.waiting[v])

  def _absorb(self, first: int) -> None:
    """Makes candidates known and marks what the steps since `first` changed."""
    state, graph = self._state, self._graph
    for v in state.ready:
      if self._place[v] == _HIDDEN and state.waiting[v] >= 0:
        self._place[v] = _IN_HEAP
        heapq.heappush(self._heap, self._priority[v])
    state.ready.clear()
    for v in state.log[first:]:
      for w in graph.after[v]:
        self._mark(w)
      for b in graph.buffers_of[v]:
        if state.remaining[b] == 1:
          self._mark(state.last_toucher(b))
        if state.started[b] == v + 1:
          for u in graph.touchers[b]:
            self._unblock(u)

  def _unblock(self, v: int) -> None:
    if self._place[v] == _BLOCKED and self._state.waiting[v] >= 0:
      self._place[v] = _IN_HEAP
      heapq.heappush(self._heap, self._priority[v])

  def _mark(self, v: int) -> None:
    """Has an excursion from v tried again, or from what v waits for."""
    state = self._state
    if state.waiting[v] < 0 or self._graph.lazy[v]:
      return
    if not state.eager_waiting[v]:
      self._unblock(v)
      self._dirty.setdefault(v)
    elif state.eager_waiting[v] <= _MAX_WAITING_TO_WAKE:
      for p in self._graph.before[v]:
        if (
          not state.eager_waiting[p]
          and state.waiting[p] >= 0
          and not self._graph.lazy[p]
        ):
          self._dirty.setdefault(p)
