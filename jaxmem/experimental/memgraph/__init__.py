"""Memory graphs: steps that run within less memory than they need.

TURNIP (anonymous authors, under review: "TURNIP: A 'Nondeterministic' GPU
Runtime with CPU RAM Offload"): a task graph is compiled into a graph of tasks,
offloads and reloads, of which any order that respects the edges is correct and
fits; an event-driven runtime takes whatever order turns out best.

    step = memgraph.offload(train_step, *args, memory_limit="2GiB")
    outputs = step(*args)

or, by hand: `Builder` or `partition`, then `build_memgraph`, `check`, and
`Runtime` or `simulate`.

The way of a step: `partition` and `cutting` make a `task_graph` of it,
`segments` compiles its tasks; `build` simulates a `serial_execution` in
`device_memory`, from which `emit` makes a `memory_graph`; `check` proves that
right. The `engine` runs it: on devices with `runtime`, `run`, `run_memory`,
`workers` and `host_memory`, in virtual time with `simulator` and `devices`.
`schedules` has fixed orders to compare with. See docs/memgraph.md.
"""

from jaxmem.experimental.memgraph.build import (
  InfeasibleMemoryError,
  build_memgraph,
)
from jaxmem.experimental.memgraph.check import MemGraphError, check
from jaxmem.experimental.memgraph.devices import SERVERS, Server
from jaxmem.experimental.memgraph.engine import (
  EventLoop,
  Executor,
  Slots,
  StalledError,
)
from jaxmem.experimental.memgraph.host_memory import (
  HostBlock,
  HostMemory,
  PinnedHost,
)
from jaxmem.experimental.memgraph.memory_graph import (
  MemGraph,
  Residency,
  Vertex,
)
from jaxmem.experimental.memgraph.partition import Partition, partition
from jaxmem.experimental.memgraph.run import RunResult, VertexError
from jaxmem.experimental.memgraph.run_memory import BudgetExceededError
from jaxmem.experimental.memgraph.runtime import Runtime, accumulating
from jaxmem.experimental.memgraph.schedules import fixed_order, layer_streaming
from jaxmem.experimental.memgraph.segments import Segments, compile_segments
from jaxmem.experimental.memgraph.simulator import (
  Noise,
  Simulation,
  draw_times,
  expected_times,
  simulate,
)
from jaxmem.experimental.memgraph.step import OffloadedStep, offload
from jaxmem.experimental.memgraph.task_graph import (
  Builder,
  Task,
  TaskGraph,
  Tensor,
)
from jaxmem.experimental.memgraph.workers import WorkerLostError

__all__ = [
  "SERVERS",
  "BudgetExceededError",
  "Builder",
  "EventLoop",
  "Executor",
  "HostBlock",
  "HostMemory",
  "InfeasibleMemoryError",
  "MemGraph",
  "MemGraphError",
  "Noise",
  "OffloadedStep",
  "Partition",
  "PinnedHost",
  "Residency",
  "RunResult",
  "Runtime",
  "Segments",
  "Server",
  "Simulation",
  "Slots",
  "StalledError",
  "Task",
  "TaskGraph",
  "Tensor",
  "Vertex",
  "VertexError",
  "WorkerLostError",
  "accumulating",
  "build_memgraph",
  "check",
  "compile_segments",
  "draw_times",
  "expected_times",
  "fixed_order",
  "layer_streaming",
  "offload",
  "partition",
  "simulate",
]
