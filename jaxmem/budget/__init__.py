"""Recompute and offload: what to give up so that a step fits a byte limit."""

from jaxmem.budget import lower_bound, offload
from jaxmem.budget.chooser import RUNG, Choice, Chooser, Effort
from jaxmem.budget.greedy import Start
from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit
from jaxmem.budget.profile import Event

__all__ = [
  "RUNG",
  "BudgetProblem",
  "Choice",
  "Chooser",
  "Effort",
  "Event",
  "OffloadRates",
  "Start",
  "Step",
  "StoredValue",
  "Unit",
  "lower_bound",
  "offload",
]
