"""Orders in which every node comes after its predecessors."""

import heapq
from collections.abc import Collection, Sequence


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
  order = topological_order(predecessors)
  if len(order) == len(predecessors):
    return
  done = set(order)
  node = next(n for n in range(len(predecessors)) if n not in done)
  path: dict[int, int] = {}
  while node not in path:
    path[node] = len(path)
    node = next(p for p in predecessors[node] if p not in done)
  cycle = [*path][path[node] :]
  # The walk went from each node to its predecessor: turn it around.
  cycle = [cycle[0], *reversed(cycle)]
  raise ValueError(
    "The predecessors must not form a cycle, got "
    + " -> ".join(repr(names[n]) for n in cycle)
    + ". Drop one of these precedences."
  )


def topological_order(predecessors: Sequence[Sequence[int]]) -> list[int]:
  """Returns the nodes, predecessors first; those on or after a cycle lack."""
  successors = successors_of(predecessors)
  waiting = [len(before) for before in predecessors]
  order = [node for node, count in enumerate(waiting) if count == 0]
  for node in order:
    for successor in successors[node]:
      waiting[successor] -= 1
      if waiting[successor] == 0:
        order.append(successor)
  return order


def least_first_order(
  predecessors: Sequence[Collection[int]], keys: Sequence[int]
) -> list[int]:
  """Returns the topological order that takes the ready node of least key.

  Args:
    predecessors: For each node, the nodes that must come before it.
    keys: For each node, what to compare; equal ones go by their number.

  Returns:
    The nodes; those on or after a cycle lack.
  """
  successors = successors_of(predecessors)
  waiting = [len(before) for before in predecessors]
  ready = [(keys[v], v) for v, count in enumerate(waiting) if count == 0]
  heapq.heapify(ready)
  order = []
  while ready:
    _, node = heapq.heappop(ready)
    order.append(node)
    for successor in successors[node]:
      waiting[successor] -= 1
      if waiting[successor] == 0:
        heapq.heappush(ready, (keys[successor], successor))
  return order


def successors_of(predecessors: Sequence[Collection[int]]) -> list[list[int]]:
  """Returns for each node the nodes that list it, ascending."""
  successors: list[list[int]] = [[] for _ in predecessors]
  for node, before in enumerate(predecessors):
    for predecessor in before:
      successors[predecessor].append(node)
  return successors
