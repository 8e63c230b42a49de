"""The program as a graph: nodes, buffers, precedences, and what bounds it."""

from jaxmem.graph import bounds, liveness
from jaxmem.graph.bounds import MinCut, lower_bound
from jaxmem.graph.check_order import ValidationError, check_order
from jaxmem.graph.graph import Buffer, Graph, Node
from jaxmem.graph.hlo_graph import (
  ComputationGraph,
  Sharing,
  callee_peaks,
  from_hlo,
  may_share_on_heap,
)
from jaxmem.graph.liveness import live_ranges, peak_bytes
from jaxmem.graph.topological import (
  check_acyclic,
  reachable,
  successors_of,
  topological_order,
)

__all__ = [
  "Buffer",
  "ComputationGraph",
  "Graph",
  "MinCut",
  "Node",
  "Sharing",
  "ValidationError",
  "bounds",
  "callee_peaks",
  "check_acyclic",
  "check_order",
  "from_hlo",
  "live_ranges",
  "liveness",
  "lower_bound",
  "may_share_on_heap",
  "peak_bytes",
  "reachable",
  "successors_of",
  "topological_order",
]
