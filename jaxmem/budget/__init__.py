"""Recompute and offload: what to give up so that a step fits a byte limit."""

from jaxmem.budget import lower_bound
from jaxmem.budget.chooser import Choice, Chooser
from jaxmem.budget.greedy import Start
from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit
from jaxmem.budget.profile import Event, Transfer
from jaxmem.budget.seconds_bound import least_seconds

__all__ = [
  "BudgetProblem",
  "Choice",
  "Chooser",
  "Event",
  "OffloadRates",
  "Start",
  "Step",
  "StoredValue",
  "Transfer",
  "Unit",
  "least_seconds",
  "lower_bound",
]
