"""One run of a memory graph: the executor behind the runtime's event loop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxmem.experimental.memgraph import host_memory
from jaxmem.experimental.memgraph.host_memory import Device, HostMemory
from jaxmem.experimental.memgraph.memory_graph import MemGraph
from jaxmem.experimental.memgraph.workers import Completion, Workers
from jaxmem.units import format_bytes

Kernel = Callable[..., Sequence[jax.Array]]


class VertexError(RuntimeError):
  """A vertex failed, and the run was cancelled.

  Attributes:
    vertex: Its name.
    source: Where in the user's program it comes from; may be empty.
  """

  def __init__(self, vertex: str, kind: str, source: str, error: BaseException):
    at = f" ({source})" if source else ""
    super().__init__(f"{kind} {vertex!r}{at} failed: {error}")
    self.vertex = vertex
    self.source = source


class BudgetExceededError(RuntimeError):
  """A vertex would exceed the memory of its device: the graph is not valid."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
  """Outputs and measurements of a run.

  Attributes:
    outputs: In the order of the task graph's outputs: on the device if they
      stayed there, else on the host.
    peak_bytes: Per device, the most bytes that residencies took at a time.
    host_peak_bytes: The most bytes of host memory for what was offloaded.
    start_s: Per vertex, when it began, float64; NaN for syncs. From the start
      of the run.
    end_s: Per vertex, when it had completed.
    elapsed_s: The whole run.
  """

  outputs: tuple[Any, ...]
  peak_bytes: tuple[int, ...]
  host_peak_bytes: int
  start_s: np.ndarray
  end_s: np.ndarray
  elapsed_s: float


