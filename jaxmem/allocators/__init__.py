"""Allocators of the literature, on the trace of a step: docs/allocators.md."""

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
  "Event",
  "OutOfMemoryError",
  "Placement",
  "Result",
  "Segment",
  "Trace",
  "arena_result",
  "from_graph",
  "occupied_bytes",
  "validate",
]
