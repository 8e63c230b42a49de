"""Orders in which every node comes after its predecessors."""

import graphlib
import heapq
from collections.abc import Callable, Collection, Iterable, Sequence


def check_acyclic(
  predecessors: Sequence[Sequence[int]], names: Sequence[str]
) -> None:
  """Raises ValueError, naming a cycle, if the precedences have one."""
  if all(
    predecessor < node
    for node, before in enumerate(predecessors)
    for predecessor in before
  ):
    return
  try:
    graphlib.TopologicalSorter(dict(enumerate(predecessors))).prepare()
  except graphlib.CycleError as error:
    raise ValueError(
      "The predecessors must not form a cycle, got "
      + " -> ".join(repr(names[n]) for n in error.args[1])
      + ". Drop one of these precedences."
    ) from None


def topological_order(
  predecessors: Sequence[Collection[int]], keys: Sequence[int] | None = None
) -> list[int]:
  """Returns the nodes, predecessors first; those on or after a cycle lack.

  Args:
    predecessors: For each node, the nodes that must come before it.
    keys: For each node, what to compare: of the nodes that are ready, the one
      of least key comes next. If None, the one that has been ready longest
      does. Equal ones go by their number.
  """
  successors = successors_of(predecessors)
  waiting = [len(before) for before in predecessors]
  ready = [
    (keys[v] if keys else 0, v) for v, count in enumerate(waiting) if not count
  ]
  heapq.heapify(ready)
  order = []
  while ready:
    _, node = heapq.heappop(ready)
    order.append(node)
    for successor in successors[node]:
      waiting[successor] -= 1
      if waiting[successor] == 0:
        key = keys[successor] if keys else len(order)
        heapq.heappush(ready, (key, successor))
  return order


def successors_of(predecessors: Sequence[Collection[int]]) -> list[list[int]]:
  """Returns for each node the nodes that list it, ascending."""
  successors: list[list[int]] = [[] for _ in predecessors]
  for node, before in enumerate(predecessors):
    for predecessor in before:
      successors[predecessor].append(node)
  return successors


def reachable(
  starts: Iterable[int], neighbours: Callable[[int], Iterable[int]]
) -> set[int]:
  """Returns the nodes that steps to neighbours lead to, the first included."""
  found = set(starts)
  todo = [*found]
  while todo:
    for other in neighbours(todo.pop()):
      if other not in found:
        found.add(other)
        todo.append(other)
  return found
