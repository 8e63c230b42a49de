"""Peaks recomputed by the definition, to check the fast code by."""

from collections.abc import Sequence

from jaxmem.graph import Graph, ValidationError, check_order


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
