"""The state of a partial order, updated node by node and undone exactly.

The same code serves both directions. Backward, predecessors and successors
change places, and so do "live at the start" and "live at the end": bytes live
while a node runs are the same read from either end.
"""

import dataclasses
from collections.abc import Collection
from typing import Self

from jaxmem.graph import Graph

# What the count of remaining touchers of a buffer that is never freed begins
# with: so it never falls to 1 or 0, which mean that a step can free the buffer.
_NEVER_FREED = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DirectedGraph:
  """A graph read from one of its ends, as plain lists.

  Attributes:
    forward: Whether the pass starts at the program's first step.
    before: For each node, the nodes to run before it, in this direction.
    after: The opposite.
    buffers_of: For each node, the buffers that it touches.
    touchers: For each buffer, the nodes that touch it.
    sizes: Bytes per buffer.
    extra: Transient bytes per node.
    shares: For each node, triples of operand, output and bytes saved.
    live_first: Buffers live before the pass's first step.
    live_last: Buffers live after its last step.
    lazy: For each node, whether it is run only when another needs it: it
      waits for nothing, so nothing tells when to run it.
  """

  forward: bool
  before: list[list[int]]
  after: list[list[int]]
  buffers_of: list[list[int]]
  touchers: list[list[int]]
  sizes: list[int]
  extra: list[int]
  shares: list[list[tuple[int, int, int]]]
  live_first: list[bool]
  live_last: list[bool]
  lazy: list[bool]

  @classmethod
  def of(
    cls, graph: Graph, *, forward: bool, ignored: Collection[int] = ()
  ) -> Self:
    """Reads a graph in a direction; `ignored` buffers have no bytes."""
    sizes = [buffer.size_bytes for buffer in graph.buffers]
    for b in ignored:
      sizes[b] = 0
    before = [sorted(set(node.predecessors)) for node in graph.nodes]
    after = [sorted(set(successors)) for successors in graph.successors]
    first = [buffer.live_at_start for buffer in graph.buffers]
    last = [buffer.live_at_end for buffer in graph.buffers]
    if not forward:
      before, after, first, last = after, before, last, first
    shares = [
      [(a, b, min(sizes[a], sizes[b])) for a, b in node.shares]
      for node in graph.nodes
    ]
    return cls(
      forward=forward,
      before=before,
      after=after,
      buffers_of=[
        [b for b in touched if sizes[b]] for touched in graph.buffers_of_node
      ],
      touchers=[list(buffer.touchers) for buffer in graph.buffers],
      sizes=sizes,
      extra=[node.extra_bytes for node in graph.nodes],
      shares=[[t for t in triples if t[2]] for triples in shares],
      live_first=first,
      live_last=last,
      lazy=[not b and bool(a) for b, a in zip(before, after, strict=True)],
    )

  @property
  def num_nodes(self) -> int:
    """How many nodes there are."""
    return len(self.extra)


class Budget:
  """A peak not to be exceeded, and what it was asked about."""

  def __init__(self, num_bytes: int):
    self._num_bytes = num_bytes
    self._admitted, self._refused = 0, 1 << 63

  def admits(self, num_bytes: int) -> bool:
    """Whether so many bytes may be live."""
    if num_bytes <= self._num_bytes:
      self._admitted = max(self._admitted, num_bytes)
      return True
    self._refused = min(self._refused, num_bytes)
    return False

  def decides_alike(self, num_bytes: int) -> bool:
    """Whether another peak would have admitted and refused all the same."""
    return self._admitted <= num_bytes < self._refused