class Run:
  """The executor of one run: counts bytes, keeps arrays, drives workers."""

  workers: Workers

  def __init__(
    self,
    memgraph: MemGraph,
    kernels: Sequence[Kernel | None],
    devices: Sequence[Device],
    host: HostMemory,
    inputs: Mapping[int, Any],
  ):
    graph = memgraph.task_graph
    self._memgraph = memgraph
    self._kernels = kernels
    self._devices = devices
    self._host = host
    self._inputs = inputs
    self._handles: dict[int, Any] = {}
    self._arrays: dict[int, Any] = {}
    self._exists = [False] * len(memgraph.residencies)
    self._num_touchers = [len(r.touchers) for r in memgraph.residencies]
    self._used_bytes = [0] * graph.num_devices
    self._peak_bytes = [0] * graph.num_devices
    self._num_reloads = dict(memgraph.num_reloads)
    on_host = {v.tensor for v in memgraph.vertices if v.kind == "offload"}
    # Outputs that never went to the host stay on the device.
    kept = set(graph.outputs) - on_host - set(graph.inputs)
    self._kept = {
      r.tensor: index
      for index, r in enumerate(memgraph.residencies)
      if r.tensor in kept
    }
    self._succeeded = False
    self._start_s = np.full(memgraph.num_vertices, np.nan)
    self._end_s = np.full(memgraph.num_vertices, np.nan)
    self._begin_s = time.perf_counter()

  # What the event loop calls.

  def admit(self, vertex: int) -> bool:
    """Reserves host memory for an offload; False if there is none now."""
    about = self._memgraph.vertices[vertex]
    if about.kind != "offload" or about.tensor is None:
      return True
    size_bytes = self._memgraph.task_graph.tensors[about.tensor].size_bytes
    handle = self._host.allocate(size_bytes)
    if handle is None:
      return False
    self._handles[about.tensor] = handle
    return True

  def launch(self, vertex: int) -> None:
    """Takes device memory from the budget, and wakes a worker."""
    for index in self._memgraph.vertices[vertex].writes:
      if not self._exists[index]:
        self._count(index, vertex)
    self.workers.submit(vertex)

  def wait(self) -> list[int]:
    """Sleeps until vertices have completed; frees what nobody needs now."""
    done = []
    for completion in self.workers.wait():
      vertex = completion.job
      if vertex is None:
        continue
      if completion.error is not None:
        about = self._memgraph.vertices[vertex]
        raise VertexError(
          about.name,
          about.kind,
          self._memgraph.source(vertex),
          completion.error,
        ) from completion.error
      self._complete(vertex, completion.result)
      done.append(vertex)
    return done

  def _count(self, index: int, vertex: int) -> None:
    """Takes the bytes of a residency from the budget."""
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

  def _complete(self, vertex: int, results: Sequence[jax.Array]) -> None:
    about = self._memgraph.vertices[vertex]
    # Scratch memory, the last one, has no result.
    self._arrays.update(zip(about.writes, results, strict=False))
    for index in (*about.reads, *about.writes):
      self._num_touchers[index] -= 1
      if not self._num_touchers[index]:
        self._release(index)
    tensor = about.tensor
    if (
      about.kind == "reload" and tensor is not None and tensor in self._handles
    ):
      self._num_reloads[tensor] -= 1
      is_output = tensor in self._memgraph.task_graph.outputs
      if not self._num_reloads[tensor] and not is_output:
        self._host.free(self._handles.pop(tensor))

  def _release(self, index: int) -> None:
    residency = self._memgraph.residencies[index]
    if residency.tensor in self._kept:
      return
    array = self._arrays.pop(index, None)
    if array is not None:
      array.delete()
    self._used_bytes[residency.device] -= residency.size_bytes

  # What worker threads call.

  def execute(self, vertex: int) -> Sequence[jax.Array]:
    """Runs a vertex to its end and returns what it wrote."""
    self._start_s[vertex] = time.perf_counter() - self._begin_s
    results = self._execute(vertex)
    self._end_s[vertex] = time.perf_counter() - self._begin_s
    return results

  def _execute(self, vertex: int) -> Sequence[jax.Array]:
    about = self._memgraph.vertices[vertex]
    operands = [self._arrays[index] for index in about.reads]
    device = self._devices[about.device]
    if about.tensor is not None:
      handle = self._handles.get(about.tensor)
      if about.kind == "offload":
        self._host.store(handle, operands[0])
        return ()
      if handle is not None:
        return (self._host.load(handle, device),)
      return (host_memory.fetch(self._inputs[about.tensor], device),)
    if about.kind == "copy":
      there = self._memgraph.residencies[about.writes[0]].device
      copied = jax.device_put(operands[0], self._devices[there])
      return (jax.block_until_ready(copied),)
    kernel = None if about.task is None else self._kernels[about.task]
    if about.task is None or kernel is None:
      raise AssertionError(f"{about.name!r} has nothing to run")
    task = self._memgraph.task_graph.tasks[about.task]
    if task.accumulates:
      results = kernel(self._arrays.get(about.writes[0]), *operands)
    else:
      results = kernel(*operands)
    results = jax.block_until_ready(tuple(results))
    if len(results) != len(task.outputs):
      raise ValueError(
        f"{len(task.outputs)} outputs were expected, got {len(results)}"
      )
    return _own(results, operands)

  # The end.

  def result(self) -> RunResult:
    """Returns outputs and measurements; the outputs are the caller's now."""
    outputs = tuple(map(self._take_output, self._memgraph.task_graph.outputs))
    self._succeeded = True
    return RunResult(
      outputs=outputs,
      peak_bytes=tuple(self._peak_bytes),
      host_peak_bytes=self._host.peak_bytes,
      start_s=self._start_s,
      end_s=self._end_s,
      elapsed_s=time.perf_counter() - self._begin_s,
    )

  def _take_output(self, tensor: int) -> Any:
    if tensor in self._handles:
      return self._host.read(self._handles[tensor])
    if tensor in self._inputs:
      return self._inputs[tensor]
    return self._arrays[self._kept[tensor]]

  def release(self, left: Sequence[Completion]) -> None:
    """Frees all but the outputs of a run that has succeeded.

    Args:
      left: Vertices that completed after the run was given up.
    """
    for completion in left:
      for array in completion.result or ():
        array.delete()
    for index, array in self._arrays.items():
      if not (self._succeeded and index in self._kept.values()):
        array.delete()
    self._arrays.clear()
    for handle in self._handles.values():
      self._host.free(handle)
    self._handles.clear()


def _own(results: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
  """Returns results that share no memory with operands or with each other.

  jax hands an operand through where a function returns it unchanged; each
  residency is deleted on its own.
  """
  seen = {id(operand) for operand in operands} | _pointers(operands)
  own = []
  for result in results:
    names = {id(result)} | _pointers([result])
    own.append(result if names.isdisjoint(seen) else jax.numpy.copy(result))
    seen |= names
  return jax.block_until_ready(tuple(own))


def _pointers(arrays: Sequence[jax.Array]) -> set[tuple[str, int]]:
  """Returns where arrays lie; those without elements lie nowhere."""
  return {("at", a.unsafe_buffer_pointer()) for a in arrays if a.size}
