"""Executes a memory graph on symbols: random interleavings, byte by byte.

The test of last resort: no edges between residencies are looked at, only what
the bytes hold when a vertex reads them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from jaxmem.experimental.memgraph import MemGraph, Residency


class RaceError(ValueError):
  """A valid interleaving of a memory graph goes wrong."""


class Event(NamedTuple):
  """A vertex starts or completes."""

  what: Literal["start", "finish"]
  vertex: int


def random_interleaving(
  memgraph: MemGraph, seed: int, *, num_running: int = 4
) -> Iterator[Event]:
  """Yields a random valid execution.

  Args:
    memgraph: The graph; only its edges count, and that accumulations into one
      tensor exclude each other.
    seed: Of the choices.
    num_running: How many vertices run at a time at most.
  """
  rng = random.Random(seed)
  waiting = [len(before) for before in memgraph.predecessors]
  successors: list[list[int]] = [[] for _ in waiting]
  for vertex, before in enumerate(memgraph.predecessors):
    for each in before:
      successors[each].append(vertex)
  ready = [v for v, count in enumerate(waiting) if not count]
  running: list[int] = []
  locked: set[int] = set()
  while ready or running:
    free = [v for v in ready if locked.isdisjoint(_locks(memgraph, v))]
    if free and len(running) < num_running and rng.random() < 0.6:
      vertex = rng.choice(free)
      ready.remove(vertex)
      running.append(vertex)
      locked |= _locks(memgraph, vertex)
      yield Event("start", vertex)
    elif running:
      vertex = running.pop(rng.randrange(len(running)))
      locked -= _locks(memgraph, vertex)
      yield Event("finish", vertex)
      for after in successors[vertex]:
        waiting[after] -= 1
        if not waiting[after]:
          ready.append(after)


def _locks(memgraph: MemGraph, vertex: int) -> set[int]:
  writes = memgraph.vertices[vertex].writes
  return {r for r in writes if len(memgraph.residencies[r].writers) > 1}


def replay(memgraph: MemGraph, events: Iterable[Event]) -> None:
  """Executes on symbols.

  Args:
    memgraph: The graph.
    events: A valid and complete execution of it.

  Raises:
    RaceError: If a vertex reads bytes that do not hold what it expects, or
      writes bytes that another one is reading or writing; if bytes are out of
      bounds, a tensor is not on the host, or an output is lost.
  """
  machine = _Machine(memgraph)
  for event in events:
    if event.what == "start":
      machine.start(event.vertex)
    else:
      machine.finish(event.vertex)
  machine.check_outputs()


class _Machine:
  """The memories, as cells between the ends of residencies.

  A cell holds a tensor, how many of its writers have completed, or a vertex
  that is writing it.
  """

  def __init__(self, memgraph: MemGraph):
    self._memgraph = memgraph
    self._writers = memgraph.task_graph.writers
    ends = {
      (r.device, at)
      for r in memgraph.residencies
      for at in (r.offset_bytes, r.offset_bytes + r.size_bytes)
    }
    self._index = {end: index for index, end in enumerate(sorted(ends))}
    self._cells: list[object] = [None] * len(ends)
    self._readers: list[set[int]] = [set() for _ in ends]
    self._host = set(memgraph.task_graph.inputs)

  def start(self, index: int) -> None:
    vertex = self._memgraph.vertices[index]
    if vertex.kind == "reload" and vertex.tensor not in self._host:
      raise RaceError(f"{vertex.name!r}: the tensor is not on the host.")
    for residency in self._residencies(vertex.reads):
      self._expect(residency, vertex.name)
      for cell in self._range(residency):
        self._readers[cell].add(index)
    for residency in self._residencies(vertex.writes):
      end = residency.offset_bytes + residency.size_bytes
      if end > self._memgraph.capacity_bytes[residency.device]:
        raise RaceError(f"{residency.name!r} is out of bounds.")
      for cell in self._range(residency):
        self._claim(cell, index, residency)

  def finish(self, index: int) -> None:
    vertex = self._memgraph.vertices[index]
    for residency in self._residencies(vertex.reads):
      self._expect(residency, vertex.name)
      for cell in self._range(residency):
        self._readers[cell].remove(index)
    for residency in self._residencies(vertex.writes):
      for cell in self._range(residency):
        held = self._cells[cell]
        if not isinstance(held, tuple) or held[:2] != ("writing", index):
          raise RaceError(f"{vertex.name!r} was overwritten.")
        self._cells[cell] = (residency.tensor, held[2] + 1)
    if vertex.kind == "offload" and vertex.tensor is not None:
      self._host.add(vertex.tensor)

  def check_outputs(self) -> None:
    """Raises RaceError if an output is neither on the host nor a device."""
    graph = self._memgraph.task_graph
    for tensor in graph.outputs:
      stays = [r for r in self._memgraph.residencies if r.tensor == tensor]
      if tensor not in self._host and not any(map(self._holds, stays)):
        raise RaceError(f"Output {graph.tensors[tensor].name!r} is lost.")

  def _claim(self, cell: int, index: int, residency: Residency) -> None:
    held = self._cells[cell]
    if self._readers[cell]:
      raise RaceError(f"{residency.name!r} overwrites what is being read.")
    if isinstance(held, tuple) and held[0] == "writing":
      raise RaceError(f"{residency.name!r} overwrites what is being written.")
    # Accumulations add to what others have written.
    adds = len(residency.writers) > 1
    count = 0
    if adds and isinstance(held, tuple) and held[0] == residency.tensor:
      count = held[1]
    self._cells[cell] = ("writing", index, count)

  def _expect(self, residency: Residency, name: str) -> None:
    if not self._holds(residency):
      raise RaceError(f"{name!r} does not find {residency.name!r}.")

  def _holds(self, residency: Residency) -> bool:
    whole = (residency.tensor, len(residency.writers))
    return all(self._cells[cell] == whole for cell in self._range(residency))

  def _range(self, residency: Residency) -> range:
    begin = residency.offset_bytes
    end = begin + residency.size_bytes
    device = residency.device
    return range(self._index[device, begin], self._index[device, end])

  def _residencies(self, indices: tuple[int, ...]) -> list[Residency]:
    return [self._memgraph.residencies[r] for r in indices]
