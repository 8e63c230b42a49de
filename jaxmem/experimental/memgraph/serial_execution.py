"""The simulated serial execution from which a memory graph comes.

The paper's horizons and malloc variants; see `memgraph.build`.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from jaxmem.experimental.memgraph.device_memory import (
  DeviceMemory,
  Place,
  Stay,
)
from jaxmem.experimental.memgraph.emit import Emitter
from jaxmem.experimental.memgraph.memory_graph import MemGraph
from jaxmem.experimental.memgraph.task_graph import TaskGraph
from jaxmem.units import format_bytes


class InfeasibleMemoryError(ValueError):
  """A task does not fit into the memory of its device.

  Attributes:
    task: Name of the task.
    needed_bytes: Its inputs, outputs and scratch memory, aligned.
    capacity_bytes: What the device has.
  """

  def __init__(self, task: str, needed_bytes: int, capacity_bytes: int):
    super().__init__(
      f"Task {task!r} needs {format_bytes(needed_bytes)} at once, got"
      f" {format_bytes(capacity_bytes)} of device memory. Split the task, or"
      " raise the limit."
    )
    self.task = task
    self.needed_bytes = needed_bytes
    self.capacity_bytes = capacity_bytes


class _Need(NamedTuple):
  """Something that must have a place on a device before a task runs.

  Attributes:
    position: Of the task.
    tensor: What it reads or writes; None for its scratch memory.
  """

  position: int
  tensor: int | None


@dataclasses.dataclass(slots=True)
class _TensorState:
  """What has become of a tensor so far.

  Attributes:
    is_output: Whether the graph returns it.
    on_host: Whether host memory has it, or will.
    stay: Where it is or will be on its device, if anywhere.
    offload: The vertex that put it into host memory, if one did.
    num_written: How many of its writers have run.
    num_read: How many of its readers have run.
  """

  is_output: bool
  on_host: bool
  stay: Stay | None = None
  offload: int | None = None
  num_written: int = 0
  num_read: int = 0


class SerialExecution:
  """A serial execution, and the graph that comes of it."""

  def __init__(
    self,
    task_graph: TaskGraph,
    capacity_bytes: tuple[int, ...],
    alignment_bytes: int,
    lookahead: int | None,
    place: Place,
  ):
    self._graph = task_graph
    self._capacity_bytes = capacity_bytes
    self._alignment_bytes = alignment_bytes
    self._lookahead = lookahead
    self._place: Place = place
    self._memories = [
      DeviceMemory(c // alignment_bytes * alignment_bytes)
      for c in capacity_bytes
    ]
    self._needs = self._list_needs()
    self._alloc_horizon = [0] * task_graph.num_devices
    outputs = set(task_graph.outputs)
    self._tensors = [
      _TensorState(is_output=tensor in outputs, on_host=not writers)
      for tensor, writers in enumerate(task_graph.writers)
    ]
    self._workspace: dict[int, Stay] = {}
    self._emitter = Emitter(task_graph)

  def run(self, *, reduce: bool) -> MemGraph:
    """Simulates all tasks."""
    for position in range(len(self._graph.tasks)):
      for device in range(self._graph.num_devices):
        self._push_alloc_horizon(device, position)
        self._sim_malloc_all(device, position)
      self._execute(position)
    return self._emitter.finish(self._capacity_bytes, reduce=reduce)

  def _list_needs(self) -> list[list[_Need]]:
    """Returns per device what has to be allocated, in order."""
    needs: list[list[_Need]] = [[] for _ in range(self._graph.num_devices)]
    for position, task in enumerate(self._graph.tasks):
      touched = (*task.inputs, *task.outputs)
      devices = {self._graph.tensors[tensor].device for tensor in touched}
      for device in sorted(devices | {task.device}):
        needs[device] += self._needs_of(device, position)
    return needs

  def _push_alloc_horizon(self, device: int, position: int) -> None:
    needs = self._needs[device]
    last = len(self._graph.tasks)
    if self._lookahead is not None:
      last = position + self._lookahead
    horizon = self._alloc_horizon[device]
    while horizon < len(needs) and needs[horizon].position <= last:
      if not self._is_met(needs[horizon]) and not self._sim_malloc(
        needs[horizon]
      ):
        break
      horizon += 1
    self._alloc_horizon[device] = horizon

  def _sim_malloc_all(self, device: int, position: int) -> None:
    """Finds a place for all that the task needs; does not fail."""
    needs = self._needs[device]
    horizon = self._alloc_horizon[device]
    if horizon == len(needs) or needs[horizon].position > position:
      return
    # The allocation horizon got stuck here, so that nothing beyond this task
    # has a place now: all that is in memory has been computed.
    task = self._graph.tasks[position]
    pinned = {*task.inputs, *task.outputs}
    mine = self._needs_of(device, position)
    # What the task itself needs may have to move; only packing all anew is a
    # later resort.
    for staying in (pinned, set(), set()):
      unmet = [need for need in mine if not self._is_met(need)]
      unmet.sort(key=lambda need: -self._new_stay(need).size_bytes)
      for need in unmet:
        self._sim_malloc_offload(need, staying)
    if not all(map(self._is_met, mine)):
      self._pack(device, position)
    while horizon < len(needs) and needs[horizon].position <= position:
      horizon += 1
    self._alloc_horizon[device] = horizon

  def _is_met(self, need: _Need) -> bool:
    if need.tensor is None:
      return need.position in self._workspace
    return self._tensors[need.tensor].stay is not None

  def _new_stay(self, need: _Need) -> Stay:
    task = self._graph.tasks[need.position]
    if need.tensor is None:
      return Stay(
        tensor=None,
        name=f"workspace of {task.name}",
        device=task.device,
        size_bytes=self._aligned(task.workspace_bytes),
      )
    tensor = self._graph.tensors[need.tensor]
    return Stay(
      tensor=need.tensor,
      name=tensor.name,
      device=tensor.device,
      size_bytes=self._aligned(tensor.size_bytes),
      is_reload=self._tensors[need.tensor].on_host,
    )

  def _aligned(self, size_bytes: int) -> int:
    return -(-size_bytes // self._alignment_bytes) * self._alignment_bytes

  def _sim_malloc(self, need: _Need) -> bool:
    """Finds a free place; False if there is none."""
    stay = self._new_stay(need)
    offset = self._memories[stay.device].find(stay.size_bytes, self._place)
    if offset is None:
      return False
    self._settle(need, stay, offset)
    return True

  def _sim_malloc_offload(self, need: _Need, pinned: set[int]) -> bool:
    """Like _sim_malloc, but evicts what is needed again last.

    Args:
      need: What a place is needed for.
      pinned: Tensors that have to stay.

    Returns:
      False if what has to stay is in the way.
    """
    if self._sim_malloc(need):
      return True
    stay = self._new_stay(need)
    found = self._memories[stay.device].find_victims(
      stay.size_bytes, lambda owner: self._next_use(owner, pinned)
    )
    if found is None:
      return False
    offset, victims = found
    for victim in victims:
      self._evict(victim)
    self._settle(need, stay, offset)
    return True

  def _settle(self, need: _Need, stay: Stay, offset_bytes: int) -> None:
    self._memories[stay.device].take(offset_bytes, stay)
    if need.tensor is None:
      self._workspace[need.position] = stay
    else:
      self._tensors[need.tensor].stay = stay

  def _next_use(self, stay: Stay, pinned: set[int]) -> tuple[int, int] | None:
    """Returns when an owner is needed again, and what it costs to move."""
    tensor = stay.tensor
    if tensor is None or tensor in pinned or stay.index is None:
      return None
    state = self._tensors[tensor]
    if state.num_written < len(self._graph.writers[tensor]):
      return None
    readers = self._graph.readers[tensor]
    done = state.num_read
    use = readers[done] if done < len(readers) else len(self._graph.tasks)
    return use, 0 if state.on_host else stay.size_bytes

  def _evict(self, stay: Stay) -> None:
    """Frees the memory of a tensor; host memory has it, or will."""
    tensor = stay.tensor
    if tensor is None:
      raise AssertionError(f"{stay.name!r} cannot be evicted")
    state = self._tensors[tensor]
    if not state.on_host:
      state.offload = self._emitter.offload(stay)
      state.on_host = True
    self._sim_free(stay)

  def _sim_free(self, stay: Stay) -> None:
    """Frees memory; who overwrites it waits for those that touched it."""
    waits = tuple(stay.readers or stay.writers)
    time = self._emitter.num_vertices
    self._memories[stay.device].free(stay, waits, time)
    if stay.tensor is not None:
      self._tensors[stay.tensor].stay = None

  def _pack(self, device: int, position: int) -> None:
    """Places all that a task needs anew, side by side.

    Raises:
      InfeasibleMemoryError: If it does not fit.
    """
    memory = self._memories[device]
    for owner in memory.owners():
      if owner.index is None:
        self._unplan(owner, position)
      elif self._next_use(owner, set()) is not None:
        self._evict(owner)
    needs = [n for n in self._needs_of(device, position) if not self._is_met(n)]
    stays = [self._new_stay(need) for need in needs]
    needed_bytes = sum(s.size_bytes for s in (*stays, *memory.owners()))
    pairs = zip(needs, stays, strict=True)
    for need, stay in sorted(pairs, key=lambda pair: -pair[1].size_bytes):
      offset = memory.find(stay.size_bytes, "lowest")
      if offset is None:
        raise InfeasibleMemoryError(
          self._graph.tasks[position].name,
          needed_bytes,
          self._capacity_bytes[device],
        )
      self._settle(need, stay, offset)

  def _unplan(self, stay: Stay, position: int) -> None:
    """Takes a place back in which nothing has been written yet."""
    self._memories[stay.device].give_back(stay)
    if stay.tensor is None:
      del self._workspace[position]
    else:
      self._tensors[stay.tensor].stay = None

  def _needs_of(self, device: int, position: int) -> list[_Need]:
    task = self._graph.tasks[position]
    tensors = self._graph.tensors
    needs: list[_Need] = [
      _Need(position, tensor)
      for tensor in (*task.inputs, *task.outputs)
      if tensors[tensor].device == device
    ]
    if task.workspace_bytes and task.device == device:
      needs.append(_Need(position, None))
    return needs

  def _execute(self, position: int) -> None:
    """Runs a task: all that it needs has a place."""
    task = self._graph.tasks[position]
    reads = [self._placed(tensor) for tensor in task.inputs]
    for stay, tensor in zip(reads, task.inputs, strict=True):
      if stay.index is None:
        self._emitter.reload(stay, self._tensors[tensor].offload)
    writes = [self._placed(tensor) for tensor in task.outputs]
    workspace = self._workspace.pop(position, None)
    scratch = [] if workspace is None else [workspace]
    self._emitter.task(position, reads, [*writes, *scratch])
    for tensor in task.inputs:
      self._tensors[tensor].num_read += 1
    for tensor in task.outputs:
      self._tensors[tensor].num_written += 1
    for stay in (*reads, *writes, *scratch):
      if self._is_dead(stay):
        self._sim_free(stay)

  def _placed(self, tensor: int) -> Stay:
    stay = self._tensors[tensor].stay
    if stay is None:
      name = self._graph.tensors[tensor].name
      raise AssertionError(f"{name!r} has no place")
    return stay

  def _is_dead(self, stay: Stay) -> bool:
    tensor = stay.tensor
    if tensor is None:
      return True
    state = self._tensors[tensor]
    if state.num_written < len(self._graph.writers[tensor]):
      return False
    if state.num_read < len(self._graph.readers[tensor]):
      return False
    return state.on_host or not state.is_output
