"""Who comes before whom in graphs of any size, and edges without effect.

`jaxmem.order.reachability.closure` holds all pairs at once; here some thousand
ancestors of all vertices are held at a time, whatever the size of the graph.
"""

from collections.abc import Iterator, Sequence

from jaxmem import graph

# Ancestors are held as bits of Python integers, so many at a time that one
# sweep takes a few hundred bytes per vertex.
_CHUNK = 4096


def topological_order(predecessors: Sequence[Sequence[int]]) -> Sequence[int]:
  """Returns the vertices, predecessors first.

  Raises:
    ValueError: If there is a cycle; the message names one by its indices.
  """
  if all(p < v for v, before in enumerate(predecessors) for p in before):
    return range(len(predecessors))
  graph.check_acyclic(predecessors, [str(v) for v in range(len(predecessors))])
  return graph.topological_order(predecessors)


def ancestor_chunks(
  predecessors: Sequence[Sequence[int]], order: Sequence[int]
) -> Iterator[tuple[int, int, list[int]]]:
  """Yields the strict ancestors of all vertices, some thousand at a time.

  Args:
    predecessors: Per vertex, what it waits for.
    order: A topological order of the vertices.

  Yields:
    (begin, end, ancestors): bit i of ancestors[v] says whether vertex
    order[begin + i] comes before v on a path, for order[begin:end]. The list is
    valid until the next is asked for.
  """
  num_vertices = len(predecessors)
  position = [0] * num_vertices
  for index, vertex in enumerate(order):
    position[vertex] = index
  for begin in range(0, num_vertices, _CHUNK):
    end = min(begin + _CHUNK, num_vertices)
    ancestors = [0] * num_vertices
    for vertex in order[begin:]:
      found = 0
      for before in predecessors[vertex]:
        found |= ancestors[before]
        if begin <= position[before] < end:
          found |= 1 << (position[before] - begin)
      ancestors[vertex] = found
    yield begin, end, ancestors


def unconnected(
  predecessors: Sequence[Sequence[int]],
  pairs: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
  """Returns the pairs (a, b) of which no path leads from a to b.

  A vertex is connected to itself.
  """
  order = topological_order(predecessors)
  position = {vertex: index for index, vertex in enumerate(order)}
  by_chunk: dict[int, list[tuple[int, int]]] = {}
  for a, b in pairs:
    by_chunk.setdefault(position[a] // _CHUNK, []).append((a, b))
  missing = []
  for begin, _, ancestors in ancestor_chunks(predecessors, order):
    for a, b in by_chunk.get(begin // _CHUNK, ()):
      if a != b and not ancestors[b] >> (position[a] - begin) & 1:
        missing.append((a, b))
  return missing


def needed_edges(
  edges: Sequence[Sequence[int]], fixed: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
  """Drops edges that other paths imply: the transitive reduction.

  Args:
    edges: Per vertex, predecessors that may be dropped.
    fixed: Per vertex, predecessors that stay.

  Returns:
    Per vertex, the edges that are left, ascending.
  """
  both = [(*a, *b) for a, b in zip(edges, fixed, strict=True)]
  order = topological_order(both)
  position = [0] * len(both)
  for index, vertex in enumerate(order):
    position[vertex] = index
  kept: list[list[int]] = [[] for _ in both]
  for begin, end, ancestors in ancestor_chunks(both, order):
    for vertex in order[begin:]:
      here = [e for e in edges[vertex] if begin <= position[e] < end]
      if not here:
        continue
      implied = 0
      for before in both[vertex]:
        implied |= ancestors[before]
      staying = set(fixed[vertex])
      kept[vertex] += (
        e
        for e in here
        if e not in staying and not implied >> (position[e] - begin) & 1
      )
  return [tuple(sorted(set(each))) for each in kept]
