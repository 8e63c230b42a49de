"""The program as a graph: nodes, buffers, precedences, and what bounds it."""

from jaxmem.graph import bounds, liveness
from jaxmem.graph.bounds import LowerBound, MinCut, lower_bound
from jaxmem.graph.callee_peaks import callee_peaks
from jaxmem.graph.check_order import ValidationError, check_order
from jaxmem.graph.graph import Buffer, Graph, Node
from jaxmem.graph.heap_sharing import may_share_on_heap
from jaxmem.graph.hlo_graph import (
  CalleePeak,
  ComputationGraph,
  Sharing,
  from_hlo,
)
from jaxmem.graph.liveness import live_ranges, peak_bytes
from jaxmem.graph.topological import (
  check_acyclic,
  least_first_order,
  topological_order,
)

__all__ = [
  "Buffer",
  "CalleePeak",
  "ComputationGraph",
  "Graph",
  "LowerBound",
  "MinCut",
  "Node",
  "Sharing",
  "ValidationError",
  "bounds",
  "callee_peaks",
  "check_acyclic",
  "check_order",
  "from_hlo",
  "least_first_order",
  "live_ranges",
  "liveness",
  "lower_bound",
  "may_share_on_heap",
  "peak_bytes",
  "topological_order",
]
