"""Exact contraction: merge buffers and glue nodes where nothing is lost.

Three rules, applied until none fits, keep the least peak of all orders:

  merge: v may place its output b on its operand a, both have the same size, and
    all other touchers of a precede v. Then a and b are one buffer.
  late: v has one successor w (others follow w) and frees nothing before w has
    run. Running v directly before w is never worse, if v's own peak is not
    above w's.
  early: v has one predecessor u (others precede u) and starts nothing that u
    has not started. Running v directly after u is never worse, if v's own peak
    is not above u's.

In the last two cases the pair behaves like one node: it starts what both start,
frees what both free, and its peak is that of w (of u).
"""

import dataclasses
import heapq
from collections.abc import Sequence

from jaxmem.graph import Buffer, Graph, Node
from jaxmem.order import reachability

# Above this, the bit sets of all ancestors would take too much memory, and only
# direct precedences are seen.
_MAX_CLOSURE_NODES = 20_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
  """A smaller graph with the same least peak.

  Attributes:
    graph: The contracted graph, without empty buffers. Its own order follows
      the original one as closely as the gluing allows.
    members: For each of its nodes, the original nodes in the order to run them.
  """

  graph: Graph
  members: tuple[tuple[int, ...], ...]

  def expand(self, order: Sequence[int]) -> tuple[int, ...]:
    """Returns an order of the original graph, of the same peak."""
    return tuple(node for group in order for node in self.members[group])

  def shrink(self, order: Sequence[int]) -> tuple[int, ...]:
    """Returns an order of the contracted graph that follows an original one.

    Each group comes where its last member was, or as soon after that as the
    precedences allow. The peak may differ from the original order's.
    """
    step = {node: i for i, node in enumerate(order)}
    latest = [max(step[v] for v in group) for group in self.members]
    before = [node.predecessors for node in self.graph.nodes]
    return tuple(_order_by(latest, before, self.graph.successors))


def contract(graph: Graph) -> Contraction:
  """Applies both rules to a fixpoint; deterministic, about linear."""
  return _Contractor(graph).run()


