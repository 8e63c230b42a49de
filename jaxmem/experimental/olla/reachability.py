"""Function 2: whether one node precedes another, with memoised answers."""

from collections.abc import Sequence


class Reachability:
  """Answers queries; each node's ancestors are walked once, when needed.

  Args:
    predecessors: Per node; without cycles.
  """

  def __init__(self, predecessors: Sequence[Sequence[int]]):
    self._predecessors = predecessors
    # Ancestors as Python integers: bit v for node v.
    self._ancestors: dict[int, int] = {}

  def reaches(self, earlier: int, later: int) -> bool:
    """Whether there is a path; there is none from a node to itself."""
    return bool(self.ancestors(later) >> earlier & 1)

  def ancestors(self, node: int) -> int:
    """Returns the transitive fan-in of a node as bits, itself excluded."""
    # Depth first, without recursion: graphs are deeper than Python's stack.
    todo = [node]
    while todo:
      top = todo[-1]
      if top in self._ancestors:
        todo.pop()
        continue
      before = self._predecessors[top]
      unknown = [p for p in before if p not in self._ancestors]
      if unknown:
        todo += unknown
        continue
      found = 0
      for p in before:
        found |= self._ancestors[p] | 1 << p
      self._ancestors[todo.pop()] = found
    return self._ancestors[node]
