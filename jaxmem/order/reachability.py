"""Ancestors and descendants as bit sets: Python integers, bit v for node v."""

from jaxmem.graph import Graph, topological_order


def closure(graph: Graph) -> tuple[list[int], list[int]]:
  """Returns the ancestors and the descendants of each node, itself excluded.

  Takes num_nodes**2 / 4 bytes: for graphs of up to some ten thousand nodes.
  """
  ancestors = [0] * graph.num_nodes
  descendants = [0] * graph.num_nodes
  order = topological_order([node.predecessors for node in graph.nodes])
  for v in order:
    for p in graph.nodes[v].predecessors:
      ancestors[v] |= ancestors[p] | (1 << p)
  for v in reversed(order):
    for p in graph.nodes[v].predecessors:
      descendants[p] |= descendants[v] | (1 << v)
  return ancestors, descendants
