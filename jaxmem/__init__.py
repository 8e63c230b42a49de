"""Plans the memory of a JAX train step and makes XLA run the plan."""

from jaxmem.api import jit, plan
from jaxmem.options import Options
from jaxmem.plan import InfeasibleError, Plan
from jaxmem.version import __version__

__all__ = [
  "InfeasibleError",
  "Options",
  "Plan",
  "__version__",
  "jit",
  "plan",
]
