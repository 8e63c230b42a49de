"""Graphs of jaxprs: any function's equations, planned and run in an order."""

from jaxmem.jaxpr.evaluate import reorder, run_eager
from jaxmem.jaxpr.extract import (
  JaxprGraph,
  MemoryModel,
  from_function,
  from_jaxpr,
)
from jaxmem.jaxpr.flatten import flatten

__all__ = [
  "JaxprGraph",
  "MemoryModel",
  "flatten",
  "from_function",
  "from_jaxpr",
  "reorder",
  "run_eager",
]
