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
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from jaxmem.graph import Buffer, Graph, topological_order
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
    return tuple(topological_order(before, latest))


def contract(graph: Graph) -> Contraction:
  """Applies the rules to a fixpoint; deterministic, about linear."""
  return _Contractor(graph).run()


class _Contractor:
  """What is glued and merged so far."""

  def __init__(self, graph: Graph):
    self._graph = graph
    self._groups = _Groups(graph)
    self._sizes = [buffer.size_bytes for buffer in graph.buffers]
    self._touchers = [
      set(b.touchers) if b.size_bytes else set() for b in graph.buffers
    ]
    self._definers = [self._sure_definer(b) for b in graph.buffers]
    self._rivals: set[int] = set()
    # Bit sets of the nodes that surely precede a toucher, where they are known.
    self._before_touchers: dict[int, int] = {}
    # Of buffers that are there: those without bytes are not, nor merged ones.
    self._live_at_end = [
      b.live_at_end and b.size_bytes > 0 for b in graph.buffers
    ]
    self._buffers = [
      {b for b in touched if self._sizes[b]}
      for touched in graph.buffers_of_node
    ]
    self._shares = [
      [(a, b) for a, b in node.shares if self._sizes[a] and self._sizes[b]]
      for node in graph.nodes
    ]

  def run(self) -> Contraction:
    for node in range(self._graph.num_nodes):
      self._merge_buffers(node)
    self._rivals = self._rival_operands()
    dirty = set(range(self._graph.num_nodes))
    while dirty:
      todo, dirty = sorted(dirty), set()
      for node in todo:
        if self._groups.members[node]:
          dirty |= self._merge_buffers(node) or self._try_glue(node)
    return self._finish()

  def _sure_definer(self, buffer: Buffer) -> int | None:
    """The definer, if it surely precedes every other toucher."""
    definer = buffer.definer
    if definer is not None and all(
      t == definer or self._groups.precedes(definer, t) for t in buffer.touchers
    ):
      return definer
    return None

  def _merge_buffers(self, node: int) -> set[int]:
    """Merges what surely shares at a node; returns the nodes it changes."""
    kept: list[tuple[int, int]] = []
    contested: set[int] = set()
    merged: set[int] = set()
    changed: set[int] = set()
    # A node may have pairs of each operand with each output.
    outlives: dict[int, bool] = {}
    for a, b in self._shares[node]:
      if a in merged or b in merged:
        continue
      if a not in outlives:
        outlives[a] = self._live_at_end[a] or self._is_touched_after(node, a)
      if outlives[a]:
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

  def _is_touched_after(self, node: int, buffer: int) -> bool:
    """Whether a node surely precedes one of a buffer's touchers."""
    touchers = self._touchers[buffer]
    if not self._groups.after[node].isdisjoint(touchers):
      return True
    # Each toucher asks, so what precedes any of them is kept.
    if buffer not in self._before_touchers:
      self._before_touchers[buffer] = self._groups.ancestors(touchers)
    return self._groups.has_any_of(node, self._before_touchers[buffer])

  def _surely_shares(self, node: int, a: int, b: int) -> bool:
    return self._sizes[a] == self._sizes[b] and all(
      t == node or self._groups.precedes(t, node) for t in self._touchers[a]
    )

  def _merge(self, node: int, a: int, b: int) -> set[int]:
    """Replaces b by a everywhere."""
    if b in self._rivals:
      self._rivals.add(a)
    if self._definers[b] != node:
      self._definers[a] = None
    self._live_at_end[a] = self._live_at_end[b]
    self._live_at_end[b] = False
    changed = self._touchers[a] | self._touchers[b]
    for t in self._touchers[b]:
      self._buffers[t].discard(b)
      self._buffers[t].add(a)
      self._shares[t] = [(a if x == b else x, y) for x, y in self._shares[t]]
    self._touchers[a], self._touchers[b] = changed.copy(), set()
    self._before_touchers.pop(a, None)
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
    successor = self._groups.first(self._groups.after[node])
    if successor is not None and self._may_run_late(node, successor):
      # The node frees nothing, so none of its operands dies at it.
      members = self._groups.members[node] + self._groups.members[successor]
      return self._glue(node, successor, members)
    predecessor = self._groups.last(self._groups.before[node])
    if predecessor is not None and self._may_run_early(node, predecessor):
      touched = self._buffers[node]
      self._shares[predecessor] = [
        pair for pair in self._shares[predecessor] if pair[0] not in touched
      ]
      members = self._groups.members[predecessor] + self._groups.members[node]
      return self._glue(node, predecessor, members)
    return set()

  def _may_run_late(self, node: int, successor: int) -> bool:
    touched = self._buffers[successor]
    for b in self._buffers[node]:
      if not self._live_at_end[b] and b not in touched:
        return False
    nodes = self._graph.nodes
    own_bytes = nodes[node].extra_bytes
    if not own_bytes:
      return True
    started = [b for b in touched if self._definers[b] == successor]
    margin = sum(self._sizes[b] for b in started)
    for _, output in self._shares[successor]:
      margin -= self._sizes[output]
    return own_bytes <= nodes[successor].extra_bytes + margin

  def _may_run_early(self, node: int, predecessor: int) -> bool:
    nodes = self._graph.nodes
    if nodes[node].extra_bytes > nodes[predecessor].extra_bytes:
      return False
    if self._shares[node]:
      return False
    if not self._rivals.isdisjoint(self._buffers[node]):
      return False
    touched = self._buffers[predecessor]
    return all(
      b in touched or self._graph.buffers[b].live_at_start
      for b in self._buffers[node]
    )

  def _glue(self, node: int, into: int, members: list[int]) -> set[int]:
    self._groups.glue(node, into, members)
    for b in self._buffers[node] | self._buffers[into]:
      self._before_touchers.pop(b, None)
    for b in self._buffers[node]:
      self._touchers[b].discard(node)
      self._touchers[b].add(into)
      self._buffers[into].add(b)
      if self._definers[b] == node:
        self._definers[b] = into
    return {into, *self._groups.before[into], *self._groups.after[into]}

  def _finish(self) -> Contraction:
    groups = [v for v, members in enumerate(self._groups.members) if members]
    compact = {v: i for i, v in enumerate(groups)}
    latest = [max(self._groups.members[v]) for v in groups]
    before = [[compact[p] for p in self._groups.before[v]] for v in groups]
    sequence = [groups[i] for i in topological_order(before, latest)]
    kept = [
      b
      for b, touchers in enumerate(self._touchers)
      if touchers or self._live_at_end[b]
    ]
    members = tuple(tuple(self._groups.members[v]) for v in sequence)
    group = {v: i for i, inside in enumerate(members) for v in inside}
    number = {b: i for i, b in enumerate(kept)}
    nodes = tuple(
      dataclasses.replace(
        self._graph.nodes[v],
        predecessors=tuple(sorted(group[p] for p in self._groups.before[v])),
        shares=tuple((number[a], number[b]) for a, b in self._shares[v]),
      )
      for v in sequence
    )
    buffers = tuple(self._buffer(b, group) for b in kept)
    graph = Graph(
      nodes=nodes, buffers=buffers, base_bytes=self._graph.base_bytes
    )
    return Contraction(graph=graph, members=members)

  def _buffer(self, b: int, group: Mapping[int, int]) -> Buffer:
    buffer = self._graph.buffers[b]
    touchers = {group[v] for v in self._touchers[b]}
    if buffer.live_at_start and self._live_at_end[b]:
      touchers = set()  # A constant: nobody's order changes it.
    return dataclasses.replace(
      buffer,
      touchers=tuple(sorted(touchers)),
      definer=None if buffer.definer is None else group[buffer.definer],
      live_at_end=self._live_at_end[b],
    )


