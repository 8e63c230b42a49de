"""The earliest and the latest step of each node: ASAP and ALAP."""

import numpy as np

from jaxmem.graph import Graph, topological_order


def asap(graph: Graph) -> np.ndarray:
  """Returns the earliest step of each node, int64 `[num_nodes]`.

  It is the length of the longest chain of predecessors: linear to compute, and
  at most the number of ancestors.
  """
  earliest = [0] * graph.num_nodes
  for index in topological_order([n.predecessors for n in graph.nodes]):
    for predecessor in graph.nodes[index].predecessors:
      earliest[index] = max(earliest[index], earliest[predecessor] + 1)
  return np.array(earliest, np.int64)


def alap(graph: Graph) -> np.ndarray:
  """Returns the latest step of each node, int64 `[num_nodes]`; see `asap`."""
  latest = [graph.num_nodes - 1] * graph.num_nodes
  for index in reversed(
    topological_order([n.predecessors for n in graph.nodes])
  ):
    for predecessor in graph.nodes[index].predecessors:
      latest[predecessor] = min(latest[predecessor], latest[index] - 1)
  return np.array(latest, np.int64)
