"""Sharing that stays safe when nodes run at the same time.

MXNet's note names three ways. Share as if nodes ran one after another, and add
the precedences that this implies (`sharing_edges`; works for any allocator).
Share only where the graph itself orders the nodes (`Ancestors`). Or find long
paths, and share only along one of them (`Paths`), which is stricter and takes
time linear in the graph for a given number of paths.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import functools
import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxmem.experimental.allocators import bit_sets
from jaxmem.experimental.allocators.trace import Result, Trace
from jaxmem.graph import Graph, successors_of, topological_order

Safety = Literal["serial", "edges", "ancestors", "paths"]


class Relation(abc.ABC):
  """When a buffer is done with, whatever runs in parallel.

  A node follows a buffer if what it defines may take the buffer's place, given
  that in the trace's order the buffer dies before the node, or at it.
  """

  def __init__(self, trace: Trace):
    self._buffers = trace.buffers
    self._num_nodes = trace.graph.num_nodes
    self._followers: dict[int, int] = {}

  @abc.abstractmethod
  def _find_followers(self, buffer: int) -> int:
    """Returns as bits the nodes that follow a buffer."""

  def followers(self, buffer: int) -> int:
    """Returns as bits the nodes that follow a buffer."""
    found = self._followers.get(buffer)
    if found is None:
      found = self._followers[buffer] = self._find_followers(buffer)
    return found

  def allows(self, buffer: int, node: int) -> bool:
    """Whether a node follows a buffer."""
    return bool(self.followers(buffer) >> node & 1)

  def followed(self, node: int) -> bytes:
    """Returns, per buffer, 1 if a node follows it, else 0."""
    count = len(self._buffers)
    return bit_sets.flags(self._followed[node], count).tobytes()

  @functools.cached_property
  def _followed(self) -> list[int]:
    found = [self.followers(b) for b in range(len(self._buffers))]
    return bit_sets.transposed(found, self._num_nodes)


class Serial(Relation):
  """Nodes run one after another: what is dead may be reused."""

  def _find_followers(self, buffer: int) -> int:
    del buffer
    return (1 << self._num_nodes) - 1

  def followed(self, node: int) -> bytes:
    """All buffers."""
    del node
    return b"\1" * len(self._buffers)


class Ancestors(Relation):
  """All who touch the buffer are ancestors of the node, or the node itself."""

  def __init__(self, trace: Trace):
    super().__init__(trace)
    _, self._descendants = trace.closure

  def _find_followers(self, buffer: int) -> int:
    found = (1 << self._num_nodes) - 1
    for toucher in self._buffers[buffer].touchers:
      found &= self._descendants[toucher] | 1 << toucher
    return found


class Paths(Relation):
  """All who read the buffer are on one path with the node.

  Attributes:
    colors: Per node, the number of its path; -1 for nodes on none.
  """

  def __init__(self, trace: Trace, num_paths: int | None = None):
    super().__init__(trace)
    self.colors = color_paths(trace.graph, num_paths)
    self._members: dict[int, int] = {}
    for node, color in enumerate(self.colors):
      self._members[color] = self._members.get(color, 0) | 1 << node

  def _find_followers(self, buffer: int) -> int:
    found = self._buffers[buffer]
    # Readers come after the definer; without any, it is what must be ordered.
    readers = [t for t in found.touchers if t != found.definer]
    last = readers or found.touchers
    colors = {self.colors[t] for t in last}
    if len(colors) == 1 and -1 not in colors:
      return self._members[colors.pop()]
    # What has no color, or several, is done with at its only reader at best.
    return 1 << last[0] if len(last) == 1 else 0


def relation(
  trace: Trace, safety: Safety, num_paths: int | None = None
) -> Relation:
  """Returns the relation of a kind of safety; "edges" shares as "serial"."""
  if safety == "ancestors":
    return Ancestors(trace)
  if safety == "paths":
    return Paths(trace, num_paths)
  return Serial(trace)


def groups_after(
  trace: Trace, related: Relation, groups: Sequence[Sequence[int]]
) -> list[int]:
  """Returns, per group, as bits the groups that begin when it is done with.

  Args:
    trace: The step.
    related: What may share.
    groups: Buffers that are written over one another, in this order; see
      `in_place.chains`.
  """
  first = np.array([group[0] for group in groups], np.int64)
  starts = trace.live_steps[first, 0]
  found_definers = (trace.buffers[b].definer for b in first.tolist())
  definers = np.array(
    [-1 if d is None else d for d in found_definers], np.int64
  )
  found = []
  for group in groups:
    last = group[-1]
    if trace.buffers[last].live_at_end:
      found.append(0)
      continue
    after = starts >= trace.live_steps[last, 1]
    followers = bit_sets.flags(related.followers(last), trace.graph.num_nodes)
    after &= followers[definers] & (definers >= 0)
    found.append(bit_sets.from_flags(after))
  return found


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
  paths = _LongPaths(graph)
  color = 0
  while paths.num_left and (num_paths is None or color < num_paths):
    paths.color_longest(color)
    color += 1
  return tuple(paths.colors)


class _LongPaths:
  """For each node the path to it with the most uncolored nodes.

  Coloring a path changes the numbers of few other nodes: those alone are
  counted again.

  Attributes:
    colors: Per node its color, from 0; -1 if it has none yet.
    num_left: How many nodes have no color.
  """

  def __init__(self, graph: Graph):
    self._predecessors = [node.predecessors for node in graph.nodes]
    self._successors = successors_of(self._predecessors)
    order = topological_order(self._predecessors)
    self._position = [0] * len(order)
    self.colors = [-1] * len(order)
    self.num_left = len(order)
    # Per node, the uncolored nodes on its path, itself included, and the node
    # before it there.
    self._lengths = [0] * len(order)
    self._previous: list[int | None] = [None] * len(order)
    for position, node in enumerate(order):
      self._position[node] = position
      self._count(node)
    # Lengths only fall: an entry may say too much, never too little.
    self._longest = [(-self._lengths[node], node) for node in order]
    heapq.heapify(self._longest)

  def color_longest(self, color: int) -> None:
    """Colors the path with the most uncolored nodes; ties by their number."""
    while -self._longest[0][0] != self._lengths[self._longest[0][1]]:
      node = self._longest[0][1]
      heapq.heapreplace(self._longest, (-self._lengths[node], node))
    node: int | None = self._longest[0][1]
    changed = []
    while node is not None:
      if self.colors[node] < 0:
        self.colors[node] = color
        self.num_left -= 1
        changed.append((self._position[node], node))
      node = self._previous[node]
    self._count_again(changed)

  def _count_again(self, waiting: list[tuple[int, int]]) -> None:
    """Counts nodes, as (position, node), and those that depend on them."""
    heapq.heapify(waiting)
    seen = {node for _, node in waiting}
    while waiting:
      _, node = heapq.heappop(waiting)
      before = self._lengths[node]
      self._count(node)
      if self._lengths[node] == before:
        continue
      for successor in self._successors[node]:
        if successor not in seen:
          seen.add(successor)
          heapq.heappush(waiting, (self._position[successor], successor))

  def _count(self, node: int) -> None:
    length, previous = 0, None
    for before in self._predecessors[node]:
      if self._lengths[before] > length:
        length, previous = self._lengths[before], before
    self._lengths[node] = length + (self.colors[node] < 0)
    self._previous[node] = previous


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
  ancestors, _ = trace.closure
  owners: dict[int, list[tuple[int, int, int]]] = {}
  edges = set()
  for buffer in trace.requested:
    place = result.placements[buffer]
    assert place is not None
    size_bytes = trace.buffers[buffer].size_bytes
    low, high = place.offset_bytes, place.offset_bytes + size_bytes
    ranges = owners.setdefault(place.segment, [])
    definer = trace.buffers[buffer].definer
    begin, end = _meeting(ranges, low, high)
    for _, _, owner in ranges[begin:end]:
      assert definer is not None
      edges |= {
        (toucher, definer)
        for toucher in trace.buffers[owner].touchers
        if toucher != definer and not ancestors[definer] >> toucher & 1
      }
    ranges[begin:end] = _replaced(ranges[begin:end], low, high, buffer)
  return tuple(sorted(edges))


def with_sharing_edges(trace: Trace, result: Result) -> Result:
  """Returns a result that is safe in parallel by its added edges."""
  return dataclasses.replace(result, added_edges=sharing_edges(trace, result))


def _meeting(
  ranges: list[tuple[int, int, int]], low: int, high: int
) -> tuple[int, int]:
  """Returns, half-open, which of the ascending ranges meet another one."""
  begin = bisect.bisect(ranges, (low,))
  if begin and ranges[begin - 1][1] > low:
    begin -= 1
  return begin, bisect.bisect_left(ranges, (high,))


def _replaced(
  ranges: list[tuple[int, int, int]], low: int, high: int, owner: int
) -> list[tuple[int, int, int]]:
  """Returns who owns which bytes once an owner has taken some over.

  Args:
    ranges: As (start, end, owner), ascending; each meets the owner's.
    low: Where the owner's bytes begin.
    high: Where they end.
    owner: The owner.
  """
  kept = [(low, high, owner)]
  if ranges and ranges[0][0] < low:
    kept.insert(0, (ranges[0][0], low, ranges[0][2]))
  if ranges and ranges[-1][1] > high:
    kept.append((high, ranges[-1][1], ranges[-1][2]))
  return kept
