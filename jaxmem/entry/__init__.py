"""How programs reach the planner: jaxmem.jit, jaxmem.enable, a script's run."""

from jaxmem.entry.enabling import PLANNED, Enabled, disable, enable
from jaxmem.entry.memory import MemoryLimit
from jaxmem.entry.pictures import Facts, Pictures, main_figures
from jaxmem.entry.policy import Only, Policy
from jaxmem.entry.records import CompileRecord, table

__all__ = [
  "PLANNED",
  "CompileRecord",
  "Enabled",
  "Facts",
  "MemoryLimit",
  "Only",
  "Pictures",
  "Policy",
  "disable",
  "enable",
  "main_figures",
  "table",
]
