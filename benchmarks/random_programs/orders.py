"""Every order of a graph: what a plan's claims are compared with."""

from __future__ import annotations

from collections.abc import Iterator

from jaxmem.graph import Graph


def all_orders(graph: Graph) -> Iterator[tuple[int, ...]]:
  """Yields every topological order."""
  waiting = [len(node.predecessors) for node in graph.nodes]
  order: list[int] = []

  def extend() -> Iterator[tuple[int, ...]]:
    if len(order) == graph.num_nodes:
      yield tuple(order)
      return
    for index, count in enumerate(waiting):
      if count:
        continue
      waiting[index] = -1
      for successor in graph.successors[index]:
        waiting[successor] -= 1
      order.append(index)
      yield from extend()
      order.pop()
      for successor in graph.successors[index]:
        waiting[successor] += 1
      waiting[index] = 0

  return extend()
