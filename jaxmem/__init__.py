"""Plans the memory of a JAX train step and makes XLA run the plan."""

from jaxmem.api import jit, plan
from jaxmem.batch import BatchPlan, max_batch
from jaxmem.entry import disable, enable
from jaxmem.errors import InfeasibleError, PlanningError
from jaxmem.options import Options
from jaxmem.report import Plan
from jaxmem.runtime import on_host, to_host
from jaxmem.version import __version__

__all__ = [
  "BatchPlan",
  "InfeasibleError",
  "Options",
  "Plan",
  "PlanningError",
  "__version__",
  "disable",
  "enable",
  "jit",
  "max_batch",
  "on_host",
  "plan",
  "to_host",
]
