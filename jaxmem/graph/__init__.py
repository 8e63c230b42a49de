"""The program as a graph: nodes, buffers, precedences, and what bounds it."""

from jaxmem.graph.bounds import LowerBound, MinCut, lower_bound
from jaxmem.graph.callee_peaks import callee_peaks
from jaxmem.graph.graph import (
  Buffer,
  Graph,
  Node,
  check_acyclic,
  topological_order,
)
from jaxmem.graph.heap_sharing import may_share_on_heap
from jaxmem.graph.hlo_graph import (
  CalleePeak,
  ComputationGraph,
  Sharing,
  from_hlo,
)
from jaxmem.graph.liveness import live_ranges, peak_bytes
from jaxmem.graph.validate import ValidationError, check_order

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
  "callee_peaks",
  "check_acyclic",
  "check_order",
  "from_hlo",
  "live_ranges",
  "lower_bound",
  "may_share_on_heap",
  "peak_bytes",
  "topological_order",
]
