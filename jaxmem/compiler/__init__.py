"""XLA's compiler from outside: jax's doors, schedules, dumps of compiles."""

from jaxmem.compiler import jax_doors
from jaxmem.compiler.handling import handling
from jaxmem.compiler.schedules import ScheduleCapture
from jaxmem.compiler.steps import Step, TracedStep
from jaxmem.compiler.xla_dump import compile_and_read

__all__ = [
  "ScheduleCapture",
  "Step",
  "TracedStep",
  "compile_and_read",
  "handling",
  "jax_doors",
]
