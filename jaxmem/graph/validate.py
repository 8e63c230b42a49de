"""Independent checks of what the planners return.

This file imports the graph only: it recomputes everything in the most naive
way, so that a mistake in the fast code cannot hide itself.
"""

from collections.abc import Sequence

from jaxmem.graph.graph import Graph

_MAX_FAULTS = 20


class ValidationError(ValueError):
  """A plan breaks a rule.

  Attributes:
    faults: One sentence per broken rule, with the names involved.
  """

  def __init__(self, faults: Sequence[str]):
    self.faults = tuple(faults)
    shown = self.faults[:_MAX_FAULTS]
    if len(self.faults) > len(shown):
      shown += (f"and {len(self.faults) - len(shown)} more",)
    super().__init__("; ".join(shown))


def check_order(graph: Graph, order: Sequence[int]) -> None:
  """Checks that an order runs each node once, after its predecessors.

  Args:
    graph: The program.
    order: Indices into `graph.nodes`.

  Raises:
    ValidationError: Names every fault: unknown, missing or repeated nodes, and
      each precedence that the order breaks.
  """
  faults = []
  position: dict[int, int] = {}
  for step, index in enumerate(order):
    if not 0 <= index < graph.num_nodes:
      faults.append(f"step {step} runs unknown node {index}")
    elif index in position:
      name = graph.nodes[index].name
      faults.append(
        f"node {name!r} runs at step {position[index]} and again at {step}"
      )
    else:
      position[index] = step
  for index, node in enumerate(graph.nodes):
    if index not in position:
      faults.append(f"node {node.name!r} never runs")
      continue
    for predecessor in dict.fromkeys(node.predecessors):
      if predecessor not in position:
        continue
      if position[predecessor] >= position[index]:
        faults.append(
          f"node {node.name!r} runs at step {position[index]}, before its"
          f" predecessor {graph.nodes[predecessor].name!r} at step"
          f" {position[predecessor]}"
        )
  if faults:
    raise ValidationError(faults)


def check_peak(graph: Graph, order: Sequence[int], peak_bytes: int) -> None:
  """Checks an order and the peak that is claimed for it.

  Raises:
    ValidationError: If the order is faulty or its peak is another.
  """
  check_order(graph, order)
  recomputed = naive_peak_bytes(graph, order)
  if recomputed != peak_bytes:
    raise ValidationError(
      [f"the peak is {recomputed} bytes, but {peak_bytes} were claimed"]
    )


def naive_peak_bytes(graph: Graph, order: Sequence[int]) -> int:
  """Recomputes the peak in O(num_nodes * num_buffers), by the definition."""
  steps = {index: step for step, index in enumerate(order)}
  ranges = []
  for buffer in graph.buffers:
    touches = [steps[toucher] for toucher in buffer.touchers]
    first = 0 if buffer.live_at_start else min(touches)
    last = len(order) - 1 if buffer.live_at_end else max(touches, default=-1)
    ranges.append((first, last))
  peak = 0
  for step, index in enumerate(order):
    live = graph.nodes[index].extra_bytes
    for buffer, (first, last) in zip(graph.buffers, ranges, strict=True):
      if first <= step <= last:
        live += buffer.size_bytes
    peak = max(peak, live - _shared_bytes(graph, index, step, ranges))
  return peak


def _shared_bytes(
  graph: Graph, index: int, step: int, ranges: Sequence[tuple[int, int]]
) -> int:
  used = set()
  shared = 0
  for pair in graph.nodes[index].shares:
    operand, output = (graph.buffers[i] for i in pair)
    saved = min(operand.size_bytes, output.size_bytes)
    dies_here = ranges[pair[0]][1] == step and not operand.live_at_end
    if saved and dies_here and used.isdisjoint(pair):
      used.update(pair)
      shared += saved
  return shared
