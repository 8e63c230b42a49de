"""Sharing that stays safe when nodes run at the same time.

MXNet's note names three ways. Share as if nodes ran one after another, and add
the precedences that this implies (`sharing_edges`; works for any allocator).
Share only where the graph itself orders the nodes (`Ancestors`). Or find long
paths, and share only along one of them (`Paths`), which is stricter and takes
time linear in the graph for a given number of paths.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol

from jaxmem.experimental.allocators.trace import Result, Trace
from jaxmem.graph import Graph, topological_order
from jaxmem.order import reachability

Safety = Literal["serial", "edges", "ancestors", "paths"]


class Relation(Protocol):
  """When a buffer is done with, whatever runs in parallel."""

  def allows(self, buffer: int, node: int) -> bool:
    """Whether what a node defines may take the place of a buffer.

    Given is that in the trace's order the buffer dies before the node, or at
    it.
    """
    ...


class Serial:
  """Nodes run one after another: what is dead may be reused."""

  def allows(self, buffer: int, node: int) -> bool:
    """Always."""
    del buffer, node
    return True


class Ancestors:
  """All who touch the buffer are ancestors of the node, or the node itself."""

  def __init__(self, trace: Trace):
    self._buffers = trace.buffers
    self._ancestors, _ = reachability.closure(trace.graph)

  def allows(self, buffer: int, node: int) -> bool:
    """Whether every toucher of the buffer comes first in every order."""
    return all(
      toucher == node or self._ancestors[node] >> toucher & 1
      for toucher in self._buffers[buffer].touchers
    )


class Paths:
  """All who read the buffer are on one path with the node.

  Attributes:
    colors: Per node, the number of its path; -1 for nodes on none.
  """

  def __init__(self, trace: Trace, num_paths: int | None = None):
    self._buffers = trace.buffers
    self.colors = color_paths(trace.graph, num_paths)

  def allows(self, buffer: int, node: int) -> bool:
    """Whether the last to touch the buffer have the node's color."""
    found = self._buffers[buffer]
    # Readers come after the definer; without any, it is what must be ordered.
    readers = [t for t in found.touchers if t != found.definer]
    return all(
      t == node or (self.colors[t] == self.colors[node] >= 0)
      for t in readers or found.touchers
    )


def relation(
  trace: Trace, safety: Safety, num_paths: int | None = None
) -> Relation:
  """Returns the relation of a kind of safety; "edges" shares as "serial"."""
  if safety == "ancestors":
    return Ancestors(trace)
  if safety == "paths":
    return Paths(trace, num_paths)
  return Serial()


def color_paths(graph: Graph, num_paths: int | None = None) -> tuple[int, ...]:
  """Colors the nodes of long paths alike.

  Again and again, the path with the most uncolored nodes gives these a new
  color. It may lead through colored ones: along a path all nodes are ordered.

  Args:
    graph: The program.
    num_paths: How many paths to look for; until every node has a color if
      None. Each takes time linear in the graph.

  Returns:
    Per node its color, from 0; -1 if it has none.
  """
  order = topological_order([node.predecessors for node in graph.nodes])
  colors = [-1] * graph.num_nodes
  left = graph.num_nodes
  color = 0
  while left and (num_paths is None or color < num_paths):
    for node in _longest_path(graph, order, colors):
      if colors[node] < 0:
        colors[node] = color
        left -= 1
    color += 1
  return tuple(colors)


def _longest_path(
  graph: Graph, order: list[int], colors: list[int]
) -> list[int]:
  lengths = [0] * graph.num_nodes
  previous: list[int | None] = [None] * graph.num_nodes
  for node in order:
    for before in graph.nodes[node].predecessors:
      if lengths[before] > lengths[node]:
        lengths[node], previous[node] = lengths[before], before
    lengths[node] += colors[node] < 0
  last: int | None = max(order, key=lambda n: (lengths[n], -n))
  path = []
  while last is not None:
    path.append(last)
    last = previous[last]
  return path[::-1]


def sharing_edges(trace: Trace, result: Result) -> tuple[tuple[int, int], ...]:
  """Returns the precedences that a result's sharing implies.

  With them it is safe in parallel, if it was safe in the trace's order: every
  buffer waits for all that touch the buffers that had its bytes just before.
  Earlier ones need no edge, since those waited for them.

  Args:
    trace: The step.
    result: What shares as if the nodes ran one after another.

  Returns:
    Pairs of nodes (earlier, later), ascending; none that the graph's own
    precedences imply.
  """
  ancestors, _ = reachability.closure(trace.graph)
  owners: dict[int, list[tuple[int, int, int]]] = {}
  edges = set()
  for buffer in trace.requested:
    place = result.placements[buffer]
    assert place is not None
    size_bytes = trace.buffers[buffer].size_bytes
    low, high = place.offset_bytes, place.offset_bytes + size_bytes
    ranges = owners.setdefault(place.segment, [])
    definer = trace.buffers[buffer].definer
    for _, _, owner in _meeting(ranges, low, high):
      assert definer is not None
      edges |= {
        (toucher, definer)
        for toucher in trace.buffers[owner].touchers
        if toucher != definer and not ancestors[definer] >> toucher & 1
      }
    owners[place.segment] = _replaced(ranges, low, high, buffer)
  return tuple(sorted(edges))


def with_sharing_edges(trace: Trace, result: Result) -> Result:
  """Returns a result that is safe in parallel by its added edges."""
  return dataclasses.replace(result, added_edges=sharing_edges(trace, result))


def _meeting(
  ranges: list[tuple[int, int, int]], low: int, high: int
) -> list[tuple[int, int, int]]:
  return [r for r in ranges if r[0] < high and low < r[1]]


def _replaced(
  ranges: list[tuple[int, int, int]], low: int, high: int, owner: int
) -> list[tuple[int, int, int]]:
  """Returns who owns which bytes once an owner has taken some over."""
  kept = [(low, high, owner)]
  for start, end, other in ranges:
    if start < low:
      kept.append((start, min(end, low), other))
    if end > high:
      kept.append((max(start, high), end, other))
  return kept
