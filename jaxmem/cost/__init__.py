"""What instructions cost: operations, bytes, and seconds on a device."""

from jaxmem.cost.copies import StepTime, schedule_seconds, step_time
from jaxmem.cost.rates import CPU, DATA_SHEETS, Rates, for_target
from jaxmem.cost.roofline import Cost, instruction_costs

__all__ = [
  "CPU",
  "DATA_SHEETS",
  "Cost",
  "Rates",
  "StepTime",
  "for_target",
  "instruction_costs",
  "schedule_seconds",
  "step_time",
]
