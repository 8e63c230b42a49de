"""Plans the memory of a JAX train step and makes XLA run the plan."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxmem.version import __version__

if TYPE_CHECKING:
  from jaxmem.api import jit, plan
  from jaxmem.batch import BatchPlan, max_batch
  from jaxmem.entry import disable, enable
  from jaxmem.errors import InfeasibleError, PlanningError
  from jaxmem.options import Options
  from jaxmem.report import Plan
  from jaxmem.runtime import on_host, to_host
  from jaxmem.targets import devices

__all__ = [
  "BatchPlan",
  "InfeasibleError",
  "Options",
  "Plan",
  "PlanningError",
  "__version__",
  "devices",
  "disable",
  "enable",
  "jit",
  "max_batch",
  "on_host",
  "plan",
  "to_host",
]

# Where each public name is. They are imported when they are asked for: `python
# -m jaxmem run` must not import jax before the script has set what jax reads.
_HOMES = {
  "BatchPlan": "batch",
  "InfeasibleError": "errors",
  "Options": "options",
  "Plan": "report",
  "PlanningError": "errors",
  "devices": "targets",
  "disable": "entry",
  "enable": "entry",
  "jit": "api",
  "max_batch": "batch",
  "on_host": "runtime",
  "plan": "api",
  "to_host": "runtime",
}


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
  globals()[name] = value = getattr(home, name)
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