class _Contractor:
  """Mutable sets of what is glued so far; a group is named by one member."""

  def __init__(self, graph: Graph):
    self._graph = graph
    nodes = graph.nodes
    self._members: list[list[int]] = [[v] for v in range(len(nodes))]
    self._before = [set(node.predecessors) for node in nodes]
    self._after = [set(successors) for successors in graph.successors]
    self._masks = [1 << v for v in range(len(nodes))]
    self._ancestors = [0] * len(nodes)
    if len(nodes) <= _MAX_CLOSURE_NODES:
      self._ancestors, _ = reachability.closure(graph)
    self._extra = [node.extra_bytes for node in nodes]
    self._sizes = [buffer.size_bytes for buffer in graph.buffers]
    self._touchers = [
      set(b.touchers) if b.size_bytes else set() for b in graph.buffers
    ]
    self._definers = [self._sure_definer(b) for b in graph.buffers]
    self._rivals: set[int] = set()
    self._dropped = {b for b, size in enumerate(self._sizes) if not size}
    self._live_at_end = [buffer.live_at_end for buffer in graph.buffers]
    self._live_at_start = [buffer.live_at_start for buffer in graph.buffers]
    self._buffers = [
      {b for b in touched if self._sizes[b]}
      for touched in graph.buffers_of_node
    ]
    self._shares = [
      [(a, b) for a, b in node.shares if self._sizes[a] and self._sizes[b]]
      for node in nodes
    ]

  def run(self) -> Contraction:
    for node in range(self._graph.num_nodes):
      self._merge_buffers(node)
    self._rivals = self._rival_operands()
    dirty = set(range(self._graph.num_nodes))
    while dirty:
      todo, dirty = sorted(dirty), set()
      for node in todo:
        if self._members[node]:
          dirty |= self._merge_buffers(node) or self._try_glue(node)
    return self._finish()

  def _sure_definer(self, buffer: Buffer) -> int | None:
    """The definer, if it surely precedes every other toucher."""
    definer = buffer.definer
    if definer is not None and all(
      t == definer or self._precedes(definer, t) for t in buffer.touchers
    ):
      return definer
    return None

  def _precedes(self, first: int, second: int) -> bool:
    """Whether one group surely runs before another; False if unknown."""
    return first in self._before[second] or bool(
      self._ancestors[second] & self._masks[first]
    )

  def _last(self, nodes: set[int]) -> int | None:
    """The node that all the others precede, if there is one."""
    last = next(iter(nodes), None)
    if last is None:
      return None
    for v in nodes:
      if self._precedes(last, v):
        last = v
    is_last = all(v == last or self._precedes(v, last) for v in nodes)
    return last if is_last else None

  def _first(self, nodes: set[int]) -> int | None:
    """The node that precedes all the others, if there is one."""
    first = next(iter(nodes), None)
    if first is None:
      return None
    for v in nodes:
      if self._precedes(v, first):
        first = v
    is_first = all(v == first or self._precedes(first, v) for v in nodes)
    return first if is_first else None

  def _merge_buffers(self, node: int) -> set[int]:
    """Merges what surely shares at a node; returns the nodes it changes."""
    kept: list[tuple[int, int]] = []
    contested: set[int] = set()
    merged: set[int] = set()
    changed: set[int] = set()
    for a, b in self._shares[node]:
      never = self._live_at_end[a] or any(
        self._precedes(node, t) for t in self._touchers[a]
      )
      if never or a in merged or b in merged:
        continue
      # The pairs are used in this order, so an earlier one might take a or b.
      free = a not in contested and b not in contested
      if free and self._surely_shares(node, a, b):
        changed |= self._merge(node, a, b)
        merged |= {a, b}
      else:
        kept.append((a, b))
        contested |= {a, b}
    self._shares[node] = kept
    return changed

  def _surely_shares(self, node: int, a: int, b: int) -> bool:
    return self._sizes[a] == self._sizes[b] and all(
      t == node or self._precedes(t, node) for t in self._touchers[a]
    )

  def _merge(self, node: int, a: int, b: int) -> set[int]:
    """Replaces b by a everywhere."""
    if b in self._rivals:
      self._rivals.add(a)
    if self._definers[b] != node:
      self._definers[a] = None
    self._live_at_end[a] = self._live_at_end[b]
    changed = self._touchers[a] | self._touchers[b]
    for t in self._touchers[b]:
      self._buffers[t].discard(b)
      self._buffers[t].add(a)
      self._shares[t] = [(a if x == b else x, y) for x, y in self._shares[t]]
    self._touchers[a], self._touchers[b] = changed.copy(), set()
    self._dropped.add(b)
    return changed

  def _rival_operands(self) -> set[int]:
    """Operands that, by dying earlier, could make their node share less.

    Pairs are used in the listed order, so a poor pair can take an output away
    from a better one, unless every operand is in one pair and all pairs of an
    output save the same.
    """
    rivals: set[int] = set()
    for shares in self._shares:
      saved: dict[int, set[int]] = {}
      for a, b in shares:
        saved.setdefault(b, set()).add(min(self._sizes[a], self._sizes[b]))
      operands = [a for a, _ in shares]
      if len(set(operands)) < len(operands) or any(
        len(values) > 1 for values in saved.values()
      ):
        rivals.update(operands)
    return rivals

  def _try_glue(self, node: int) -> set[int]:
    """Glues the node if a rule fits; returns the nodes to look at again."""
    successor = self._first(self._after[node])
    if successor is not None and self._may_run_late(node, successor):
      # The node frees nothing, so none of its operands dies at it.
      members = self._members[node] + self._members[successor]
      return self._glue(node, successor, members)
    predecessor = self._last(self._before[node])
    if predecessor is not None and self._may_run_early(node, predecessor):
      touched = self._buffers[node]
      self._shares[predecessor] = [
        pair for pair in self._shares[predecessor] if pair[0] not in touched
      ]
      members = self._members[predecessor] + self._members[node]
      return self._glue(node, predecessor, members)
    return set()

  def _may_run_late(self, node: int, successor: int) -> bool:
    touched = self._buffers[successor]
    for b in self._buffers[node]:
      if not self._live_at_end[b] and b not in touched:
        return False
    if not self._extra[node]:
      return True
    started = [b for b in touched if self._definers[b] == successor]
    margin = sum(self._sizes[b] for b in started)
    for _, output in self._shares[successor]:
      margin -= self._sizes[output]
    return self._extra[node] <= self._extra[successor] + margin

  def _may_run_early(self, node: int, predecessor: int) -> bool:
    if self._extra[node] > self._extra[predecessor] or self._shares[node]:
      return False
    if not self._rivals.isdisjoint(self._buffers[node]):
      return False
    touched = self._buffers[predecessor]
    return all(
      self._live_at_start[b] or b in touched for b in self._buffers[node]
    )

  def _glue(self, node: int, into: int, members: list[int]) -> set[int]:
    self._members[into], self._members[node] = members, []
    self._masks[into] |= self._masks[node]
    self._ancestors[into] |= self._ancestors[node]
    self._ancestors[into] &= ~self._masks[into]
    for sets, opposite in (
      (self._before, self._after),
      (self._after, self._before),
    ):
      for other in sets[node]:
        opposite[other].discard(node)
        if other != into:
          opposite[other].add(into)
          sets[into].add(other)
      sets[into].discard(node)
    for b in self._buffers[node]:
      self._touchers[b].discard(node)
      self._touchers[b].add(into)
      self._buffers[into].add(b)
      if self._definers[b] == node:
        self._definers[b] = into
    return {into, *self._before[into], *self._after[into]}

  def _finish(self) -> Contraction:
    groups = [v for v, members in enumerate(self._members) if members]
    compact = {v: i for i, v in enumerate(groups)}
    latest = [max(self._members[v]) for v in groups]
    before = [[compact[p] for p in self._before[v]] for v in groups]
    after = [[compact[p] for p in self._after[v]] for v in groups]
    sequence = [groups[i] for i in _order_by(latest, before, after)]
    kept = [b for b in range(self._graph.num_buffers) if self._is_kept(b)]
    graph = Graph(
      nodes=self._nodes(sequence, kept),
      buffers=self._kept_buffers(sequence, kept),
      base_bytes=self._graph.base_bytes,
    )
    members = tuple(tuple(self._members[v]) for v in sequence)
    return Contraction(graph=graph, members=members)

  def _is_kept(self, b: int) -> bool:
    """Whether a buffer costs anything."""
    if b in self._dropped:
      return False
    return bool(self._touchers[b]) or self._live_at_end[b]

  def _nodes(self, sequence: list[int], kept: list[int]) -> tuple[Node, ...]:
    index = {v: i for i, v in enumerate(sequence)}
    new_buffer = {b: i for i, b in enumerate(kept)}
    return tuple(
      dataclasses.replace(
        self._graph.nodes[v],
        predecessors=tuple(sorted(index[p] for p in self._before[v])),
        extra_bytes=self._extra[v],
        shares=tuple(
          (new_buffer[a], new_buffer[b]) for a, b in self._shares[v]
        ),
      )
      for v in sequence
    )

  def _kept_buffers(
    self, sequence: list[int], kept: list[int]
  ) -> tuple[Buffer, ...]:
    index = {v: i for i, v in enumerate(sequence)}
    group = {u: i for v, i in index.items() for u in self._members[v]}
    buffers = []
    for b in kept:
      buffer = self._graph.buffers[b]
      definer = None if buffer.definer is None else group[buffer.definer]
      touchers = {index[v] for v in self._touchers[b]}
      if self._live_at_start[b] and self._live_at_end[b]:
        touchers = set()  # A constant: nobody's order changes it.
      buffers.append(
        dataclasses.replace(
          buffer,
          touchers=tuple(sorted(touchers)),
          definer=definer,
          live_at_end=self._live_at_end[b],
        )
      )
    return tuple(buffers)


def _order_by(
  keys: Sequence[int],
  before: Sequence[Sequence[int]],
  after: Sequence[Sequence[int]],
) -> list[int]:
  """The topological order that always takes the ready node of least key."""
  waiting = [len(predecessors) for predecessors in before]
  heap = [(keys[v], v) for v, count in enumerate(waiting) if not count]
  heapq.heapify(heap)
  order = []
  while heap:
    _, v = heapq.heappop(heap)
    order.append(v)
    for w in after[v]:
      waiting[w] -= 1
      if not waiting[w]:
        heapq.heappush(heap, (keys[w], w))
  return order
