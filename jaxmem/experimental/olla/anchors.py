"""4.3: control edges that make weight updates early (Functions 3 and 4).

Nothing is gained by a late update: it only frees a gradient. A heuristic all
the same, since the anchor may be earlier than the update should be.
"""

import dataclasses
from collections.abc import Sequence

from jaxmem.experimental.olla import levels
from jaxmem.graph import Graph


def weight_updates(graph: Graph) -> tuple[int, ...]:
  """Returns the nodes that look like weight updates, ascending.

  A graph does not know weights: those are taken that have no successor, touch
  a buffer that is live at the end (the weight) and another that is not (the
  gradient).
  """
  found = []
  for v, touched in enumerate(graph.buffers_of_node):
    ends = {graph.buffers[b].live_at_end for b in touched}
    if not graph.successors[v] and ends == {True, False}:
      found.append(v)
  return tuple(found)


def anchor_updates(graph: Graph, updates: Sequence[int] | None = None) -> Graph:
  """Function 3: gives each update a node that it must precede.

  Args:
    graph: The program.
    updates: The nodes to make early; by default `weight_updates(graph)`.

  Returns:
    The graph with further predecessors: maybe none, and never a cycle, since
    all precedences lead from a lower to a higher level.
  """
  if updates is None:
    updates = weight_updates(graph)
  level = levels.asap(graph).tolist()
  backward_level = [graph.num_nodes - 1 - t for t in levels.alap(graph)]
  before = [node.predecessors for node in graph.nodes]
  for update in updates:
    anchor = find_anchor(graph, update, level, backward_level)
    if anchor is not None:
      before[anchor] = tuple(sorted({*before[anchor], update}))
  nodes = tuple(
    dataclasses.replace(node, predecessors=predecessors)
    for node, predecessors in zip(graph.nodes, before, strict=True)
  )
  return dataclasses.replace(graph, nodes=nodes)


def find_anchor(
  graph: Graph,
  update: int,
  level: Sequence[int],
  backward_level: Sequence[int],
) -> int | None:
  """Function 4: looks around an update, farther and farther.

  Args:
    graph: The program.
    update: The node to be anchored.
    level: The longest path to each node.
    backward_level: The longest path from each node.

  Returns:
    Of the nodes of a higher level that read from the nearest ancestors that
    have any such reader, the one with the highest backward level (the smallest
    index among equals); None if there is none.
  """
  seen: set[int] = set()
  frontier = set(graph.nodes[update].predecessors)
  while frontier:
    readers = {v for p in frontier for v in graph.successors[p]}
    candidates = [v for v in sorted(readers) if level[v] > level[update]]
    if candidates:
      return max(candidates, key=lambda v: backward_level[v])
    seen |= frontier
    frontier = {p for v in frontier for p in graph.nodes[v].predecessors}
    frontier -= seen
  return None
