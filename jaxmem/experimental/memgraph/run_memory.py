"""What a run takes of the memory of devices and of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from jaxmem.experimental.memgraph.host_memory import Device, HostMemory
from jaxmem.experimental.memgraph.memory_graph import MemGraph
from jaxmem.units import format_bytes


class BudgetExceededError(RuntimeError):
  """A vertex would exceed the memory of its device: the graph is not valid."""


class DeviceBudget:
  """Counts the bytes of residencies against the capacity of each device."""

  def __init__(self, memgraph: MemGraph):
    self._memgraph = memgraph
    self._exists = [False] * len(memgraph.residencies)
    self._num_touchers = [len(r.touchers) for r in memgraph.residencies]
    self._used_bytes = [0] * memgraph.task_graph.num_devices
    self._peak_bytes = [0] * memgraph.task_graph.num_devices

  @property
  def peak_bytes(self) -> tuple[int, ...]:
    """Per device, the most bytes that residencies took at a time."""
    return tuple(self._peak_bytes)

  def take(self, vertex: int) -> None:
    """Counts what a vertex is the first to write.

    Raises:
      BudgetExceededError: If that does not fit.
    """
    for index in self._memgraph.vertices[vertex].writes:
      if not self._exists[index]:
        self._take_residency(index, vertex)

  def complete(self, vertex: int) -> Iterator[int]:
    """Yields the residencies of which a vertex was the last that needs them."""
    about = self._memgraph.vertices[vertex]
    for index in (*about.reads, *about.writes):
      self._num_touchers[index] -= 1
      if not self._num_touchers[index]:
        yield index

  def give_back(self, index: int) -> None:
    """Takes the bytes of a residency, which is gone, out of the count."""
    residency = self._memgraph.residencies[index]
    self._used_bytes[residency.device] -= residency.size_bytes

  def _take_residency(self, index: int, vertex: int) -> None:
    residency = self._memgraph.residencies[index]
    used_bytes = self._used_bytes[residency.device] + residency.size_bytes
    capacity_bytes = self._memgraph.capacity_bytes[residency.device]
    if used_bytes > capacity_bytes:
      raise BudgetExceededError(
        f"{self._memgraph.vertices[vertex].name!r} would take device"
        f" {residency.device} to {format_bytes(used_bytes)} of"
        f" {format_bytes(capacity_bytes)}. Check the graph."
      )
    self._exists[index] = True
    self._used_bytes[residency.device] = used_bytes
    peak_bytes = max(self._peak_bytes[residency.device], used_bytes)
    self._peak_bytes[residency.device] = peak_bytes


class OffloadedTensors:
  """The tensors that are in host memory, until they were brought back."""

  def __init__(self, memgraph: MemGraph, memory: HostMemory):
    self._graph = memgraph.task_graph
    self._memory = memory
    self._handles: dict[int, Any] = {}
    self._num_reloads = dict(memgraph.num_reloads)

  def __contains__(self, tensor: int) -> bool:
    return tensor in self._handles

  @property
  def peak_bytes(self) -> int:
    """The most bytes of host memory that were taken at a time."""
    return self._memory.peak_bytes

  def reserve(self, tensor: int) -> bool:
    """Reserves memory for a tensor; False if there is none now."""
    handle = self._memory.allocate(self._graph.tensors[tensor].size_bytes)
    if handle is None:
      return False
    self._handles[tensor] = handle
    return True

  def store(self, tensor: int, array: jax.Array) -> None:
    """Copies a tensor to the memory that is reserved for it."""
    self._memory.store(self._handles[tensor], array)

  def load(self, tensor: int, device: Device) -> jax.Array:
    """Copies a tensor to a device."""
    return self._memory.load(self._handles[tensor], device)

  def read(self, tensor: int) -> Any:
    """Returns a tensor as an array on the host."""
    return self._memory.read(self._handles[tensor])

  def note_reload(self, tensor: int) -> None:
    """Frees a tensor that was brought back for the last time."""
    if tensor not in self._handles:
      return
    self._num_reloads[tensor] -= 1
    if not self._num_reloads[tensor] and tensor not in self._graph.outputs:
      self._memory.free(self._handles.pop(tensor))

  def release(self) -> None:
    """Frees all that is left."""
    for handle in self._handles.values():
      self._memory.free(handle)
    self._handles.clear()
