"""Which values live where, until when, and which share a buffer."""

from jaxmem_hlo.buffers.dataflow import (
  Dataflow,
  UnsupportedModuleError,
  Value,
  while_computations,
)
from jaxmem_hlo.buffers.logical_buffers import BufferAnalysis, LogicalBuffer
from jaxmem_hlo.buffers.schedule import LiveRange

__all__ = [
  "BufferAnalysis",
  "Dataflow",
  "LiveRange",
  "LogicalBuffer",
  "UnsupportedModuleError",
  "Value",
  "while_computations",
]
