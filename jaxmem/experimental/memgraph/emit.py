"""Collects the vertices and edges of a memory graph while it is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxmem.experimental.memgraph.chunked_closure import needed_edges
from jaxmem.experimental.memgraph.device_memory import Stay
from jaxmem.experimental.memgraph.memory_graph import (
  MemGraph,
  Residency,
  Vertex,
)
from jaxmem.experimental.memgraph.task_graph import TaskGraph


class Emitter:
  """A memory graph in the making; vertices come in a valid order."""

  def __init__(self, task_graph: TaskGraph):
    self._graph = task_graph
    self._vertices: list[Vertex] = []
    self._data_edges: list[tuple[int, ...]] = []
    self._memory_edges: list[tuple[int, ...]] = []
    self._stays: list[Stay] = []

  @property
  def num_vertices(self) -> int:
    """How many there are so far; the index of the next one."""
    return len(self._vertices)

  def offload(self, stay: Stay) -> int:
    """Adds the copy of a tensor to host memory."""
    vertex = len(self._vertices)
    data = tuple(stay.writers)
    stay.readers.append(vertex)
    return self._add(
      Vertex(
        name=f"offload {stay.name}",
        kind="offload",
        device=stay.device,
        tensor=stay.tensor,
        reads=(_index(stay),),
      ),
      data,
      (),
    )

  def reload(self, stay: Stay, offload: int | None) -> int:
    """Adds the copy of a tensor to the device.

    Args:
      stay: Its place there.
      offload: Who brought it to host memory; None for inputs of the graph.
    """
    writes = self._write([stay])
    return self._add(
      Vertex(
        name=f"reload {stay.name}",
        kind="reload",
        device=stay.device,
        tensor=stay.tensor,
        writes=writes,
      ),
      () if offload is None else (offload,),
      stay.waits,
    )

  def task(
    self, position: int, reads: Sequence[Stay], writes: Sequence[Stay]
  ) -> int:
    """Adds a task."""
    vertex = len(self._vertices)
    task = self._graph.tasks[position]
    data = sorted({writer for stay in reads for writer in stay.writers})
    for stay in reads:
      stay.readers.append(vertex)
    indices = self._write(writes)
    return self._add(
      Vertex(
        name=task.name,
        kind=task.kind,
        device=task.device,
        task=position,
        reads=tuple(map(_index, reads)),
        writes=indices,
      ),
      tuple(data),
      [before for stay in writes for before in stay.waits],
    )

  def finish(
    self, capacity_bytes: tuple[int, ...], *, reduce: bool
  ) -> MemGraph:
    """Returns the graph."""
    memory_edges = self._memory_edges
    if reduce:
      memory_edges = needed_edges(memory_edges, self._data_edges)
    return MemGraph(
      task_graph=self._graph,
      vertices=tuple(self._vertices),
      residencies=tuple(map(_freeze, self._stays)),
      data_edges=tuple(self._data_edges),
      memory_edges=tuple(memory_edges),
      capacity_bytes=capacity_bytes,
    )

  def _write(self, stays: Iterable[Stay]) -> tuple[int, ...]:
    for stay in stays:
      stay.writers.append(len(self._vertices))
      if stay.index is None:
        stay.index = len(self._stays)
        self._stays.append(stay)
    return tuple(map(_index, stays))

  def _add(
    self, vertex: Vertex, data: tuple[int, ...], memory: Iterable[int]
  ) -> int:
    self._vertices.append(vertex)
    self._data_edges.append(data)
    self._memory_edges.append(tuple(sorted({*memory} - {*data})))
    return len(self._vertices) - 1


def _index(stay: Stay) -> int:
  if stay.index is None:
    raise AssertionError(f"{stay.name!r} was never written")
  return stay.index


def _freeze(stay: Stay) -> Residency:
  return Residency(
    name=stay.name,
    device=stay.device,
    offset_bytes=stay.offset_bytes,
    size_bytes=stay.size_bytes,
    writers=tuple(stay.writers),
    readers=tuple(stay.readers),
    tensor=stay.tensor,
  )
