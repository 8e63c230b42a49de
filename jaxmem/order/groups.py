"""Groups of nodes that run one after the other, and what precedes what.

A group is named by one of its nodes.
"""

from jaxmem.graph import Graph
from jaxmem.order import reachability

# Above this, the bit sets of all ancestors would take too much memory, and only
# direct precedences are seen.
_MAX_CLOSURE_NODES = 20_000


class Groups:
  """A partition of a graph's nodes; at first, each is a group of its own.

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

  def last(self, groups: set[int]) -> int | None:
    """The group that all the others precede, if there is one."""
    last = next(iter(groups), None)
    if last is None:
      return None
    for v in groups:
      if self.precedes(last, v):
        last = v
    is_last = all(v == last or self.precedes(v, last) for v in groups)
    return last if is_last else None

  def first(self, groups: set[int]) -> int | None:
    """The group that precedes all the others, if there is one."""
    first = next(iter(groups), None)
    if first is None:
      return None
    for v in groups:
      if self.precedes(v, first):
        first = v
    is_first = all(v == first or self.precedes(first, v) for v in groups)
    return first if is_first else None

  def glue(self, group: int, into: int, members: list[int]) -> None:
    """Makes one group of two.

    Args:
      group: The group that ends.
      into: The group that goes on.
      members: The nodes of both, in the order to run them.
    """
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
