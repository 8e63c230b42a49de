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
from jaxmem.experimental.memgraph.run_memory import (
  DeviceBudget,
  OffloadedTensors,
)
from jaxmem.experimental.memgraph.workers import Completion, Workers

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
  """The executor of one run: keeps arrays, drives workers."""

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
    self._inputs = inputs
    self._host = OffloadedTensors(memgraph, host)
    on_host = {v.tensor for v in memgraph.vertices if v.kind == "offload"}
    # Outputs that never went to the host stay on the device.
    kept = set(graph.outputs) - on_host - set(graph.inputs)
    self._kept = {
      r.tensor: index
      for index, r in enumerate(memgraph.residencies)
      if r.tensor in kept
    }
    self._budget = DeviceBudget(memgraph)
    self._arrays: dict[int, Any] = {}
    self._start_s = np.full(memgraph.num_vertices, np.nan)
    self._end_s = np.full(memgraph.num_vertices, np.nan)
    self._begin_s = time.perf_counter()

  # The event loop calls the next three.

  def admit(self, vertex: int) -> bool:
    """Reserves host memory for an offload; False if there is none now."""
    about = self._memgraph.vertices[vertex]
    if about.kind != "offload" or about.tensor is None:
      return True
    return self._host.reserve(about.tensor)

  def launch(self, vertex: int) -> None:
    """Takes device memory from the budget, and wakes a worker."""
    self._budget.take(vertex)
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

  def _complete(self, vertex: int, results: Sequence[jax.Array]) -> None:
    about = self._memgraph.vertices[vertex]
    # Scratch memory, the last one, has no result.
    self._arrays.update(zip(about.writes, results, strict=False))
    kept = self._kept.values()
    for index in self._budget.complete(vertex):
      if index in kept:
        continue
      array = self._arrays.pop(index, None)
      if array is not None:
        array.delete()
      self._budget.give_back(index)
    if about.kind == "reload" and about.tensor is not None:
      self._host.note_reload(about.tensor)

  # Worker threads call this.

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
      if about.kind == "offload":
        self._host.store(about.tensor, operands[0])
        return ()
      if about.tensor in self._host:
        return (self._host.load(about.tensor, device),)
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

  # The next two end the run.

  def result(self) -> RunResult:
    """Returns outputs and measurements; the outputs are the caller's now."""
    outputs = tuple(map(self._output, self._memgraph.task_graph.outputs))
    for index in self._kept.values():
      self._arrays.pop(index, None)
    return RunResult(
      outputs=outputs,
      peak_bytes=self._budget.peak_bytes,
      host_peak_bytes=self._host.peak_bytes,
      start_s=self._start_s,
      end_s=self._end_s,
      elapsed_s=time.perf_counter() - self._begin_s,
    )

  def _output(self, tensor: int) -> Any:
    if tensor in self._host:
      return self._host.read(tensor)
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
    for array in self._arrays.values():
      array.delete()
    self._arrays.clear()
    self._host.release()


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
