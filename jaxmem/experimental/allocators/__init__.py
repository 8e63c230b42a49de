"""Allocators of the literature, on the trace of a step: docs/allocators.md.

    trace = from_graph(program.graph)
    result = Nnc().run(trace)
    check_result(trace, result)

`trace` is what a step asks an allocator for, and what it answers. `mxnet`,
`nnc` and `static` plan before the step runs; `paddle` and `caching` serve one
request after another from a `heap`. `parallel` and `in_place` say what may
share, `result_check` checks every answer. `coarse`, `views` and `loop_bodies`
change the program beforehand; `memcost` makes a table of all of them, which
`command` prints for `python -m jaxmem memcost`.
"""

from jaxmem.experimental.allocators import memcost
from jaxmem.experimental.allocators.caching import Caching, CachingHeap
from jaxmem.experimental.allocators.command import add_memcost
from jaxmem.experimental.allocators.eager_deletion import EagerDeletion
from jaxmem.experimental.allocators.heap import Device
from jaxmem.experimental.allocators.mxnet import Mxnet, MxnetColoring
from jaxmem.experimental.allocators.nnc import Nnc
from jaxmem.experimental.allocators.paddle import AutoGrowth, NaiveBestFit
from jaxmem.experimental.allocators.parallel import with_sharing_edges
from jaxmem.experimental.allocators.result_check import check_result
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
  "with_sharing_edges",
]
