"""Orders of jaxprs, planned before XLA sees the step."""

from jaxmem.experimental.jaxpr_order.evaluate import reorder, run_eager
from jaxmem.experimental.jaxpr_order.from_jaxpr import (
  JaxprGraph,
  MemoryModel,
  from_function,
  from_jaxpr,
)
from jaxmem.experimental.jaxpr_order.in_place import in_place, is_elementwise

__all__ = [
  "JaxprGraph",
  "MemoryModel",
  "from_function",
  "from_jaxpr",
  "in_place",
  "is_elementwise",
  "reorder",
  "run_eager",
]
