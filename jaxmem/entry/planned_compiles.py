"""How programs come to be planned, and run as planned.

When jax lowers a program under a limit, versions of it are compiled up to their
schedules, and the cheapest that fits is lowered in its place. When XLA
compiles, the hook plans what XLA scheduled. Afterwards XLA's own figures are
compared with the limit, and with what its own plan takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.assignment import AssignmentModel

from jaxmem import units
from jaxmem.compiler import LoweredStep, ScheduleCapture, jax_doors, programs
from jaxmem.entry.policies import PLANNED, Policies
from jaxmem.entry.policy import Policy
from jaxmem.entry.records import CompileRecord
from jaxmem.entry.remembered import ProgramPlans
from jaxmem.errors import InfeasibleError, PlanningError
from jaxmem.planning import Decision, LimitPlan, PlannedModule, Request
from jaxmem.targets import DeviceGroup
from jaxmem.versions import pick

# The prediction of XLA's own plan may miss by so many times what jaxmem's did.
_MISSES_ALIKE = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Asked:
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


class _Compile:
  """One compile: answers the hook, and keeps what it saw.

  Args:
    asked: What is asked.
    module_name: "jit_train_step".
  """

  def __init__(self, asked: _Asked, module_name: str):
    self.asked = asked
    self.function = asked.function or module_name.removeprefix("jit_")
    self.thread = threading.get_ident()
    self.planned: PlannedModule[Decision] | None = None
    self.planning_s = asked.planning_s
    self.why_not = ""
    self.error: BaseException | None = None
    self.fault: Exception | None = None

  @property
  def is_limited(self) -> bool:
    """Whether the program must not run where it takes more than a limit."""
    return self.asked.request.limit_bytes is not None

  def answer(self, data: bytes, platform: str) -> bytes | None:
    """Answers as `compiler_hook.Handler` says; keeps what goes wrong."""
    start = time.perf_counter()
    try:
      return self._answer(data, platform)
    except InfeasibleError as error:
      self.error = error
    except Exception as error:
      self.fault = error
      self.why_not = f"{type(error).__name__}: {error}"
      if not self.is_limited:
        return None
      self.error = PlanningError.under_limit(self.function, error)
    except BaseException as error:  # Such as KeyboardInterrupt.
      self.error = error
    finally:
      self.planning_s += time.perf_counter() - start
    raise compiler_hook.CompileRefusedError("jaxmem says why.")

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
    # but not by many times as much. Branches that write in place are not always
    # predicted right.
    gained_bytes = _xla_temp_bytes(planned.decision) - temp_bytes
    missed_bytes = abs(temp_bytes - planned.planned_bytes)
    is_sure = _MISSES_ALIKE * missed_bytes <= gained_bytes
    return planned.has_branches or (missed_bytes > 0 and not is_sure)

  def record(self, executable: Any, total_s: float) -> CompileRecord:
    """Says what became of it, for the table.

    Args:
      executable: What runs; None if nothing does.
      total_s: Wall seconds of all.
    """
    xla_bytes, planned_bytes = self.asked.xla_bytes, None
    if executable is not None:
      memory = executable.get_compiled_memory_stats()
      planned_bytes = _program_bytes(memory)
      if xla_bytes is None and self.planned is not None:
        fixed_bytes = planned_bytes - memory.temp_size_in_bytes
        xla_bytes = fixed_bytes + _xla_temp_bytes(self.planned.decision)
    return CompileRecord(
      function=self.function,
      xla_bytes=xla_bytes,
      planned_bytes=planned_bytes,
      limit_bytes=self.asked.request.limit_bytes,
      planning_s=self.planning_s,
      total_s=total_s,
      why_not=self.why_not or ("" if self.planned else "not shown by XLA"),
      is_remembered=self.asked.plans.is_remembered,
    )


class PlannedCompiles:
  """The compiles of a process that are planned.

  Args:
    policies: Who asks, and who is told what became of them.
  """

  def __init__(self, policies: Policies):
    self._policies = policies
    self._lock = threading.Lock()
    # By program as written, policy and limit: the version, and its option.
    self._picked: dict[
      tuple[int, str, int], tuple[core.Jaxpr, str, _Asked]
    ] = {}
    # By option, once for each program that was lowered with it.
    self._asked: dict[str, list[_Asked]] = {}
    self._numbers = itertools.count()
    self._compiles: list[_Compile] = []

  def compile(self, compiling: jax_doors.Compiling) -> Any:
    """Compiles a program, planned if its policy says so."""
    found = self._asked.get(compiling.option)
    if found:
      asked = found[-1]
    else:
      policy = self._policies.of_option(compiling.option)
      if policy is None or policy.limit is not None:
        raise PlanningError(
          f"{compiling.name} has a memory limit, but was not lowered for the"
          " devices that it is compiled for; lower it without platforms."
        )
      request = Request(
        options=policy.options, group=DeviceGroup.of(compiling.devices)
      )
      plans = ProgramPlans(request)
      asked = _Asked(policy=policy, request=request, plans=plans)
    return self._compile(compiling, asked)

  def lower(self, lowering: jax_doors.Lowering, policy: Policy) -> Any:
    """Lowers the version of a program that fits its policy's limit."""
    start = time.perf_counter()
    assert policy.limit is not None
    step = LoweredStep(lowering, lowering.jaxpr)
    as_written = step.lower()
    devices = jax_doors.devices(as_written)
    if any(d.platform not in ("cpu", "gpu", "cuda") for d in devices):
      raise PlanningError(
        f"{lowering.name} has a memory limit, but jaxmem plans for CPUs and"
        f" NVIDIA GPUs only, not for {devices[0].platform}."
      )
    limit_bytes = policy.limit.in_bytes(devices, step.argument_bytes)
    request = Request(
      options=policy.options,
      limit_bytes=limit_bytes,
      group=DeviceGroup.of(devices),
    )
    program = jax_doors.program(as_written)
    key = id(program), policy.tag, limit_bytes
    if key not in self._picked:
      plans = ProgramPlans.of(as_written, lowering, request)
      jaxpr, asked = self._pick(step, policy, request, plans, start)
      self._picked[key] = jaxpr, f"{asked.tag}n{next(self._numbers)}", asked
      weakref.finalize(program, self._picked.pop, key, None)
    jaxpr, option, asked = self._picked[key]
    lowered = lowering.lower(jaxpr, option)
    self._asked.setdefault(option, []).append(asked)
    weakref.finalize(lowered, self._forget, option)
    return lowered

  def _forget(self, option: str) -> None:
    """Drops what one of the programs lowered with an option was asked."""
    self._asked[option].pop()
    if not self._asked[option]:
      del self._asked[option]

  def _pick(
    self,
    step: LoweredStep,
    policy: Policy,
    request: Request,
    plans: ProgramPlans,
    start: float,
  ) -> tuple[core.Jaxpr, _Asked]:
    """Finds the version that fits, and what its compile is asked."""
    name = step.lowering.name
    try:
      version = plans.recall(step)
      if version is None:
        schedules = ScheduleCapture(request)
        version, decided = pick(step, schedules, request)
        plans.picked(step, version, schedules.platform, decided)
    except Exception as error:
      seconds = time.perf_counter() - start
      why_not = f"{type(error).__name__}: {error}".split(": the ")[0]
      self._policies.records.add(
        CompileRecord.failed(name, request.limit_bytes, seconds, why_not)
      )
      if isinstance(error, InfeasibleError):
        raise
      raise PlanningError.under_limit(name, error) from error
    asked = _Asked(
      policy=policy,
      request=request,
      plans=plans,
      function=name,
      planning_s=time.perf_counter() - start,
      xla_bytes=version.xla_bytes,
      is_rewritten=version.step is not step,
    )
    return version.step.jaxpr, asked

  # A compile.

  def _compile(self, compiling: jax_doors.Compiling, asked: _Asked) -> Any:
    start = time.perf_counter()
    compile_ = _Compile(asked, compiling.name)
    executable = None
    try:
      with self._shown(compile_):
        executable = asked.plans.compiled(lambda: compiling.run(asked.tag))
      own = executable
      executable = self._kept(compiling, compile_, own)
      asked.plans.keep()
      if asked.policy.options.keep_arena:
        programs.remember(compiling, asked.tag if executable is own else None)
      return executable
    except jax.errors.JaxRuntimeError as error:
      if compile_.error is not None:
        raise compile_.error from None
      if not jax_doors.is_too_large(error):
        raise
      executable = self._unshown(compiling, compile_)
      return executable
    finally:
      seconds = time.perf_counter() - start + asked.planning_s
      record = compile_.record(executable, seconds)
      self._policies.records.add(record, compile_.planned)
      self._tell(compile_)

  def _unshown(self, compiling: jax_doors.Compiling, compile_: _Compile) -> Any:
    """Compiles what XLA cannot show: to its own plan, or not under a limit."""
    compile_.fault = PlanningError(jax_doors.TOO_LARGE)
    compile_.why_not = jax_doors.TOO_LARGE
    if compile_.is_limited:
      raise PlanningError.under_limit(
        compile_.function, compile_.fault
      ) from None
    with compiler_hook.taken_out():
      return compiling.run(None)

  @contextlib.contextmanager
  def _shown(self, compile_: _Compile) -> Iterator[None]:
    """Has XLA show the module to a compile while it is under way."""
    tag = compile_.asked.tag

    def answer(data: bytes, platform: str) -> bytes | None:
      return self._of_thread(tag).answer(data, platform)

    with self._lock:
      self._compiles.append(compile_)
    compiler_hook.add_handler(tag, answer)
    try:
      with compiler_hook.installed():
        yield
    finally:
      with self._lock:
        self._compiles.remove(compile_)
        if not any(c.asked.tag == tag for c in self._compiles):
          compiler_hook.remove_handler(tag)

  def _of_thread(self, tag: str) -> _Compile:
    """Returns the compile that XLA shows a module of.

    XLA calls back in the thread that compiles. If another version does not,
    what is alike is planned alike, whichever compile it is put down to.
    """
    with self._lock:
      alike = [c for c in self._compiles if c.asked.tag == tag]
    thread = threading.get_ident()
    return next((c for c in alike if c.thread == thread), alike[-1])

  def _kept(
    self, compiling: jax_doors.Compiling, compile_: _Compile, executable: Any
  ) -> Any:
    """Returns what is to run: the plan, or XLA's own if that takes less.

    Raises:
      InfeasibleError: If the program is larger than its limit.
    """
    memory = executable.get_compiled_memory_stats()
    if compile_.should_compare(memory.temp_size_in_bytes):
      own = compiling.run(None)
      own_bytes = own.get_compiled_memory_stats().temp_size_in_bytes
      if own_bytes < memory.temp_size_in_bytes:
        compile_.why_not = "XLA's own plan takes less"
        return own
    limit_bytes = compile_.asked.request.limit_bytes
    total_bytes = _program_bytes(memory)
    if limit_bytes is not None and total_bytes > limit_bytes:
      compile_.asked.plans.forget()
      raise InfeasibleError(
        f"{compile_.function} was planned to fit memory_limit"
        f" {units.format_bytes(limit_bytes)}, but XLA made"
        f" {units.format_bytes(total_bytes)} of it. Please report it; a smaller"
        " limit may leave room for the difference.",
        smallest_bytes=total_bytes,
        lower_bound_bytes=0,
      )
    return executable

  def _tell(self, compile_: _Compile) -> None:
    if compile_.is_limited or compile_.fault is None:
      return
    self._policies.warn_once(
      f"planning {compile_.function}",
      f"jaxmem could not plan {compile_.function} and left it to XLA's own"
      f" plan: {compile_.why_not}. Results are not affected.",
    )


COMPILES = PlannedCompiles(PLANNED)


def _program_bytes(memory: Any) -> int:
  """Bytes of a whole program: arguments, outputs, temporaries."""
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
  )


def _xla_temp_bytes(decision: Decision) -> int:
  """Temporaries of XLA's own plan, as predicted."""
  ordered = decision.base if isinstance(decision, LimitPlan) else decision
  return ordered.baseline_bytes
