"""Proves that a memory graph is right, whatever order it is executed in.

Takes nothing from how the graph was built. TURNIP, section 7, asks for three
things: data dependencies are kept, or go through host memory; there are no
races; there are no cycles. Here also: everything lies within the device.

Two residencies that overlap race unless one safely overwrites the other: all
that touch the one have completed before any vertex writes the other. Safe
overwriting is transitive, since whoever writes a residency comes before whoever
reads it. So it suffices to look at pairs that follow each other on some byte,
in any one topological order: without races, all orders agree on them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from jaxmem.experimental.memgraph import chunked_closure
from jaxmem.experimental.memgraph.memory_graph import (
  MemGraph,
  Residency,
  Vertex,
)

_MAX_NAMED = 10


class MemGraphError(ValueError):
  """A memory graph is wrong.

  Attributes:
    faults: What is wrong, one sentence each.
  """

  def __init__(self, faults: list[str]):
    more = len(faults) - _MAX_NAMED
    named = faults[:_MAX_NAMED] + [f"and {more} more"] * (more > 0)
    super().__init__("The memory graph is not valid: " + "; ".join(named))
    self.faults = faults


def check(memgraph: MemGraph) -> None:
  """Raises MemGraphError if a valid order could give wrong results."""
  faults = find_faults(memgraph)
  if faults:
    raise MemGraphError(faults)


def find_faults(memgraph: MemGraph) -> list[str]:
  """Returns all that is wrong with a memory graph, in words."""
  try:
    order = chunked_closure.topological_order(memgraph.predecessors)
  except ValueError as error:
    return [f"cycle: {error}"]
  faults = [
    *_task_faults(memgraph),
    *_link_faults(memgraph),
    *_residency_faults(memgraph),
    *_transfer_faults(memgraph),
  ]
  if faults:
    # What follows relies on these.
    return faults
  position = [0] * memgraph.num_vertices
  for index, vertex in enumerate(order):
    position[vertex] = index
  required = {
    **_data_paths(memgraph),
    **_host_paths(memgraph),
    **_overwriting_paths(memgraph, position),
  }
  missing = chunked_closure.unconnected(memgraph.predecessors, list(required))
  faults += [required[pair] for pair in missing]
  return faults + list(_output_faults(memgraph, position))


def _task_faults(memgraph: MemGraph) -> Iterator[str]:
  graph = memgraph.task_graph
  tasks = [v.task for v in memgraph.vertices if v.task is not None]
  if sorted(tasks) != list(range(len(graph.tasks))):
    yield f"{len(graph.tasks)} tasks must have a vertex each, got {len(tasks)}"
    return
  for vertex in memgraph.vertices:
    if vertex.task is None:
      continue
    task = graph.tasks[vertex.task]
    if (vertex.kind, vertex.device) != (task.kind, task.device):
      yield f"{task.name!r} runs as {vertex.kind} on device {vertex.device}"
    reads = _tensors(memgraph, vertex.reads)
    writes = _tensors(memgraph, vertex.writes)
    if reads != task.inputs:
      yield f"{task.name!r} reads tensors {reads}, not {task.inputs}"
    if writes[: len(task.outputs)] != task.outputs:
      yield f"{task.name!r} writes tensors {writes}, not {task.outputs}"
    scratch = [memgraph.residencies[r] for r in vertex.writes]
    scratch_bytes = sum(r.size_bytes for r in scratch if r.tensor is None)
    if scratch_bytes < task.workspace_bytes:
      yield f"{task.name!r} has {scratch_bytes} bytes of scratch memory"


def _tensors(
  memgraph: MemGraph, residencies: tuple[int, ...]
) -> tuple[int | None, ...]:
  return tuple(memgraph.residencies[r].tensor for r in residencies)


def _link_faults(memgraph: MemGraph) -> Iterator[str]:
  """Vertices and residencies must name each other."""
  reads = {(r, v) for v, x in enumerate(memgraph.vertices) for r in x.reads}
  writes = {(r, v) for v, x in enumerate(memgraph.vertices) for r in x.writes}
  listed = list(enumerate(memgraph.residencies))
  if reads != {(r, v) for r, x in listed for v in x.readers}:
    yield "vertices and residencies disagree on who reads what"
  if writes != {(r, v) for r, x in listed for v in x.writers}:
    yield "vertices and residencies disagree on who writes what"


def _residency_faults(memgraph: MemGraph) -> Iterator[str]:
  graph = memgraph.task_graph
  for residency in memgraph.residencies:
    end = residency.offset_bytes + residency.size_bytes
    capacity = memgraph.capacity_bytes[residency.device]
    if residency.offset_bytes < 0 or end > capacity:
      yield f"{residency.name!r} ends at {end} of {capacity} bytes"
    if residency.tensor is None:
      if len(residency.writers) != 1 or residency.readers:
        yield f"scratch memory {residency.name!r} is shared"
      continue
    tensor = graph.tensors[residency.tensor]
    if residency.size_bytes < tensor.size_bytes:
      yield f"{residency.name!r} has {residency.size_bytes} bytes"
    if residency.device != tensor.device:
      yield f"{residency.name!r} is on device {residency.device}"
    if not _is_written_whole(memgraph, residency):
      yield f"{residency.name!r} is not written by its tasks or one reload"


def _is_written_whole(memgraph: MemGraph, residency: Residency) -> bool:
  writers = [memgraph.vertices[w] for w in residency.writers]
  if len(writers) == 1 and writers[0].kind == "reload":
    return writers[0].tensor == residency.tensor
  tensor = residency.tensor
  tasks = () if tensor is None else memgraph.task_graph.writers[tensor]
  found = [-1 if w.task is None else w.task for w in writers]
  return bool(tasks) and sorted(found) == list(tasks)


def _data_paths(memgraph: MemGraph) -> dict[tuple[int, int], str]:
  """Who writes comes before who reads."""
  return {
    (writer, reader): (
      f"{_name(memgraph, reader)} may read {residency.name!r} before"
      f" {_name(memgraph, writer)} has written it"
    )
    for residency in memgraph.residencies
    for writer in residency.writers
    for reader in residency.readers
  }


def _transfer_faults(memgraph: MemGraph) -> Iterator[str]:
  """What is brought back was brought to the host, once."""
  offloaded: set[int | None] = set()
  for index, vertex in enumerate(memgraph.vertices):
    if vertex.kind == "offload":
      if vertex.tensor in offloaded:
        yield f"{_name(memgraph, index)} brings to the host what is there"
      offloaded.add(vertex.tensor)
      if _tensors(memgraph, vertex.reads) != (vertex.tensor,):
        yield f"{_name(memgraph, index)} reads another tensor"
  for index, vertex in enumerate(memgraph.vertices):
    if vertex.kind == "reload" and not (
      vertex.tensor in offloaded or _is_input(memgraph, vertex)
    ):
      yield f"{_name(memgraph, index)} finds nothing on the host"


def _host_paths(memgraph: MemGraph) -> dict[tuple[int, int], str]:
  """Who brings to the host comes before who brings back."""
  offload = {
    vertex.tensor: index
    for index, vertex in enumerate(memgraph.vertices)
    if vertex.kind == "offload"
  }
  return {
    (offload[vertex.tensor], index): (
      f"{_name(memgraph, index)} may start before its offload is done"
    )
    for index, vertex in enumerate(memgraph.vertices)
    if vertex.kind == "reload" and not _is_input(memgraph, vertex)
  }


def _is_input(memgraph: MemGraph, vertex: Vertex) -> bool:
  tensor = vertex.tensor
  return tensor is not None and not memgraph.task_graph.writers[tensor]


def _overwriting_paths(
  memgraph: MemGraph, position: list[int]
) -> dict[tuple[int, int], str]:
  """Who touches a residency comes before who writes the next one there."""
  paths = {}
  for device in range(memgraph.task_graph.num_devices):
    for before, after in _successions(memgraph, device, position):
      for toucher in before.last_touchers:
        for writer in after.writers:
          paths[toucher, writer] = (
            f"race: {_name(memgraph, writer)} may overwrite {before.name!r} by"
            f" {after.name!r} while {_name(memgraph, toucher)} needs it"
          )
  return paths


def _successions(
  memgraph: MemGraph, device: int, position: list[int]
) -> Iterator[tuple[Residency, Residency]]:
  """Yields pairs that follow each other on some byte of a device."""
  found = [
    r for r in memgraph.residencies if r.device == device and r.size_bytes
  ]
  found.sort(key=lambda r: min(position[w] for w in r.writers))
  # Piece i, which is [begins[i], begins[i + 1]), was last had by these.
  begins: list[int] = [0]
  owners: list[Residency | None] = [None]
  for residency in found:
    begin = residency.offset_bytes
    end = begin + residency.size_bytes
    first = _split(begins, owners, begin)
    last = _split(begins, owners, end)
    seen = {id(o): o for o in owners[first:last] if o is not None}
    for owner in seen.values():
      yield owner, residency
    begins[first:last] = [begin]
    owners[first:last] = [residency]


def _split(begins: list[int], owners: list[Residency | None], at: int) -> int:
  """Makes a piece begin at a byte; returns its index."""
  index = bisect.bisect_left(begins, at)
  if index == len(begins) or begins[index] != at:
    begins.insert(index, at)
    owners.insert(index, owners[index - 1])
  return index


def _output_faults(memgraph: MemGraph, position: list[int]) -> Iterator[str]:
  """Outputs must be left on the host or on the device."""
  kept = {v.tensor for v in memgraph.vertices if v.kind == "offload"} | set(
    memgraph.task_graph.inputs
  )
  overwritten = {
    id(before)
    for device in range(memgraph.task_graph.num_devices)
    for before, _ in _successions(memgraph, device, position)
  }
  kept |= {r.tensor for r in memgraph.residencies if id(r) not in overwritten}
  for tensor in memgraph.task_graph.outputs:
    if tensor not in kept:
      name = memgraph.task_graph.tensors[tensor].name
      yield f"output {name!r} is nowhere at the end"


def _name(memgraph: MemGraph, vertex: int) -> str:
  return f"{memgraph.vertices[vertex].name!r}"
