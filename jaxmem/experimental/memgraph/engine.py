"""The event loop: starts what is ready as soon as resources are free.

TURNIP, section 5 and appendix A. The loop knows nothing of time or of devices:
an `Executor` starts vertices and says which have completed. With threads behind
it (`runtime.py`) the loop runs programs; with a heap of virtual times
(`simulator.py`) it predicts them. It sleeps in `Executor.wait` and nowhere
else.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from jaxmem.experimental.memgraph.memory_graph import MemGraph


class Executor(Protocol):
  """What starts vertices, and knows when they have completed."""

  def admit(self, vertex: int) -> bool:
    """Whether a vertex may start now; if not, it is asked for again later.

    Admission reserves what the vertex needs; `launch` follows at once.
    """
    ...

  def launch(self, vertex: int) -> None:
    """Starts a vertex; returns without waiting for it."""
    ...

  def wait(self) -> Iterable[int]:
    """Waits until one or more vertices have completed; returns them."""
    ...


class StalledError(RuntimeError):
  """Nothing runs, and nothing that is ready is admitted.

  Attributes:
    vertices: Indices of the vertices that were refused.
  """

  def __init__(self, vertices: Sequence[int], names: Sequence[str]):
    named = ", ".join(map(repr, names[:5])) or "no vertex"
    super().__init__(
      f"The graph is stuck: {named} can never start. Host memory is full, or"
      " the graph has a cycle."
    )
    self.vertices = tuple(vertices)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
  """How many vertices of a kind run at a time on each device.

  Attributes:
    compute: Kernel calls.
    copy: Copies from the device to other devices.
    reload: Transfers from the host.
    offload: Transfers to the host.
  """

  compute: int = 1
  copy: int = 1
  reload: int = 1
  offload: int = 1

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if getattr(self, field.name) < 1:
        raise ValueError(
          f"{field.name} must be at least 1, got {getattr(self, field.name)}."
        )

  @property
  def total(self) -> int:
    """The slots of one device."""
    return self.compute + self.copy + self.reload + self.offload


class EventLoop:
  """Runs all vertices of a graph, once.

  Args:
    memgraph: The graph.
    executor: What runs them.
    slots: How many run at a time.
    priority: Per vertex; of those that are ready for a slot, the one with the
      lowest starts first. The order of the vertices if None.
  """

  def __init__(
    self,
    memgraph: MemGraph,
    executor: Executor,
    slots: Slots | None = None,
    priority: Sequence[float] | None = None,
  ):
    slots = slots or Slots()
    num_vertices = memgraph.num_vertices
    if priority is not None and len(priority) != num_vertices:
      raise ValueError(
        f"priority must have {num_vertices} entries, got {len(priority)}."
      )
    self._executor = executor
    self._names = [vertex.name for vertex in memgraph.vertices]
    self._waiting = [len(before) for before in memgraph.predecessors]
    self._successors: list[list[int]] = [[] for _ in range(num_vertices)]
    for vertex, before in enumerate(memgraph.predecessors):
      for each in before:
        self._successors[each].append(vertex)
    self._lanes = _Lanes(
      memgraph, slots, range(num_vertices) if priority is None else priority
    )
    self._locks = [
      next((r for r in v.writes if _is_shared(memgraph, r)), None)
      for v in memgraph.vertices
    ]
    # These vertices wait for another accumulation into the same memory.
    self._parked: dict[int, list[int]] = {}
    self._refused: list[int] = []
    self._num_running = 0
    self._num_completed = 0

  def run(self) -> None:
    """Runs until all vertices have completed.

    Raises:
      StalledError: If the executor refuses all that could run.
      Exception: Whatever the executor raises.
    """
    # Syncs complete at once and push their successors themselves.
    for vertex in [v for v, count in enumerate(self._waiting) if not count]:
      self._push(vertex)
    while True:
      self._launch_ready()
      if self._num_completed == len(self._waiting):
        return
      if not self._num_running:
        stuck = sorted(self._refused)
        raise StalledError(stuck, [self._names[v] for v in stuck])
      for vertex in self._executor.wait():
        self._complete(vertex)
      for vertex in self._refused:
        self._push(vertex)
      self._refused.clear()

  def _push(self, vertex: int) -> None:
    if self._lanes.needs_slot(vertex):
      self._lanes.push(vertex)
    else:
      self._finish(vertex)

  def _launch_ready(self) -> None:
    for vertex in self._lanes.pop_ready():
      lock = self._locks[vertex]
      if lock is not None and lock in self._parked:
        self._parked[lock].append(vertex)
      elif not self._executor.admit(vertex):
        self._refused.append(vertex)
      else:
        if lock is not None:
          self._parked[lock] = []
        self._lanes.take_slot(vertex)
        self._num_running += 1
        self._executor.launch(vertex)

  def _complete(self, vertex: int) -> None:
    self._lanes.free_slot(vertex)
    self._num_running -= 1
    lock = self._locks[vertex]
    if lock is not None:
      for parked in self._parked.pop(lock):
        self._push(parked)
    self._finish(vertex)

  def _finish(self, vertex: int) -> None:
    """Counts a vertex as done, and whatever syncs follow."""
    done = [vertex]
    for each in done:
      self._num_completed += 1
      for after in self._successors[each]:
        self._waiting[after] -= 1
        if not self._waiting[after]:
          if self._lanes.needs_slot(after):
            self._lanes.push(after)
          else:
            done.append(after)


class _Lanes:
  """For each kind of vertex and device, a queue and a number of slots.

  Args:
    memgraph: The graph.
    slots: How many vertices run at a time in a lane.
    priority: Per vertex; the lowest of a lane's queue comes first.
  """

  def __init__(
    self, memgraph: MemGraph, slots: Slots, priority: Sequence[float]
  ):
    self._priority = priority
    numbers: dict[tuple[str, int], int] = {}
    # Each vertex has a lane, but for syncs.
    self._lane: list[int | None] = []
    # Each lane has so many free slots.
    self._free: list[int] = []
    for vertex in memgraph.vertices:
      if vertex.kind == "sync":
        self._lane.append(None)
        continue
      lane = numbers.setdefault((vertex.kind, vertex.device), len(numbers))
      if lane == len(self._free):
        self._free.append(getattr(slots, vertex.kind))
      self._lane.append(lane)
    self._queues: list[list[tuple[float, int]]] = [[] for _ in numbers]
    self._changed: set[int] = set()

  def needs_slot(self, vertex: int) -> bool:
    """Whether a vertex has a lane; syncs complete at once."""
    return self._lane[vertex] is not None

  def push(self, vertex: int) -> None:
    """Queues a vertex that is ready."""
    lane = self._of(vertex)
    heapq.heappush(self._queues[lane], (self._priority[vertex], vertex))
    self._changed.add(lane)

  def pop_ready(self) -> Iterator[int]:
    """Yields vertices while their lanes have slots, which the caller takes."""
    for lane in sorted(self._changed):
      queue = self._queues[lane]
      while queue and self._free[lane]:
        yield heapq.heappop(queue)[1]
    self._changed.clear()

  def take_slot(self, vertex: int) -> None:
    """Takes a slot of the vertex's lane."""
    self._free[self._of(vertex)] -= 1

  def free_slot(self, vertex: int) -> None:
    """Gives back a slot of the vertex's lane."""
    lane = self._of(vertex)
    self._free[lane] += 1
    self._changed.add(lane)

  def _of(self, vertex: int) -> int:
    lane = self._lane[vertex]
    assert lane is not None, "Syncs are never queued."
    return lane


def _is_shared(memgraph: MemGraph, residency: int) -> bool:
  return len(memgraph.residencies[residency].writers) > 1
