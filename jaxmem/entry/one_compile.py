"""One compile that is planned: what is asked, shown by XLA, and came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxmem_hlo import compiler_hook
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import units
from jaxmem.compiler import jax_doors
from jaxmem.entry.agreement import Agreement, Told
from jaxmem.entry.policy import Policy
from jaxmem.entry.records import CompileRecord
from jaxmem.entry.remembered import ProgramPlans
from jaxmem.errors import InfeasibleError, PlanningError
from jaxmem.planning import (
  Decision,
  PlannedModule,
  Request,
  fingerprint,
)

# The prediction of XLA's own plan may miss by so many times what jaxmem's did.
_MISSES_ALIKE = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
  """What is asked of one compile.

  Attributes:
    policy: Whose program it is.
    request: What the planner is asked.
    plans: Its answers; one may have been made when the program was lowered.
    function: The function's name; empty if it is to be read from the module's.
    planning_s: Wall seconds that this took.
    xla_bytes: Of the program by XLA's own plan, where versions were compared.
    is_rewritten: Whether another version than the written one is compiled.
  """

  policy: Policy
  request: Request
  plans: ProgramPlans
  function: str = ""
  planning_s: float = 0.0
  xla_bytes: int | None = None
  is_rewritten: bool = False

  @property
  def tag(self) -> str:
    """What jax's persistent cache knows the program by, besides itself."""
    limit_bytes = self.request.limit_bytes
    limit = "" if limit_bytes is None else f"x{limit_bytes}"
    return f"{self.policy.tag}{limit}"


class Compile:
  """One compile: answers the hook, and keeps what it saw.

  Args:
    asked: What is asked.
    module_name: "jit_train_step".
    agreement: With the other processes that it runs in, if there are any.
  """

  def __init__(
    self, asked: Asked, module_name: str, agreement: Agreement | None
  ):
    self.asked = asked
    self._agreement = agreement
    self.function = asked.function or module_name.removeprefix("jit_")
    self.thread = threading.get_ident()
    self.planned: PlannedModule[Decision] | None = None
    self.planning_s = asked.planning_s
    self.why_not = ""
    self.is_answered = False
    self.error: BaseException | None = None
    self.fault: Exception | None = None

  @property
  def is_limited(self) -> bool:
    """Whether the program must not run where it takes more than a limit."""
    return self.asked.request.limit_bytes is not None

  def answer(self, data: bytes, platform: str) -> bytes | None:
    """Answers as `compiler_hook.Handler` says; keeps what goes wrong."""
    start = time.perf_counter()
    answer = self._attempt(lambda: self._answer(data, platform))
    if self._agreement is not None:
      answer = self._attempt(lambda: self._agreed(data, platform, answer))
    self.planning_s += time.perf_counter() - start
    if self.error is None:
      self.is_answered = answer is not None
      return answer
    raise compiler_hook.CompileRefusedError("jaxmem says why.")

  def _attempt(self, answering: Callable[[], bytes | None]) -> bytes | None:
    """Answers; keeps what goes wrong, and leaves the module as it is then."""
    try:
      return answering()
    except InfeasibleError as error:
      self.error = error
    except Exception as error:
      self.fault = error
      self.why_not = f"{type(error).__name__}: {error}"
      if self.is_limited:
        self.error = PlanningError.under_limit(self.function, error)
    except BaseException as error:  # Such as KeyboardInterrupt.
      self.error = error
    return None

  def _agreed(
    self, data: bytes, platform: str, answer: bytes | None
  ) -> bytes | None:
    """Returns the answer if all processes give the same, None if not."""
    assert self._agreement is not None
    given, planned = (
      fingerprint(Module.from_bytes(each), platform).hex()
      for each in (data, answer or data)
    )
    told = Told(
      given=given,
      planned=planned,
      error="" if self.error is None else str(self.error),
    )
    try:
      if self._agreement.settle(told):
        return answer
    except PlanningError as error:
      self.error = self.error or error
      return None
    raise PlanningError("another process left it to XLA's own plan")

  def why_left_to_xla(self, error: Exception) -> str:
    """Says why XLA's own plan is to be compiled after XLA failed.

    Args:
      error: What XLA said.

    Returns:
      Empty if that would fail, too, or if other processes run the plan.
    """
    if jax_doors.is_too_large(error):
      return jax_doors.TOO_LARGE
    if not self.is_answered or self._agreement is not None:
      return ""
    first_line = str(error).partition("\n")[0]
    return f"XLA refused the plan ({first_line}); please report it"

  def end(self) -> None:
    """Tells other processes if XLA showed nothing, as a cache had it."""
    if self._agreement is not None and not self._agreement.has_told:
      self._agreement.tell(Told())

  def _answer(self, data: bytes, platform: str) -> bytes | None:
    request, min_bytes = self.asked.request, self.asked.policy.min_bytes
    module, is_changed = request.read(data, platform)
    if min_bytes:
      assignment = AssignmentModel(module, platform).assign()
      if assignment.program_bytes < min_bytes:
        self.why_not = f"smaller than {units.format_bytes(min_bytes)}"
        return module.to_bytes() if is_changed else None
    self.planned = self.asked.plans.decide(module, platform)
    decision = self.planned.decision
    if not (decision.is_changed or self.asked.is_rewritten):
      self.why_not = "XLA's own order is kept"
    if not (is_changed or decision.is_changed):
      return None
    return self.planned.module.to_bytes()

  def should_compare(self, temp_bytes: int) -> bool:
    """Whether XLA's own plan may take less than what it made of jaxmem's.

    Args:
      temp_bytes: Temporaries of the planned program, by XLA's figures.
    """
    planned = self.planned
    if planned is None or self.is_limited or not planned.decision.is_changed:
      return False
    # Where a prediction missed, that of XLA's own plan may have missed, too,
    # but not by many times as much.
    gained_bytes = planned.decision.baseline_bytes - temp_bytes
    missed_bytes = abs(temp_bytes - planned.planned_bytes)
    is_sure = _MISSES_ALIKE * missed_bytes <= gained_bytes
    return missed_bytes > 0 and not is_sure

  def record(self, executable: Any, total_s: float) -> CompileRecord:
    """Says what became of it, for the table.

    Args:
      executable: What runs; None if nothing does.
      total_s: Wall seconds of all.
    """
    xla_bytes, planned_bytes = self.asked.xla_bytes, None
    num_rematerialized = 0
    if executable is not None:
      memory = executable.get_compiled_memory_stats()
      planned_bytes = program_bytes(memory)
      if xla_bytes is None and self.planned is not None:
        fixed_bytes = planned_bytes - memory.temp_size_in_bytes
        xla_bytes = fixed_bytes + self.planned.decision.baseline_bytes
      if self.planned is not None:
        # A figure of the table must not cost a step that is compiled.
        with contextlib.suppress(Exception):
          num_rematerialized = self.planned.num_rematerialized(executable)
    return CompileRecord(
      function=self.function,
      xla_bytes=xla_bytes,
      planned_bytes=planned_bytes,
      limit_bytes=self.asked.request.limit_bytes,
      planning_s=self.planning_s,
      total_s=total_s,
      why_not=self.why_not or ("" if self.planned else "not shown by XLA"),
      is_remembered=self.asked.plans.is_remembered,
      num_rematerialized=num_rematerialized,
    )


def program_bytes(memory: Any) -> int:
  """Bytes of a whole program: arguments, outputs, temporaries."""
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
  )
