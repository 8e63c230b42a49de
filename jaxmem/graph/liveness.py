"""Live ranges and live bytes of a graph under an order."""

from collections.abc import Sequence

import numpy as np

from jaxmem.graph.graph import Graph


def live_ranges(graph: Graph, order: Sequence[int]) -> np.ndarray:
  """Returns the steps during which each buffer is live.

  Args:
    graph: The program.
    order: A permutation of its nodes; not checked, see `check_order`.

  Returns:
    int64 array `[num_buffers, 2]` of half-open ranges [start, end): from the
    step of the first toucher (0 if live at the start) to one past the step of
    the last (num_steps if live at the end). A buffer that nothing touches and
    that is not live at the end has the range [0, 0).
  """
  arrays = graph.arrays
  ranges = np.zeros((graph.num_buffers, 2), np.int64)
  if arrays.touched.size:
    steps = _positions(order)[arrays.touchers]
    first = np.minimum.reduceat(steps, arrays.toucher_starts)
    last = np.maximum.reduceat(steps, arrays.toucher_starts)
    ranges[arrays.touched, 0] = first
    ranges[arrays.touched, 1] = last + 1
  ranges[arrays.live_at_start, 0] = 0
  ranges[arrays.live_at_end, 1] = graph.num_nodes
  return ranges


def live_bytes(graph: Graph, order: Sequence[int]) -> np.ndarray:
  """Returns the bytes live while each step executes.

  The sizes of all live buffers, plus the step's extra bytes, minus what its
  outputs share with operands that die there. The pairs of a node are used in
  the order in which they are listed, each buffer at most once.

  Args:
    graph: The program.
    order: A permutation of its nodes; not checked, see `check_order`.

  Returns:
    int64 array `[num_steps]`, in bytes. Its maximum is the peak.
  """
  arrays = graph.arrays
  ranges = live_ranges(graph, order)
  change = np.zeros(graph.num_nodes + 1, np.int64)
  np.add.at(change, ranges[:, 0], arrays.size_bytes)
  np.subtract.at(change, ranges[:, 1], arrays.size_bytes)
  live = np.cumsum(change[:-1]) + arrays.extra_bytes[list(order)]
  if arrays.shares.size:
    _subtract_shares(graph, order, ranges, live)
  return live


def peak_bytes(graph: Graph, order: Sequence[int]) -> int:
  """Returns the most bytes live at any step; 0 for an empty graph."""
  return int(live_bytes(graph, order).max(initial=0))


def _subtract_shares(
  graph: Graph, order: Sequence[int], ranges: np.ndarray, live: np.ndarray
) -> None:
  arrays = graph.arrays
  position = _positions(order)
  nodes, operands, _ = arrays.shares.T
  dying = ranges[operands, 1] == position[nodes] + 1
  dying &= ~arrays.live_at_end[operands]
  used: set[tuple[int, int]] = set()
  for node, operand, output in arrays.shares[dying].tolist():
    if (node, operand) in used or (node, output) in used:
      continue
    used |= {(node, operand), (node, output)}
    live[position[node]] -= min(
      arrays.size_bytes[operand], arrays.size_bytes[output]
    )


def _positions(order: Sequence[int]) -> np.ndarray:
  """The step of each node."""
  position = np.empty(len(order), np.int64)
  position[np.asarray(order, np.int64)] = np.arange(len(order))
  return position
