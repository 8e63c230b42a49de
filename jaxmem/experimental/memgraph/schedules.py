"""Stricter versions of a memory graph, to compare the event-driven run with.

Each only adds edges, so that whatever was proven of the graph still holds.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from jaxmem.experimental.memgraph.memory_graph import (
  MemGraph,
  Residency,
  Vertex,
  VertexKind,
)


def fixed_order(
  memgraph: MemGraph, kinds: Collection[VertexKind] = ("compute",)
) -> MemGraph:
  """Returns a graph that runs vertices of some kinds in the order of its tasks.

  The paper's (semi-)deterministic variant (section 8, experiment 3): on each
  device, the operations come in the order that was given to BUILDMEMGRAPH.

  Args:
    memgraph: The graph.
    kinds: Which vertices are put in a row, per device; each kind has its own.
  """
  memory_edges = [set(edges) for edges in memgraph.memory_edges]
  last: dict[tuple[str, int], int] = {}
  for index, vertex in enumerate(memgraph.vertices):
    if vertex.kind not in kinds:
      continue
    before = last.get((vertex.kind, vertex.device))
    if before is not None and before not in memgraph.data_edges[index]:
      memory_edges[index].add(before)
    last[vertex.kind, vertex.device] = index
  edges = tuple(tuple(sorted(each)) for each in memory_edges)
  return dataclasses.replace(memgraph, memory_edges=edges)


def layer_streaming(memgraph: MemGraph, *, prefetch: int = 1) -> MemGraph:
  """Returns a graph that goes through the layers in step, on all devices.

  What systems do that stream weights: a layer starts when the one before is
  done on all devices, in a fixed order; what a layer needs from the host is
  brought while the layers before it run, and no earlier. It is a generous
  version: a layer need not wait for all its transfers, and what fits stays in
  memory.

  Args:
    memgraph: The graph. The groups of its tasks are the layers.
    prefetch: How many layers ahead a transfer may start.

  Raises:
    ValueError: If the groups do not ascend along the tasks.
  """
  memgraph = fixed_order(memgraph)
  groups = _groups(memgraph)
  new_index: list[int] = []
  syncs: list[int] = []
  position = 0
  for index, group in enumerate(groups):
    if index and group != groups[index - 1]:
      syncs.append(position)
      position += 1
    new_index.append(position)
    position += 1
  return _with_syncs(memgraph, groups, new_index, syncs, prefetch)


def _groups(memgraph: MemGraph) -> list[int]:
  """Returns the number of the layer of each vertex, from 0 without holes.

  A transfer belongs to the layer of the task that follows it.
  """
  tasks = memgraph.task_graph.tasks
  names = [task.group for task in tasks]
  if any(a > b for a, b in itertools.pairwise(names)):
    raise ValueError(
      "The groups of the tasks must ascend for layer streaming. Pass the tasks"
      " layer by layer."
    )
  number = {name: i for i, name in enumerate(sorted(set(names)))}
  groups = []
  group = number[names[-1]] if names else 0
  for vertex in reversed(memgraph.vertices):
    if vertex.task is not None:
      group = number[tasks[vertex.task].group]
    groups.append(group)
  return groups[::-1]


def _with_syncs(
  memgraph: MemGraph,
  groups: Sequence[int],
  new_index: Sequence[int],
  syncs: Sequence[int],
  prefetch: int,
) -> MemGraph:
  """Inserts a vertex between layers for which all of a layer wait."""
  num_vertices = memgraph.num_vertices + len(syncs)
  vertices: list[Vertex] = [
    Vertex(name=f"end of layer {layer}", kind="sync", device=0)
    for layer in range(num_vertices)
  ]
  data: list[tuple[int, ...]] = [()] * num_vertices
  memory: list[set[int]] = [set() for _ in range(num_vertices)]
  for layer, sync in enumerate(syncs):
    vertices[sync] = Vertex(name=f"end of layer {layer}", kind="sync", device=0)
    if layer:
      memory[sync].add(syncs[layer - 1])
  for index, vertex in enumerate(memgraph.vertices):
    at, group = new_index[index], groups[index]
    vertices[at] = vertex
    data[at] = tuple(new_index[e] for e in memgraph.data_edges[index])
    memory[at] |= {new_index[e] for e in memgraph.memory_edges[index]}
    starts_after = group - (1 + prefetch if vertex.kind == "reload" else 1)
    if vertex.kind != "offload" and starts_after >= 0:
      memory[at].add(syncs[starts_after])
    if group < len(syncs) and vertex.kind != "reload":
      memory[syncs[group]].add(at)
  return dataclasses.replace(
    memgraph,
    vertices=tuple(vertices),
    residencies=tuple(
      _renumbered(residency, new_index) for residency in memgraph.residencies
    ),
    data_edges=tuple(data),
    memory_edges=tuple(
      tuple(sorted(m - set(d))) for m, d in zip(memory, data, strict=True)
    ),
  )


def _renumbered(residency: Residency, new_index: Sequence[int]) -> Residency:
  return dataclasses.replace(
    residency,
    writers=tuple(new_index[w] for w in residency.writers),
    readers=tuple(new_index[r] for r in residency.readers),
  )
