"""Orders of jaxprs, planned before XLA sees the step: see docs/jaxpr.md.

    program = from_function(step, *shapes)
    plan = order.plan_order(program.graph)
    same = reorder(step, plan.order)

`from_jaxpr` makes the graph of a traced function, one node per equation;
`evaluate` runs it in another order, under jit or equation by equation.
"""

from jaxmem.experimental.jaxpr_order.evaluate import reorder, run_eager
from jaxmem.experimental.jaxpr_order.from_jaxpr import (
  JaxprGraph,
  MemoryModel,
  from_function,
  from_jaxpr,
)
from jaxmem.experimental.jaxpr_order.in_place import in_place

__all__ = [
  "JaxprGraph",
  "MemoryModel",
  "from_function",
  "from_jaxpr",
  "in_place",
  "reorder",
  "run_eager",
]
