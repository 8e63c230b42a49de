"""Compiles the segments of a partition, each kind once per device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core

from jaxmem.experimental.memgraph.host_memory import Device
from jaxmem.experimental.memgraph.partition import Partition
from jaxmem.experimental.memgraph.run import Kernel
from jaxmem.experimental.memgraph.task_graph import TaskGraph


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segments:
  """Compiled segments.

  Attributes:
    task_graph: The partition's, with the scratch memory, the flops and the
      bytes that XLA reports for each segment.
    kernels: Per task, what runs it; None for copies.
    num_compiled: How many different ones there are.
  """

  task_graph: TaskGraph
  kernels: tuple[Kernel | None, ...]
  num_compiled: int


def compile_segments(
  partition: Partition, devices: Sequence[Device] | None = None
) -> Segments:
  """Compiles all segments; equal ones, such as layers, once per device.

  Args:
    partition: The segments.
    devices: What the devices of the task graph are; jax's if None.
  """
  devices = jax.devices() if devices is None else devices
  graph = partition.task_graph
  compiled: dict[tuple[str, int], Any] = {}
  kernels, tasks = [], []
  for task, jaxpr in zip(graph.tasks, partition.jaxprs, strict=True):
    if jaxpr is None:
      kernels.append(None)
      tasks.append(task)
      continue
    lowered = _lower(jaxpr, devices[task.device])
    # The text holds the whole program, constants included, but no names.
    key = lowered.as_text(), task.device
    if key not in compiled:
      compiled[key] = lowered.compile()
    executable = compiled[key]
    kernels.append(executable)
    tasks.append(dataclasses.replace(task, **_costs(executable)))
  return Segments(
    task_graph=dataclasses.replace(graph, tasks=tuple(tasks)),
    kernels=tuple(kernels),
    num_compiled=len(compiled),
  )


def _lower(jaxpr: core.Jaxpr, device: Device) -> Any:
  sharding = jax.sharding.SingleDeviceSharding(device)
  avals: list[Any] = [var.aval for var in jaxpr.invars]
  shapes = [
    jax.ShapeDtypeStruct(
      aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type
    )
    for aval in avals
  ]

  # All have one name, so that equal segments have equal texts.
  def segment(*operands):
    return core.jaxpr_as_fun(jaxpr)(*operands)

  jitted = jax.jit(segment, out_shardings=sharding, keep_unused=True)
  return jitted.lower(*shapes)


def _costs(executable: Any) -> dict[str, Any]:
  """Returns what XLA knows of a segment, as fields of a task."""
  found: dict[str, Any] = {}
  analysis = executable.memory_analysis()
  if analysis is not None:
    found["workspace_bytes"] = analysis.temp_size_in_bytes
  costs = executable.cost_analysis() or {}
  found["flops"] = max(0.0, costs.get("flops", 0.0))
  found["bytes_accessed"] = max(0.0, costs.get("bytes accessed", 0.0))
  return found
