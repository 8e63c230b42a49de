"""BUILDMEMGRAPH: from a task graph to a memory graph that fits.

TURNIP, sections 6 and 7. A serial execution of the tasks is simulated, with two
horizons per device: tasks before the execution horizon have run; tensors before
the allocation horizon have a place. The latter is pushed ahead as far as memory
allows, so that few vertices have to wait for memory. Every edge points forward
in the order of the simulation, hence there is no cycle.

Beyond the paper, whose tensors take a slot each:
- Tensors have sizes and get offsets; what overlaps, by a byte, gets edges.
- Inputs of the graph start in host memory, and what is brought back from the
  host is allocated by the allocation horizon too, not when it is needed: a
  reload can start as early as its place is free.
- What was offloaded once is not offloaded again; its copy on the host is valid.
- If the inputs of a task leave no room because of where they lie, some, or all,
  are moved away and brought back elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jaxmem.experimental.memgraph.device_memory import Place
from jaxmem.experimental.memgraph.memory_graph import MemGraph
from jaxmem.experimental.memgraph.serial_execution import (
  InfeasibleMemoryError,
  SerialExecution,
)
from jaxmem.experimental.memgraph.task_graph import TaskGraph

_PLACES: tuple[Place, ...] = ("oldest", "lowest", "tightest")


def build_memgraph(
  task_graph: TaskGraph,
  capacity_bytes: int | Sequence[int],
  *,
  alignment_bytes: int = 256,
  lookahead: int | None = None,
  place: Place | Literal["best"] = "oldest",
  reduce: bool = True,
) -> MemGraph:
  """Decides what lies where, what leaves, and who waits for whom.

  Deterministic. The time grows with the number of tasks times the number of
  tensors that are in memory at once.

  Args:
    task_graph: The computation. The order of its tasks is the one simulated.
    capacity_bytes: Memory of each device, or of every device.
    alignment_bytes: Sizes are rounded up and offsets are multiples of it.
    lookahead: How many tasks the allocation horizon may be ahead; None for as
      many as memory allows.
    place: Which free place a tensor gets: "oldest", where memory was used
      longest ago, is the paper's rule and asks for the least waiting; "lowest"
      and "tightest" scatter less, which saves transfers where memory is very
      short. "best" tries all and takes the graph that moves the fewest bytes.
    reduce: Whether to drop memory edges that other paths imply.

  Raises:
    InfeasibleMemoryError: If the tensors of one task do not fit.
    ValueError: If the capacities are not one per device, or negative.
  """
  num_devices = task_graph.num_devices
  if isinstance(capacity_bytes, int):
    capacity_bytes = (capacity_bytes,) * num_devices
  if len(capacity_bytes) != num_devices or min(capacity_bytes) < 0:
    raise ValueError(
      f"capacity_bytes must be one size for each of {num_devices} devices, got"
      f" {capacity_bytes}."
    )
  if alignment_bytes < 1 or (lookahead is not None and lookahead < 0):
    raise ValueError(
      "alignment_bytes must be positive and lookahead not negative, got"
      f" {alignment_bytes} and {lookahead}."
    )
  places = _PLACES if place == "best" else (place,)
  built = []
  errors = []
  for each in places:
    simulation = SerialExecution(
      task_graph, tuple(capacity_bytes), alignment_bytes, lookahead, each
    )
    try:
      built.append(simulation.run(reduce=reduce))
    except InfeasibleMemoryError as error:
      errors.append(error)
  if not built:
    raise errors[0]
  return min(built, key=_transferred_bytes)


def _transferred_bytes(memgraph: MemGraph) -> int:
  return memgraph.bytes_moved("offload") + memgraph.bytes_moved("reload")
