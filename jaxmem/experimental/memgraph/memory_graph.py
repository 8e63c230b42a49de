"""The graph that is run: tasks and transfers, and where their results lie.

TURNIP's MEMGRAPH. An edge says that a vertex may only start when another has
completed; any order that respects the edges gives the same results within the
same memory. `jaxmem.experimental.memgraph.check` proves that of a graph.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Literal

from jaxmem.experimental.memgraph.task_graph import TaskGraph

VertexKind = Literal["compute", "copy", "reload", "offload", "sync"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
  """A stay of a tensor, or of scratch memory, in the memory of a device.

  Attributes:
    name: What to call it in messages.
    device: Whose memory it is in.
    offset_bytes: Where it begins.
    size_bytes: How many bytes it takes, aligned.
    writers: Vertices that write it: the tasks that make the tensor, or the
      reload that brings it back. Several only if they accumulate.
    readers: Vertices that read it, ascending.
    tensor: Which tensor of the task graph it is; None for scratch memory.
  """

  name: str
  device: int
  offset_bytes: int
  size_bytes: int
  writers: tuple[int, ...]
  readers: tuple[int, ...]
  tensor: int | None

  @property
  def touchers(self) -> tuple[int, ...]:
    """All vertices that write or read it."""
    return (*self.writers, *self.readers)

  @property
  def last_touchers(self) -> tuple[int, ...]:
    """Once these have completed, nobody needs it: readers, or writers."""
    return self.readers or self.writers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
  """Something to run.

  Attributes:
    name: What to call it in messages.
    kind: "compute" and "copy" run a task; "offload" and "reload" move a tensor
      to and from host memory; "sync" does nothing and only orders others.
    device: Where it runs, or whose memory it moves from or to.
    task: The task of the task graph that it runs; None for the other kinds.
    tensor: The tensor that an offload or reload moves; None for other kinds.
    reads: Residencies that it reads; for a task, in the order of its inputs.
    writes: Residencies that it writes; for a task, in the order of its
      outputs, then its scratch memory if there is any.
  """

  name: str
  kind: VertexKind
  device: int
  task: int | None = None
  tensor: int | None = None
  reads: tuple[int, ...] = ()
  writes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemGraph:
  """Vertices, what they wait for, and where their results lie.

  Attributes:
    task_graph: The computation.
    vertices: In the order of the simulated execution, which is a valid one.
    residencies: What lies where, in the order in which places were found.
    data_edges: Per vertex, the vertices whose results it reads, on the device
      or in host memory, ascending.
    memory_edges: Per vertex, the vertices that must have completed before it
      may overwrite memory that they touch, ascending; none of data_edges.
    capacity_bytes: Per device, how much memory there is.
  """

  task_graph: TaskGraph
  vertices: tuple[Vertex, ...]
  residencies: tuple[Residency, ...]
  data_edges: tuple[tuple[int, ...], ...]
  memory_edges: tuple[tuple[int, ...], ...]
  capacity_bytes: tuple[int, ...]

  def __post_init__(self):
    lengths = len(self.vertices), len(self.data_edges), len(self.memory_edges)
    if len(set(lengths)) != 1:
      raise ValueError(
        f"vertices and edges must be of one length, got {lengths}."
      )
    if len(self.capacity_bytes) != self.task_graph.num_devices:
      raise ValueError(
        "capacity_bytes must have one entry for each of the"
        f" {self.task_graph.num_devices} devices, got {self.capacity_bytes}."
      )

  @property
  def num_vertices(self) -> int:
    """How many vertices there are."""
    return len(self.vertices)

  @functools.cached_property
  def predecessors(self) -> tuple[tuple[int, ...], ...]:
    """Per vertex, all that it waits for."""
    return tuple(
      data + memory
      for data, memory in zip(self.data_edges, self.memory_edges, strict=True)
    )

  @functools.cached_property
  def num_reloads(self) -> dict[int, int]:
    """How many vertices bring each tensor back from host memory."""
    return collections.Counter(
      vertex.tensor
      for vertex in self.vertices
      if vertex.kind == "reload" and vertex.tensor is not None
    )

  @property
  def num_memory_edges(self) -> int:
    """How many edges are there for the sake of memory only."""
    return sum(map(len, self.memory_edges))

  def bytes_moved(self, kind: VertexKind) -> int:
    """Returns the bytes of the tensors that all vertices of a kind move."""
    tensors = self.task_graph.tensors
    return sum(
      tensors[vertex.tensor].size_bytes
      for vertex in self.vertices
      if vertex.kind == kind and vertex.tensor is not None
    )

  def source(self, vertex: int) -> str:
    """Returns where in the user's program a vertex comes from."""
    task = self.vertices[vertex].task
    if task is not None:
      return self.task_graph.tasks[task].source
    tensor = self.vertices[vertex].tensor
    writers = () if tensor is None else self.task_graph.writers[tensor]
    return self.task_graph.tasks[writers[0]].source if writers else ""
