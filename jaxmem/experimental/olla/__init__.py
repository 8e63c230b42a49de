"""OLLA's three programs on CP-SAT (Steiner et al., 2022): see docs/olla.md.

    solve(graph)              order, then addresses (4.4), or both jointly
    solve_order(graph)        program 14: the order of the least peak
    solve_addresses(problem)  program 15: addresses for known live ranges
    solve_joint(graph)        program 9: both at once

The equations as they are, for graphs of up to some hundred nodes and as a
yardstick for what plans larger ones: `jaxmem.order` and `jaxmem.placement`.

`problem` makes the paper's edges of a graph, `windows` their lifetimes;
`lifetimes` and `intervals` are the two formulations of an order, `locations`
the addresses; `order_program`, `address_program` and `joint_program` solve.
`anchors` are the paper's control edges for weight updates.
"""

from jaxmem.experimental.olla.address_program import (
  address_problem,
  solve_addresses,
)
from jaxmem.experimental.olla.anchors import anchor_updates, weight_updates
from jaxmem.experimental.olla.joint_program import solve, solve_joint
from jaxmem.experimental.olla.order_program import solve_order
from jaxmem.experimental.olla.problem import without_shares
from jaxmem.experimental.olla.program_options import ProgramOptions
from jaxmem.experimental.olla.solution import (
  AddressSolution,
  JointSolution,
  ModelSize,
  OrderSolution,
)

__all__ = [
  "AddressSolution",
  "JointSolution",
  "ModelSize",
  "OrderSolution",
  "ProgramOptions",
  "address_problem",
  "anchor_updates",
  "solve",
  "solve_addresses",
  "solve_joint",
  "solve_order",
  "weight_updates",
  "without_shares",
]
