"""How programs reach the planner: jaxmem.jit, jaxmem.enable, a script's run."""

from jaxmem.entry.enabling import Enabled, disable, enable
from jaxmem.entry.memory import MemoryLimit
from jaxmem.entry.policies import PLANNED
from jaxmem.entry.policy import Only, Policy
from jaxmem.entry.records import CompileRecord, table, table_cells

__all__ = [
  "PLANNED",
  "CompileRecord",
  "Enabled",
  "MemoryLimit",
  "Only",
  "Policy",
  "disable",
  "enable",
  "table",
  "table_cells",
]
