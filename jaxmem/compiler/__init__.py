"""XLA's compiler from outside: jax's doors, schedules, dumps of compiles."""

from jaxmem.compiler import jax_doors, processes, programs
from jaxmem.compiler.capture import arrays_in, is_called, lowered_by_itself
from jaxmem.compiler.handling import handling
from jaxmem.compiler.held_compile import HeldCompile
from jaxmem.compiler.lowered_step import LoweredStep, most_bytes
from jaxmem.compiler.schedules import ScheduleCapture
from jaxmem.compiler.steps import Step, TracedStep
from jaxmem.compiler.xla_dump import compile_and_read

__all__ = [
  "HeldCompile",
  "LoweredStep",
  "ScheduleCapture",
  "Step",
  "TracedStep",
  "arrays_in",
  "compile_and_read",
  "handling",
  "is_called",
  "jax_doors",
  "lowered_by_itself",
  "most_bytes",
  "processes",
  "programs",
]
