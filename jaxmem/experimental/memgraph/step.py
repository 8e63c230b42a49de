"""A step that runs within a memory limit: partition, compile, build, run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from jaxmem import units
from jaxmem.experimental.memgraph import schedules
from jaxmem.experimental.memgraph.build import build_memgraph
from jaxmem.experimental.memgraph.check import check
from jaxmem.experimental.memgraph.engine import Slots
from jaxmem.experimental.memgraph.host_memory import Device
from jaxmem.experimental.memgraph.memory_graph import MemGraph
from jaxmem.experimental.memgraph.partition import Partition, partition
from jaxmem.experimental.memgraph.runtime import RunResult, Runtime
from jaxmem.experimental.memgraph.segments import Segments, compile_segments

Schedule = Literal["event", "fixed", "streaming"]


class OffloadedStep:
  """A step cut into segments, which runs within a memory limit.

  Attributes:
    partition: The segments.
    segments: The compiled segments.
    memgraph: What runs, checked.
    runtime: What runs it.
    last_run: Measurements of the latest call; None before the first.
  """

  def __init__(
    self,
    partition: Partition,
    segments: Segments,
    memgraph: MemGraph,
    runtime: Runtime,
  ):
    self.partition = partition
    self.segments = segments
    self.memgraph = memgraph
    self.runtime = runtime
    self.last_run: RunResult | None = None

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Runs the step on arguments of the types that it was made for."""
    flat_args = jax.tree.leaves((args, kwargs))
    run = self.runtime.run(self.partition.bind(flat_args))
    self.last_run = run
    return self.partition.unbind(run.outputs, flat_args)


def offload(
  step: Callable[..., Any],
  *args: Any,
  memory_limit: units.ByteQuantity,
  schedule: Schedule = "event",
  devices: Sequence[Device] | None = None,
  num_devices: int = 1,
  slots: Slots | None = None,
  partition_options: dict[str, Any] | None = None,
  **kwargs: Any,
) -> OffloadedStep:
  """Returns a step that keeps within a memory limit on each device.

  Arguments stay in host memory and are brought to the device when segments
  need them; results are left where they were last. For large arguments pass
  arrays that are on the host.

  Args:
    step: A function without effects; differentiate and jit inside of it.
    *args: Arguments, or their `jax.ShapeDtypeStruct`.
    memory_limit: Bytes for arguments, results and temporaries on each device,
      as a number or a text such as "2GiB".
    schedule: "event": whatever is ready runs. "fixed": segments run in program
      order. "streaming": layers run in step, see
      `schedules.layer_streaming`.
    devices: Where to run; jax's devices if None.
    num_devices: How many of them.
    slots: How many segments and transfers run at a time on each device.
    partition_options: Of `partition`: by, depth and others. Segments that
      touch more than half of the limit are cut, unless max_segment_bytes says
      otherwise.
    **kwargs: Keyword arguments of the step.

  Raises:
    InfeasibleMemoryError: If a segment alone exceeds the limit.
    ValueError: If the step cannot be cut, or the schedule is unknown.
  """
  capacity_bytes = units.parse_bytes(memory_limit)
  cutting = {"max_segment_bytes": capacity_bytes // 2}
  cutting |= partition_options or {}
  cut = partition(step, *args, num_devices=num_devices, **cutting, **kwargs)
  segments = compile_segments(cut, devices)
  memgraph = build_memgraph(segments.task_graph, capacity_bytes, place="best")
  if schedule == "fixed":
    memgraph = schedules.fixed_order(memgraph)
  elif schedule == "streaming":
    memgraph = schedules.layer_streaming(memgraph)
  elif schedule != "event":
    raise ValueError(
      f"schedule must be 'event', 'fixed' or 'streaming', got {schedule!r}."
    )
  check(memgraph)
  runtime = Runtime(memgraph, segments.kernels, devices=devices, slots=slots)
  return OffloadedStep(cut, segments, memgraph, runtime)
