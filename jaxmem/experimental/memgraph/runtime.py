"""Runs a memory graph on jax devices, within a budget.

jax decides on addresses itself, so offsets are not followed literally. What a
graph guarantees is that residencies which exist at the same time do not
overlap; hence their bytes never add up to more than the capacity. The runtime
makes an array exist only as long as its residency: it counts the bytes before a
vertex starts, and deletes the array when the last vertex that touches it has
completed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxmem.experimental.memgraph import host_memory
from jaxmem.experimental.memgraph.engine import EventLoop, Slots
from jaxmem.experimental.memgraph.host_memory import Device, HostMemory
from jaxmem.experimental.memgraph.memory_graph import MemGraph
from jaxmem.experimental.memgraph.run import Kernel, Run, RunResult
from jaxmem.experimental.memgraph.workers import Workers


class Runtime:
  """Runs one memory graph, as often as asked.

  Args:
    memgraph: The graph.
    kernels: Per task, what computes its outputs from its inputs: a jitted or
      compiled function of arrays on its device that returns a sequence of
      arrays. None for copies. That of an accumulating task takes the sum so
      far first, or None; see `accumulating`.
    devices: What the devices of the graph are; the first ones of jax if None.
    host: Where offloaded tensors go; if None, memory of the kind that suits the
      devices, with room for all tensors that the graph offloads.
    slots: How many vertices run at a time.
    priority: See `EventLoop`.

  Raises:
    ValueError: If there are too few devices, or not one kernel per task.
  """

  def __init__(
    self,
    memgraph: MemGraph,
    kernels: Sequence[Kernel | None],
    *,
    devices: Sequence[Device] | None = None,
    host: HostMemory | None = None,
    slots: Slots | None = None,
    priority: Sequence[float] | None = None,
  ):
    graph = memgraph.task_graph
    devices = jax.devices() if devices is None else devices
    if len(devices) < graph.num_devices:
      raise ValueError(
        f"devices must be at least {graph.num_devices}, got {len(devices)}."
      )
    for task, kernel in zip(graph.tasks, kernels, strict=True):
      if kernel is None and task.kind == "compute":
        raise ValueError(f"Task {task.name!r} must have a kernel, got None.")
    self._memgraph = memgraph
    self._kernels = tuple(kernels)
    self._devices = tuple(devices[: graph.num_devices])
    self._host = host or host_memory.for_device(
      devices[0], _offloaded_bytes(memgraph)
    )
    self._slots = slots or Slots()
    self._priority = priority

  @property
  def host(self) -> HostMemory:
    """Where offloaded tensors are kept during a run."""
    return self._host

  def stage(self, inputs: Mapping[int, Any]) -> dict[int, Any]:
    """Returns the inputs on the host, where devices fetch them fast.

    Not needed for a run; worth it for what many runs read, such as weights.
    """
    tensors = self._memgraph.task_graph.tensors
    return {
      tensor: host_memory.stage(array, self._devices[tensors[tensor].device])
      for tensor, array in inputs.items()
    }

  def run(self, inputs: Mapping[int, Any]) -> RunResult:
    """Runs the graph.

    If it fails, what has not started never does, and all memory that the run
    took is freed before the error is raised.

    Args:
      inputs: For each input tensor of the task graph, an array, on the host or
        anywhere. They are copied, not changed.

    Raises:
      ValueError: If inputs are missing.
      VertexError: If a kernel or a transfer fails.
      WorkerLostError: If a thread ends.
      StalledError: If host memory is exhausted.
    """
    graph = self._memgraph.task_graph
    missing = [t for t in graph.inputs if t not in inputs]
    if missing:
      raise ValueError(
        f"inputs must have a value for {graph.tensors[missing[0]].name!r}, got"
        f" {len(inputs)} of {len(graph.inputs)}."
      )
    run = Run(self._memgraph, self._kernels, self._devices, self._host, inputs)
    num_workers = self._slots.total * graph.num_devices
    run.workers = Workers(num_workers, run.execute)
    try:
      EventLoop(self._memgraph, run, self._slots, self._priority).run()
      return run.result()
    finally:
      run.release(run.workers.close())


def accumulating(fun: Callable[..., jax.Array]) -> Kernel:
  """Returns a kernel that adds what a function returns to a sum, in place.

  Args:
    fun: From the inputs of the task to what is to be added; can be traced.
  """
  first = jax.jit(lambda *operands: (fun(*operands),))
  add = jax.jit(
    lambda total, *operands: (total + fun(*operands),), donate_argnums=0
  )

  def kernel(total: jax.Array | None, *operands: jax.Array):
    return first(*operands) if total is None else add(total, *operands)

  return kernel


def _offloaded_bytes(memgraph: MemGraph) -> int:
  """What all offloaded tensors take, with room to align each."""
  num_offloads = sum(v.kind == "offload" for v in memgraph.vertices)
  return memgraph.bytes_moved("offload") + 64 * num_offloads