class _Groups:
  """Nodes that run one after the other; at first, each is a group of its own.

  A group is named by one of its nodes.

  Attributes:
    members: For each group, its nodes in the order to run them; empty for nodes
      that belong to another group.
    before: For each group, those that precede it directly.
    after: The opposite.
  """

  def __init__(self, graph: Graph):
    nodes = graph.nodes
    self.members: list[list[int]] = [[v] for v in range(len(nodes))]
    self.before = [set(node.predecessors) for node in nodes]
    self.after = [set(successors) for successors in graph.successors]
    # Bit sets: which nodes are in a group, and which ones surely precede it.
    self._masks = [1 << v for v in range(len(nodes))]
    self._ancestors = [0] * len(nodes)
    if len(nodes) <= _MAX_CLOSURE_NODES:
      self._ancestors, _ = reachability.closure(graph)

  def precedes(self, first: int, second: int) -> bool:
    """Whether one group surely runs before another; False if unknown."""
    return first in self.before[second] or bool(
      self._ancestors[second] & self._masks[first]
    )

  def ancestors(self, groups: Iterable[int]) -> int:
    """The bit set of all nodes that surely precede one of some groups."""
    return functools.reduce(
      operator.or_, (self._ancestors[group] for group in groups), 0
    )

  def has_any_of(self, group: int, nodes: int) -> bool:
    """Whether a group has a node of a bit set."""
    return bool(self._masks[group] & nodes)

  def last(self, groups: set[int]) -> int | None:
    """The group that all the others precede, if there is one."""
    return _foremost(groups, lambda a, b: self.precedes(b, a))

  def first(self, groups: set[int]) -> int | None:
    """The group that precedes all the others, if there is one."""
    return _foremost(groups, self.precedes)

  def glue(self, group: int, into: int, members: list[int]) -> None:
    """Ends a group and has another go on with the nodes of both."""
    self.members[into], self.members[group] = members, []
    self._masks[into] |= self._masks[group]
    self._ancestors[into] |= self._ancestors[group]
    self._ancestors[into] &= ~self._masks[into]
    for sets, opposite in (
      (self.before, self.after),
      (self.after, self.before),
    ):
      for other in sets[group]:
        opposite[other].discard(group)
        if other != into:
          opposite[other].add(into)
          sets[into].add(other)
      sets[into].discard(group)


def _foremost(
  groups: set[int], precedes: Callable[[int, int], bool]
) -> int | None:
  found = next(iter(groups), None)
  if found is None:
    return None
  for v in groups:
    if precedes(v, found):
      found = v
  is_first = all(v == found or precedes(found, v) for v in groups)
  return found if is_first else None
