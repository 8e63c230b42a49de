"""Allocators of the literature, on the trace of a step: docs/allocators.md."""

from jaxmem.allocators.caching import Caching
from jaxmem.allocators.eager_deletion import EagerDeletion
from jaxmem.allocators.mxnet import Mxnet, MxnetColoring
from jaxmem.allocators.nnc import Nnc
from jaxmem.allocators.paddle import AutoGrowth, NaiveBestFit
from jaxmem.allocators.parallel import sharing_edges, with_sharing_edges
from jaxmem.allocators.static import Static
from jaxmem.allocators.trace import (
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
from jaxmem.allocators.validate import occupied_bytes, validate

__all__ = [
  "Allocator",
  "AutoGrowth",
  "Caching",
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
  "arena_result",
  "from_graph",
  "occupied_bytes",
  "sharing_edges",
  "validate",
  "with_sharing_edges",
]
