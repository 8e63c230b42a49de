"""Runs memory graphs in virtual time, for machines that are not here.

The event loop is the one that runs programs; only the clock differs. Times are
drawn from distributions before the run, so that two schedules of one graph see
the same draws and differ by their order alone.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np

from jaxmem.cost import Precision
from jaxmem.experimental.memgraph.devices import Server
from jaxmem.experimental.memgraph.engine import EventLoop, Slots
from jaxmem.experimental.memgraph.memory_graph import MemGraph


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
  """How much times scatter, and how often transfers are held up.

  Times are multiplied by log-normal factors with a mean of one.

  Attributes:
    compute_sigma: Standard deviation of the logarithm, for kernels.
    transfer_sigma: Likewise for transfers and copies between devices.
    stall_probability: How likely a transfer is slowed down on top of that.
    stall_factor: How many times as long such a transfer takes.
  """

  compute_sigma: float = 0.0
  transfer_sigma: float = 0.0
  stall_probability: float = 0.0
  stall_factor: float = 1.0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if getattr(self, field.name) < 0:
        raise ValueError(
          f"{field.name} must not be negative, got {getattr(self, field.name)}."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
  """What happened when.

  Attributes:
    start_s: Per vertex, float64 `[num_vertices]`; NaN for syncs.
    end_s: Likewise.
    busy_s: Seconds of work per kind of vertex and device.
  """

  start_s: np.ndarray
  end_s: np.ndarray
  busy_s: dict[tuple[str, int], float]

  @property
  def makespan_s(self) -> float:
    """When the last vertex completed."""
    return float(np.nanmax(self.end_s, initial=0.0))


def expected_times(
  memgraph: MemGraph, server: Server, *, precision: Precision = "bf16"
) -> np.ndarray:
  """Returns how long each vertex takes on a server, without noise.

  Kernels take their roofline time, transfers a latency and their bytes.

  Args:
    memgraph: The graph.
    server: The devices.
    precision: Of the products that the tasks' flops count.

  Returns:
    Seconds, float64 `[num_vertices]`.
  """
  graph = memgraph.task_graph
  times = np.zeros(memgraph.num_vertices)
  for index, vertex in enumerate(memgraph.vertices):
    if vertex.kind == "compute" and vertex.task is not None:
      task = graph.tasks[vertex.task]
      times[index] = server.rates.seconds(
        {precision: task.flops}, 0.0, task.bytes_accessed
      )
    elif vertex.kind == "copy" and vertex.task is not None:
      moved = graph.tensors[graph.tasks[vertex.task].inputs[0]].size_bytes
      rate = server.peer_rate_bytes_per_s
      times[index] = server.transfer_latency_s + moved / rate
    elif vertex.tensor is not None:
      moved = graph.tensors[vertex.tensor].size_bytes
      rate = server.host_bytes_per_s
      times[index] = server.transfer_latency_s + moved / rate
  return times


def draw_times(
  memgraph: MemGraph, expected_s: np.ndarray, noise: Noise, seed: int
) -> np.ndarray:
  """Returns times drawn around the expected ones.

  Args:
    memgraph: The graph.
    expected_s: Per vertex.
    noise: The distributions.
    seed: Same seed, same draws; also for another schedule of the same graph,
      whose added syncs draw nothing.
  """
  rng = np.random.default_rng(seed)
  real = [i for i, v in enumerate(memgraph.vertices) if v.kind != "sync"]
  is_compute = np.array([memgraph.vertices[i].kind == "compute" for i in real])
  sigma = np.where(is_compute, noise.compute_sigma, noise.transfer_sigma)
  factors = np.exp(sigma * rng.standard_normal(len(real)) - sigma**2 / 2)
  is_stalled = rng.random(len(real)) < noise.stall_probability
  factors[is_stalled & ~is_compute] *= noise.stall_factor
  times = np.array(expected_s, dtype=float)
  times[real] *= factors
  return times


def simulate(
  memgraph: MemGraph,
  times_s: np.ndarray,
  *,
  slots: Slots | None = None,
  priority: Sequence[float] | None = None,
  host_bytes: int | None = None,
) -> Simulation:
  """Runs a graph in virtual time.

  With one compute slot per device, the default, a kernel has its device to
  itself; kernels that share one are not slowed down by each other.

  Args:
    memgraph: The graph.
    times_s: Seconds that each vertex takes.
    slots: How many run at a time.
    priority: See `EventLoop`.
    host_bytes: Memory for what is offloaded; None for as much as it takes.

  Raises:
    StalledError: If host memory does not suffice.
    ValueError: If there is not one time, not negative, for each vertex.
  """
  times = [float(t) for t in times_s]
  if len(times) != memgraph.num_vertices or min(times, default=0.0) < 0:
    raise ValueError(
      f"times_s must be {memgraph.num_vertices} times, none of them negative,"
      f" got {len(times)} with a minimum of {min(times, default=0.0)}."
    )
  clock = _VirtualClock(memgraph, times, host_bytes)
  EventLoop(memgraph, clock, slots, priority).run()
  busy: dict[tuple[str, int], float] = {}
  for index, vertex in enumerate(memgraph.vertices):
    if vertex.kind != "sync":
      lane = vertex.kind, vertex.device
      busy[lane] = busy.get(lane, 0.0) + times[index]
  start_s = np.array(clock.start_s)
  return Simulation(
    start_s=start_s, end_s=start_s + np.array(times), busy_s=busy
  )


class _VirtualClock:
  """An executor whose time jumps from one completion to the next."""

  def __init__(
    self, memgraph: MemGraph, times_s: list[float], host_bytes: int | None
  ):
    self._memgraph = memgraph
    self._times_s = times_s
    self._host_bytes = host_bytes
    self._used_bytes = 0
    self._num_reloads = dict(memgraph.num_reloads)
    self._now_s = 0.0
    self._running: list[tuple[float, int]] = []
    self.start_s = [float("nan")] * memgraph.num_vertices

  def admit(self, vertex: int) -> bool:
    moved = self._moved_bytes(vertex, "offload")
    if self._host_bytes is None:
      return True
    if self._used_bytes + moved > self._host_bytes:
      return False
    self._used_bytes += moved
    return True

  def launch(self, vertex: int) -> None:
    self.start_s[vertex] = self._now_s
    end_s = self._now_s + self._times_s[vertex]
    heapq.heappush(self._running, (end_s, vertex))

  def wait(self) -> list[int]:
    self._now_s, vertex = heapq.heappop(self._running)
    done = [vertex]
    while self._running and self._running[0][0] == self._now_s:
      done.append(heapq.heappop(self._running)[1])
    for vertex in done:
      self._free_host(vertex)
    return done

  def _moved_bytes(self, vertex: int, kind: str) -> int:
    """Bytes that a vertex of this kind moves, if it is not an input's."""
    tensor = self._memgraph.vertices[vertex].tensor
    if self._memgraph.vertices[vertex].kind != kind or tensor is None:
      return 0
    if not self._memgraph.task_graph.writers[tensor]:
      return 0
    return self._memgraph.task_graph.tensors[tensor].size_bytes

  def _free_host(self, vertex: int) -> None:
    """Frees a tensor on the host when it was brought back for good."""
    moved = self._moved_bytes(vertex, "reload")
    tensor = self._memgraph.vertices[vertex].tensor
    if not moved or tensor is None:
      return
    self._num_reloads[tensor] -= 1
    is_output = tensor in self._memgraph.task_graph.outputs
    if not self._num_reloads[tensor] and not is_output:
      self._used_bytes -= moved
