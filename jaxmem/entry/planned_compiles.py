"""How programs come to be planned, and run as planned.

When jax lowers a program under a limit, versions of it are compiled up to their
schedules, and the cheapest that fits is lowered in its place. When XLA
compiles, the hook plans what XLA scheduled. Afterwards XLA's own figures are
compared with the limit, and with what its own plan takes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core
from jaxmem_hlo import compiler_hook

from jaxmem import units
from jaxmem.compiler import (
  LoweredStep,
  ScheduleCapture,
  jax_doors,
  processes,
  programs,
)
from jaxmem.entry.agreement import Agreement
from jaxmem.entry.finished_compile import FinishedCompile
from jaxmem.entry.one_compile import Asked, Compile, program_bytes
from jaxmem.entry.policies import PLANNED, Policies
from jaxmem.entry.policy import Policy
from jaxmem.entry.records import CompileRecord
from jaxmem.entry.remembered import ProgramPlans
from jaxmem.errors import InfeasibleError, PlanningError
from jaxmem.planning import Request
from jaxmem.targets import DeviceGroup
from jaxmem.versions import pick


class PlannedCompiles:
  """The compiles of a process that are planned.

  Args:
    policies: Who asks, and who is told what became of them.
  """

  def __init__(self, policies: Policies):
    self._policies = policies
    self._lock = threading.Lock()
    # By program as written, policy and limit: the version, and its option.
    self._picked: dict[tuple[int, str, int], tuple[core.Jaxpr, str, Asked]] = {}
    # By option, once for each program that was lowered with it.
    self._asked: dict[str, list[Asked]] = {}
    # By option: what was compiled when its program was lowered.
    self._finished: dict[str, FinishedCompile] = {}
    self._numbers = itertools.count()
    self._compiles: list[Compile] = []
    # How many programs of a name were compiled for several processes.
    self._shared: dict[str, int] = {}

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
      asked = Asked(policy=policy, request=request, plans=plans)
    finished = self._finished.pop(compiling.option, None)
    if finished is not None and not finished.compiling.is_as(compiling):
      finished = None
    return self._compile(compiling, asked, finished)

  def lower(self, lowering: jax_doors.Lowering, policy: Policy) -> Any:
    """Lowers the version of a program that fits its policy's limit."""
    start = time.perf_counter()
    assert policy.limit is not None
    option = f"{policy.tag}n{next(self._numbers)}{jax_doors.AS_SCHEDULED}"
    step = LoweredStep(lowering, lowering.jaxpr, option)
    as_written = step.lowered
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
    if key in self._picked:
      jaxpr, option, asked = self._picked[key]
      lowered = lowering.lower(jaxpr, option)
    else:
      plans = ProgramPlans.of(as_written, lowering, request)
      step, asked = self._pick(step, policy, request, plans, start)
      self._picked[key] = step.jaxpr, option, asked
      weakref.finalize(program, self._picked.pop, key, None)
      lowered = step.lowered
    self._asked.setdefault(option, []).append(asked)
    weakref.finalize(lowered, self._forget, option)
    return lowered

  def _forget(self, option: str) -> None:
    """Drops what one of the programs lowered with an option was asked."""
    self._asked[option].pop()
    self._finished.pop(option, None)
    if not self._asked[option]:
      del self._asked[option]

  def _pick(
    self,
    step: LoweredStep,
    policy: Policy,
    request: Request,
    plans: ProgramPlans,
    start: float,
  ) -> tuple[LoweredStep, Asked]:
    """Finds the version that fits, and what its compile is asked.

    Compiles it, too, where its compile waits at the schedule: jax asks for it
    as soon as it has what is lowered, or never.
    """
    name = step.lowering.name
    with ScheduleCapture(request) as schedules:
      try:
        version = plans.recall(step)
        if version is None:
          version, decided = pick(step, schedules, request)
          plans.picked(version, schedules.platform, decided)
      except Exception as error:
        seconds = time.perf_counter() - start
        why_not = f"{type(error).__name__}: {error}".split(": the ")[0]
        self._policies.records.add(
          CompileRecord.failed(name, request.limit_bytes, seconds, why_not)
        )
        if isinstance(error, InfeasibleError):
          raise
        raise PlanningError.under_limit(name, error) from error
      asked = Asked(
        policy=policy,
        request=request,
        plans=plans,
        function=name,
        planning_s=time.perf_counter() - start,
        xla_bytes=version.xla_bytes,
        is_rewritten=version.step is not step,
      )
      assert isinstance(version.step, LoweredStep)
      finished = FinishedCompile.of(schedules.held(version.step), asked)
    if finished is not None:
      assert version.step.option is not None
      self._finished[version.step.option] = finished
    return version.step, asked

  # A compile.

  def _compile(
    self,
    compiling: jax_doors.Compiling,
    asked: Asked,
    finished: FinishedCompile | None,
  ) -> Any:
    start = time.perf_counter()
    executable = None
    if finished is None:
      compile_ = Compile(asked, compiling.name, self._agreement(compiling))
    else:
      compile_ = finished.compile_
      start -= finished.seconds
    try:
      if finished is None:
        with self._shown(compile_):
          executable = asked.plans.compiled(lambda: compiling.run(asked.tag))
          compile_.end()
      else:
        executable = finished.executable()
      own = executable
      executable = self._kept(compiling, compile_, own)
      asked.plans.keep()
      if asked.policy.options.keep_arena:
        programs.remember(compiling, asked.tag if executable is own else None)
      return executable
    except jax.errors.JaxRuntimeError as error:
      if compile_.error is not None:
        raise compile_.error from None
      why = compile_.why_left_to_xla(error)
      if not why:
        raise
      executable = self._unplanned(compiling, compile_, why)
      return executable
    finally:
      seconds = time.perf_counter() - start + asked.planning_s
      record = compile_.record(executable, seconds)
      self._policies.records.add(record, compile_.planned)
      self._tell(compile_)

  def _agreement(self, compiling: jax_doors.Compiling) -> Agreement | None:
    """Returns what lets the processes agree that a program runs in."""
    members = processes.spanned(compiling.devices)
    if not members:
      return None
    with self._lock:
      number = self._shared.get(compiling.name, 0)
      self._shared[compiling.name] = number + 1
    return Agreement(compiling.name, number, members)

  def _unplanned(
    self, compiling: jax_doors.Compiling, compile_: Compile, why: str
  ) -> Any:
    """Compiles to XLA's own plan, or not at all under a limit."""
    compile_.fault = PlanningError(why)
    compile_.why_not, compile_.planned = why, None
    if compile_.is_limited:
      raise PlanningError.under_limit(
        compile_.function, compile_.fault
      ) from None
    with compiler_hook.taken_out():
      return compiling.run(None)

  @contextlib.contextmanager
  def _shown(self, compile_: Compile) -> Iterator[None]:
    """Has XLA show the module to a compile while it is under way."""
    tag = compile_.asked.tag

    def answer(data: bytes, platform: str) -> bytes | None:
      return self._of_thread(tag).answer(data, platform)

    try:
      with self._lock:
        self._compiles.append(compile_)
      compiler_hook.add_handler(tag, answer)
      with compiler_hook.installed():
        yield
    finally:
      try:
        self._end(compile_)
      except BaseException:  # Such as Ctrl-C: nothing must stay behind.
        self._end(compile_)
        raise

  def _end(self, compile_: Compile) -> None:
    """Forgets a compile that is over, and its handler if no other has it."""
    tag = compile_.asked.tag
    with self._lock:
      self._compiles = [c for c in self._compiles if c is not compile_]
      if not any(c.asked.tag == tag for c in self._compiles):
        compiler_hook.remove_handler(tag)

  def _of_thread(self, tag: str) -> Compile:
    """Returns the compile that XLA shows a module of.

    XLA calls back in the thread that compiles. If another version does not,
    what is alike is planned alike, whichever compile it is put down to.
    """
    with self._lock:
      alike = [c for c in self._compiles if c.asked.tag == tag]
    thread = threading.get_ident()
    # The latest: an interrupt may have ended one where it was to be forgotten.
    own = [c for c in alike if c.thread == thread]
    return (own or alike)[-1]

  def _kept(
    self, compiling: jax_doors.Compiling, compile_: Compile, executable: Any
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
    total_bytes = program_bytes(memory)
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

  def _tell(self, compile_: Compile) -> None:
    if compile_.is_limited or compile_.fault is None:
      return
    self._policies.warn_once(
      f"planning {compile_.function}",
      f"jaxmem could not plan {compile_.function} and left it to XLA's own"
      f" plan: {compile_.why_not}. Results are not affected.",
    )


COMPILES = PlannedCompiles(PLANNED)
