"""Stay close to the compiler's order where memory does not ask for more.

A compiler's order also serves the run time: it keeps producers and consumers
together and overlaps transfers. So once the least peak is known, look for an
order with that peak that departs from the initial one as little as possible.
"""

from collections.abc import Sequence

import numpy as np

from jaxmem import liveness
from jaxmem.graph import Graph
from jaxmem.order.directed_pass import DirectedPass


def displacement(order: Sequence[int], initial_order: Sequence[int]) -> int:
  """Returns the sum over all nodes of how many steps each has moved.

  Spearman's footrule: between one and two times the number of inversions.
  """
  position = np.argsort(np.asarray(initial_order, np.int64))
  steps = np.arange(len(order))
  return int(np.abs(position[np.asarray(order, np.int64)] - steps).sum())


def closest_orders(
  graph: Graph,
  initial_order: Sequence[int],
  order: Sequence[int],
) -> list[tuple[int, ...]]:
  """Returns orders that are no worse than `order`, closest to initial first.

  Args:
    graph: The program.
    initial_order: The compiler's order.
    order: An order whose peak is to be kept.

  Returns:
    Distinct orders, `order` among them, by displacement.
  """
  peak_bytes = liveness.peak_bytes(graph, order)
  found = {tuple(order)}
  for forward in (True, False):
    make_pass = DirectedPass(graph, forward=forward)
    for depth in (0, 1, 4):
      other = make_pass(initial_order, peak_bytes, peak_bytes + 1, depth=depth)
      if other is not None:
        found.add(other)
  return sorted(found, key=lambda o: (displacement(o, initial_order), o))