class PassState:
  """What has run, what is live, and what each remaining node would change.

  Attributes:
    live: Bytes live between two steps.
    log: The nodes that have run, in order.
    freed: For each node, the bytes that it would free.
    net: The bytes that it would start, less these. It only ever falls.
    waiting: For each node, how many nodes it waits for; -1 once it has run.
    eager_waiting: The same without lazy nodes.
    started: For each buffer, 0 until it is live, then 1 + the node.
    remaining: For each buffer, how many touchers have not run.
    falling: Nodes that at some time waited for nothing and had net <= 0.
    ready: Nodes that at some time waited for lazy nodes only.
    num_runs: How often a node was run, undone ones included: a clock.
  """

  def __init__(self, graph: DirectedGraph):
    self.graph = graph
    num_nodes = graph.num_nodes
    sizes = graph.sizes
    self.live = 0
    self.freed = [0] * num_nodes
    self.net = [0] * num_nodes
    self.started = [num_nodes + 1 if first else 0 for first in graph.live_first]
    self.remaining = [
      len(touchers) + _NEVER_FREED * last
      for touchers, last in zip(graph.touchers, graph.live_last, strict=True)
    ]
    for b, touchers in enumerate(graph.touchers):
      if graph.live_first[b] and (touchers or graph.live_last[b]):
        self.live += sizes[b]
      elif not graph.live_first[b]:
        for u in touchers:
          self.net[u] += sizes[b]
      if self.remaining[b] == 1:
        self.net[touchers[0]] -= sizes[b]
        self.freed[touchers[0]] += sizes[b]
    self.waiting = [len(before) for before in graph.before]
    self.eager_waiting = [
      sum(not graph.lazy[p] for p in before) for before in graph.before
    ]
    self.log: list[int] = []
    self.falling: list[int] = []
    self.ready: list[int] = []
    self.num_runs = 0

  def copy(self) -> "PassState":
    """Returns an independent state, much faster than a new one."""
    other = object.__new__(PassState)
    for name, value in vars(self).items():
      fresh = value.copy() if isinstance(value, list) else value
      setattr(other, name, fresh)
    return other

  def shared_bytes(self, v: int) -> int:
    """What v's outputs would share with operands if v ran now."""
    # Forward an operand dies if v is its last toucher; backward, where time
    # runs the other way, if v is its first.
    if self.graph.forward:
      count, dying = self.remaining, 1
    else:
      count, dying = self.started, 0
    saved = 0
    used: list[int] = []
    for operand, output, num_bytes in self.graph.shares[v]:
      if count[operand] == dying and operand not in used and output not in used:
        used += (operand, output)
        saved += num_bytes
    return saved

  def peak_of(self, v: int) -> int:
    """Bytes that would be live while v runs now."""
    peak = self.live + self.net[v] + self.freed[v] + self.graph.extra[v]
    return peak - self.shared_bytes(v) if self.graph.shares[v] else peak

  def run(self, v: int) -> int:
    """Runs v, which waits for nothing; returns the bytes live meanwhile."""
    graph = self.graph
    sizes, touchers, mine = graph.sizes, graph.touchers, graph.buffers_of[v]
    waiting, net, freed = self.waiting, self.net, self.freed
    started, remaining = self.started, self.remaining
    falling = self.falling
    during = self.peak_of(v)
    live = self.live
    waiting[v] = -1
    for b in mine:
      if not started[b]:
        started[b] = v + 1
        size = sizes[b]
        live += size
        for u in touchers[b]:
          net[u] = less = net[u] - size
          if less <= 0 and not waiting[u]:
            falling.append(u)
      remaining[b] -= 1
      left = remaining[b]
      if left == 1:
        u = self.last_toucher(b)
        net[u] -= sizes[b]
        freed[u] += sizes[b]
        if not waiting[u] and net[u] <= 0:
          falling.append(u)
      elif not left:
        live -= sizes[b]
    self.live = live
    self._release(v)
    self.log.append(v)
    self.num_runs += 1
    return during

  def _release(self, v: int) -> None:
    waiting, net, falling = self.waiting, self.net, self.falling
    eager_waiting, ready = self.eager_waiting, self.ready
    lazy = self.graph.lazy[v]
    for w in self.graph.after[v]:
      waiting[w] -= 1
      if not waiting[w] and net[w] <= 0:
        falling.append(w)
      if not lazy:
        eager_waiting[w] -= 1
        if not eager_waiting[w]:
          ready.append(w)

  def undo(self) -> int:
    """Takes back the last run and returns its node.

    `falling` and `ready` keep what the run added: the caller shortens them, or
    filters them by `waiting` and `net`.
    """
    graph = self.graph
    sizes, touchers = graph.sizes, graph.touchers
    net, freed = self.net, self.freed
    started, remaining = self.started, self.remaining
    v = self.log.pop()
    eager = not graph.lazy[v]
    for w in graph.after[v]:
      self.waiting[w] += 1
      self.eager_waiting[w] += eager
    live = self.live
    for b in reversed(graph.buffers_of[v]):
      left = remaining[b]
      size = sizes[b]
      if left == 1:
        u = self.last_toucher(b)
        net[u] += size
        freed[u] -= size
      elif not left:
        live += size
      remaining[b] = left + 1
      if started[b] == v + 1:
        started[b] = 0
        live -= size
        for u in touchers[b]:
          net[u] += size
    self.waiting[v] = 0
    self.live = live
    return v

  def last_toucher(self, b: int) -> int:
    """The only toucher that has not run, of a buffer with one remaining."""
    waiting = self.waiting
    touchers = self.graph.touchers[b]
    # Most passes run most nodes in about the program's order.
    for u in reversed(touchers) if self.graph.forward else touchers:
      if waiting[u] >= 0:
        return u
    raise AssertionError("One toucher remains.")

  def undo_to(self, num_steps: int) -> None:
    """Takes back runs until `num_steps` of them are left."""
    while len(self.log) > num_steps:
      self.undo()

  def run_with_lazy(self, w: int) -> int:
    """Runs w after the lazy nodes that it still waits for; returns the peak."""
    if not self.waiting[w]:
      return self.run(w)
    peak = 0
    for p in self.graph.before[w]:
      if not self.waiting[p]:
        peak = max(peak, self.run(p))
    return max(peak, self.run(w))

  def drain(
    self, first: int, budget: Budget, stop_bytes: int = -1, max_steps: int = -1
  ) -> None:
    """Runs nodes of `falling[first:]` that fit, as long as there are any.

    Args:
      first: Where in `falling` to begin.
      budget: What must not be exceeded while a node runs.
      stop_bytes: Stop as soon as no more than this is live.
      max_steps: Stop after so many nodes; negative for no limit.
    """
    falling, waiting, net = self.falling, self.waiting, self.net
    again = True
    while again:
      again = False
      i = first
      while i < len(falling):
        u = falling[i]
        if (
          not waiting[u] and net[u] <= 0 and not budget.admits(self.peak_of(u))
        ):
          i += 1
          continue
        falling[i] = falling[-1]
        falling.pop()
        if waiting[u] or net[u] > 0:
          continue
        self.run(u)
        max_steps -= 1
        if self.live <= stop_bytes or not max_steps:
          return
        again |= i > first
