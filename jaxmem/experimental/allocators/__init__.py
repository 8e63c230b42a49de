"""Allocators of the literature, on the trace of a step: docs/allocators.md."""

from jaxmem.experimental.allocators import memcost
from jaxmem.experimental.allocators.caching import Caching, CachingHeap
from jaxmem.experimental.allocators.command import add_memcost
from jaxmem.experimental.allocators.eager_deletion import EagerDeletion
from jaxmem.experimental.allocators.heap import Device
from jaxmem.experimental.allocators.mxnet import Mxnet, MxnetColoring
from jaxmem.experimental.allocators.nnc import Nnc
from jaxmem.experimental.allocators.paddle import AutoGrowth, NaiveBestFit
from jaxmem.experimental.allocators.parallel import (
  sharing_edges,
  with_sharing_edges,
)
from jaxmem.experimental.allocators.result_check import (
  check_result,
  occupied_bytes,
)
from jaxmem.experimental.allocators.static import Static
from jaxmem.experimental.allocators.trace import (
  Allocator,
  Event,
  OutOfMemoryError,
  Placement,
  Result,
  Segment,
  Trace,
  arena_result,
  from_graph,
)

__all__ = [
  "Allocator",
  "AutoGrowth",
  "Caching",
  "CachingHeap",
  "Device",
  "EagerDeletion",
  "Event",
  "Mxnet",
  "MxnetColoring",
  "NaiveBestFit",
  "Nnc",
  "OutOfMemoryError",
  "Placement",
  "Result",
  "Segment",
  "Static",
  "Trace",
  "add_memcost",
  "arena_result",
  "check_result",
  "from_graph",
  "memcost",
  "occupied_bytes",
  "sharing_edges",
  "with_sharing_edges",
]
