"""Small programs with the optima of those that OLLA's authors test with.

Their convention: a node's value is added, the bytes are recorded, then the
values without a later use are freed. Ours is the same: a live range includes
the steps of its first and of its last toucher.
"""

import random_graphs

from jaxmem.graph import Graph, liveness

# Per node: its name, the bytes of its value, and whose values it reads.
_Rows = tuple[tuple[str, int, tuple[str, ...]], ...]

_SIMPLE: _Rows = (
  ("a", 30, ()),
  ("b", 30, ("a",)),
  ("c", 10, ("a",)),
  ("d", 30, ("b",)),
  ("e", 10, ("c", "d")),
)
_DIAMOND: _Rows = (
  ("top", 10, ()),
  ("left", 10, ("top",)),
  ("right", 80, ("top",)),
  ("left_end", 30, ("left",)),
  ("right_end", 40, ("right",)),
  ("bottom", 10, ("left_end", "right_end")),
)
_FAN_IN: _Rows = (
  ("a", 50, ()),
  ("b", 20, ()),
  ("c", 10, ("a",)),
  ("d", 40, ("b",)),
  ("out", 10, ("a", "c", "d")),
)
_MIB = 1 << 20
_FIGURE_3: _Rows = (
  ("v1", 5 * _MIB, ()),
  ("v2", 25 * _MIB, ("v1",)),
  ("v3", 20 * _MIB, ("v1",)),
  ("v4", 15 * _MIB, ("v2",)),
  ("v5", 5 * _MIB, ("v3", "v4")),
)

# Per case: its name, the graph, and the least and the highest peak of all its
# orders, in bytes.
CASES: tuple[tuple[str, Graph, int, int], ...] = (
  # a b c d e: a+b+c and b+c+d are 70. With d before c: a+b+d is 90.
  ("simple", random_graphs.dataflow(_SIMPLE), 70, 90),
  # right is freed before left_end is made: left+right+right_end is 130.
  # left_end first: left_end+right+right_end is 150.
  ("diamond", random_graphs.dataflow(_DIAMOND), 130, 150),
  # The control edge forbids the better order.
  (
    "control",
    random_graphs.dataflow(_DIAMOND, [("left_end", "right_end")]),
    150,
    150,
  ),
  # b and d before c: a+b+d is 110 and so is a+c+d+out. Else a+b+c+d is 120.
  ("fan_in", random_graphs.dataflow(_FAN_IN), 110, 120),
  # v4 before v3: v1+v2+v4 is 45. v3 before v4: v2+v3+v4 is 60.
  ("figure_3", random_graphs.dataflow(_FIGURE_3), 45 * _MIB, 60 * _MIB),
)


def peaks_by_order(graph: Graph) -> dict[tuple[int, ...], int]:
  """Returns the peak of every order of a small graph, in bytes."""
  return {
    order: liveness.peak_bytes(graph, order)
    for order in random_graphs.all_orders(graph)
  }
