"""Which values live where, until when, and which share a buffer.

`dataflow` finds the values of a module, `aliasing` says which outputs are
written over which operands, `logical_buffers` unites the values at one address,
and `schedule` says when each is live in an order.
"""

from jaxmem_hlo.buffers import aliasing, dataflow, schedule
from jaxmem_hlo.buffers.dataflow import (
  Dataflow,
  UnsupportedModuleError,
  Use,
  Value,
  while_computations,
)
from jaxmem_hlo.buffers.logical_buffers import BufferAnalysis, LogicalBuffer
from jaxmem_hlo.buffers.schedule import LiveRange, join_ranges

__all__ = [
  "BufferAnalysis",
  "Dataflow",
  "LiveRange",
  "LogicalBuffer",
  "UnsupportedModuleError",
  "Use",
  "Value",
  "aliasing",
  "dataflow",
  "join_ranges",
  "schedule",
  "while_computations",
]
