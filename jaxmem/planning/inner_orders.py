"""Orders of loops' bodies and other callees that save nothing are given back.

XLA:CPU runs instructions at once that share no memory, and on GPUs its order
hides latency. Both are lost where a body runs in another order for fewer bytes,
which are needless where the program's peak lies elsewhere
(docs/how-it-works.md).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxmem_hlo.assignment import AssignmentModel

from jaxmem.planning.decision import Decision, ModulePlan, PlannedModule
from jaxmem.planning.trials import Trials


def without_needless[D: Decision](
  planned: PlannedModule[D],
) -> PlannedModule[D]:
  """Returns a plan of as few bytes in which more callees keep XLA's order.

  Args:
    planned: A plan that nothing edits any more.
  """
  given, decision = planned.given, planned.decision
  base = decision if isinstance(decision, ModulePlan) else decision.base
  own = {
    callee: tuple(i.id for i in given.schedule(callee))
    for callee in base.orders
    if callee != given.entry.id
  }
  if not own:
    return planned
  trials = Trials(planned.model, decision.planned_bytes, keeps_savings=False)
  trials.adopt(own)
  if not trials.adopted:
    return planned
  orders = {
    c: order for c, order in base.orders.items() if c not in trials.adopted
  }
  changed: dict[str, Any] = {"orders": orders}
  if not isinstance(decision, ModulePlan):
    base = dataclasses.replace(base, orders=orders)
    ordered = AssignmentModel(base.apply(given), base.platform)
    base = dataclasses.replace(base, planned_bytes=ordered.temp_bytes())
    changed = {"base": base}
  return PlannedModule.of(
    given,
    dataclasses.replace(decision, planned_bytes=trials.num_bytes, **changed),
  )
