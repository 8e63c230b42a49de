"""XLA's compiler from outside: marked steps, schedules, dumps of compiles."""

from jaxmem.compiler.mark import handling, marked
from jaxmem.compiler.schedules import ScheduleCapture
from jaxmem.compiler.xla_dump import compile_and_read

__all__ = ["ScheduleCapture", "compile_and_read", "handling", "marked"]
