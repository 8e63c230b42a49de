"""One call of `jaxmem.plan`: two compiles of a step, and what they showed."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jaxlib.version
from jaxmem_hlo import replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module
from jaxmem_hlo.proto import hlo_pb2

from jaxmem import cost, targets
from jaxmem.compiler import (
  ScheduleCapture,
  Step,
  TracedStep,
  compile_and_read,
  handling,
  is_called,
  jax_doors,
  lowered_by_itself,
)
from jaxmem.planning import (
  Answers,
  DecidedModule,
  Decision,
  LimitPlan,
  ModulePlan,
  OwnPlan,
  PlannedModule,
  Request,
  plan_frontier,
)
from jaxmem.report import (
  Budget,
  Frontier,
  HostTraffic,
  LimitShare,
  PeakRow,
  Plan,
  Progress,
  Status,
  ValueOrigins,
  communication_of,
  donation,
  layout,
  origins_in,
  peak_rows,
  replicated,
  resharded,
  signature,
  time_steps,
)
from jaxmem.version import __version__
from jaxmem.versions import (
  Version,
  cost_of_limit,
  pick,
  small_planners,
  smallest_bytes,
)

_VERSIONS = {
  "jax": jax.__version__,
  "jaxlib": jaxlib.version.__version__,
  "jaxmem": __version__,
}


# Of the temporaries: what tables of tuples take on GPUs at the most, of which
# the model may miss some.
_TABLES = 1e-4


class StepPlanner:
  """Plans one step, and measures the plan.

  Args:
    fun: The step.
    jit_kwargs: What jax.jit is to be called with.
    request: What is asked of the planner.
    share: What its limit is a share of, if it is one.
  """

  def __init__(
    self,
    fun: Callable[..., Any],
    jit_kwargs: dict[str, Any],
    request: Request,
    share: LimitShare | None = None,
  ):
    self._fun = fun
    self._jit_kwargs = jit_kwargs
    self._request = request
    self._share = share

  def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """Compiles the step with and without the plan, and compares.

    Args:
      args: The step's positional arguments.
      kwargs: Its keyword arguments.

    Raises:
      InfeasibleError: If no plan meets the request's limit.
      RuntimeError: If the step cannot be planned.
    """
    progress = Progress()
    start = time.perf_counter()
    try:
      progress.show("compiling XLA's own plan")
      step = self._trace(args, kwargs)
      with ScheduleCapture(self._request) as schedules:
        baseline = self._compile_baseline(step, schedules)
        progress.show("planning and compiling the plan")
        version, decided = pick(step, schedules, self._request)
        answers = Answers(self._request, decided)
        compiled = schedules.finish(version.step, answers)
    finally:
      progress.close()
    seconds = time.perf_counter() - start
    planned = answers.planned()
    decision = planned.decision
    if isinstance(decision, ModulePlan) and _is_larger(compiled, baseline):
      planned = PlannedModule.of(planned.given, decision.as_given())
      compiled = baseline
    name = getattr(self._fun, "__name__", type(self._fun).__name__)
    signed, names = None, {}
    if self._is_caught(args, kwargs):
      # The module knows the function's name, and perhaps the arguments'.
      name = planned.given.name.removeprefix("jit_")
      names = signature.argument_names(planned.given, self._fun, args, kwargs)
    else:
      signed = signature.read(compiled, self._fun, self._jit_kwargs)
    program = _Program(
      name=name,
      request=self._request,
      written=step,
      step=version.step,
      planned=planned,
      argument_names=names,
      output_paths=() if signed is None else signed.output_paths,
    )
    is_limited = isinstance(planned.decision, LimitPlan)
    module = schedules.module(step) if is_limited else planned.given
    before = program.layout(AssignmentModel(module, decision.platform))
    memory, executable = _memory(compiled), baseline.runtime_executable()
    own = OwnPlan.of(executable, module, before.temp_bytes)
    budget = None
    if is_limited:
      budget = self._budget(planned, version, own, memory)
    advice = donation.advise(planned.given, signed, names)
    return _result(
      *(program, own, before, compiled, budget, advice, seconds),
      arguments=(args, kwargs),
    )

  def _budget(
    self,
    planned: PlannedModule[Decision],
    version: Version,
    own: OwnPlan,
    memory: Any,
  ) -> Budget:
    device = self._request.device(planned.decision.platform)
    temps = own.scheduled_bytes, memory.temp_size_in_bytes
    budget = cost_of_limit(planned, version, own.scheduled, device, *temps)
    return dataclasses.replace(budget, share=self._share)

  def smallest_bytes(self, args: tuple[Any, ...]) -> int:
    """Returns the bytes of the smallest program that is found for the step.

    Compiles up to the schedule: once, and again with all that loops stack
    dropped, if there is any.

    Args:
      args: The step's positional arguments.
    """
    step = self._trace(args, {})
    schedules = ScheduleCapture(self._request)
    return smallest_bytes(step, schedules, self._request)

  def _is_caught(self, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Whether the step has to be caught where jax lowers it."""
    if jax_doors.is_jitted(self._fun):
      return False
    if hasattr(self._fun, "lower"):
      return True
    return not self._jit_kwargs and is_called((args, kwargs))

  def _trace(self, args: tuple[Any, ...], kwargs: Any) -> Step:
    target = self._request.target
    if self._is_caught(args, kwargs):
      return lowered_by_itself(self._fun, args, kwargs, target)

    @functools.wraps(self._fun)
    def step(*args: Any, **kwargs: Any) -> Any:
      return self._fun(*args, **kwargs)

    # A new function: jax remembers what others did when they were traced, and
    # a step may look at the device.
    jitted = self._fun
    if not jax_doors.is_jitted(jitted):
      jitted = jax.jit(step, **self._jit_kwargs)
    return TracedStep(targets.trace(jitted, args, kwargs, target), target)

  def _compile_baseline(
    self, step: Step, schedules: ScheduleCapture
  ) -> jax.stages.Compiled:
    """Compiles the step as `jax.jit` does on the device planned for."""
    target = self._request.target
    is_here = target is None or target.platform == "cpu"
    if is_here and self._request.limit_bytes is None:
      # Nobody needs to see it: it may come from jax's compilation cache.
      return step.compile({})
    return schedules.compiled(step)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Program:
  """A planned step, as `Plan` calls it; see `report.PlannedProgram`.

  Attributes:
    name: The function's name.
    request: What was asked of the planner.
    written: The step as it is written.
    step: The version of it that was planned.
    planned: Its module.
    argument_names: What the module calls arguments -> better names, if any.
    output_paths: Where in the result each output lies; empty if not known.
  """

  name: str
  request: Request
  written: Step
  step: Step
  planned: PlannedModule[Decision]
  argument_names: Mapping[str, str]
  output_paths: Sequence[str]

  @property
  def target(self) -> str:
    """The name of the device planned for."""
    return self.request.device_name

  def layout(self, model: AssignmentModel) -> layout.Layout:
    """Returns where every value of a version of its module lives."""
    return layout.describe(model.module, model.assign(), self.origins(model))

  def origins(self, model: AssignmentModel) -> ValueOrigins:
    """Returns where the values of a version of its module come from."""
    return origins_in(model, self.argument_names)

  def replay(self) -> replay.ReplayReport:
    """Compiles the plan again and replays it on XLA's real assignment."""
    real = self._compile_again()
    module, platform = Module(real.hlo_module), self.planned.decision.platform
    return replay.check_assignment(module, real.buffer_assignment, platform)

  def compiled(self) -> dict[str, hlo_pb2.CompiledModule]:
    """Compiles XLA's own plan and this one again, each with its buffers."""
    own, planned = compile_and_read(self.written, {}), self._compile_again()
    return {f"{self.name}.xla": own, f"{self.name}.jaxmem": planned}

  def _compile_again(self) -> hlo_pb2.CompiledModule:
    given, decision = self.planned.given, self.planned.decision
    decided = DecidedModule.of(given, decision.platform, decision)
    answers = Answers(self.request, decided)
    as_scheduled = self.request.runs_as_scheduled
    with handling(answers, as_scheduled=as_scheduled) as options:
      real = compile_and_read(self.step, options)
    answers.planned()  # What XLA did without a plan says nothing.
    return real

  def frontier(self, limits: Sequence[int] | None) -> Frontier:
    """Plans for several limits, in bytes; None chooses some."""
    schedules = ScheduleCapture(self.request)
    planners = [*small_planners(self.written, schedules, self.request)]
    return plan_frontier(planners, limits, self.name, self.target)


def _result(
  program: _Program,
  own: OwnPlan,
  before: layout.Layout,
  compiled: jax.stages.Compiled,
  budget: Budget | None,
  advice: tuple[donation.DonationAdvice, ...],
  compile_s: float,
  arguments: Any,
) -> Plan:
  planned = program.planned
  decision = planned.decision
  ordered = decision.base if isinstance(decision, LimitPlan) else decision
  memory = _memory(compiled)
  temp_bytes = memory.temp_size_in_bytes
  missed = max(own.missed_bytes, abs(temp_bytes - decision.planned_bytes))
  num_again = planned.num_rematerialized(compiled.runtime_executable())
  is_known = missed <= _TABLES * own.scheduled_bytes and not num_again
  bound = decision.lower_bound_bytes if is_known else 0
  after = program.layout(planned.model)
  rates = program.request.device(decision.platform).rates
  return Plan(
    name=program.name,
    target=program.target,
    status=_status(program, is_exact=not missed),
    method=ordered.method,
    is_order_proved=ordered.search_proved,
    baseline_temp_bytes=own.temp_bytes,
    temp_bytes=temp_bytes,
    predicted_temp_bytes=decision.planned_bytes,
    baseline_predicted_bytes=own.predicted_bytes,
    baseline_num_rematerialized=own.num_rematerialized,
    lower_bound_bytes=min(bound, temp_bytes),
    num_rematerialized=num_again,
    argument_bytes=memory.argument_size_in_bytes,
    output_bytes=memory.output_size_in_bytes,
    alias_bytes=memory.alias_size_in_bytes,
    num_instructions=ordered.num_instructions,
    num_removed_copies=len(ordered.removed_copies),
    kept_copy_bytes=dict(ordered.kept_copy_bytes),
    num_pinned=ordered.num_pinned,
    planning_s=decision.seconds,
    compile_s=compile_s,
    versions=dict(_VERSIONS),
    budget=budget,
    host=_host(planned, memory, rates),
    communication=communication_of(planned.module, rates),
    baseline_communication=communication_of(own.scheduled, rates),
    replicated=replicated(arguments),
    resharded=resharded(planned.module, planned.model.assign(), after),
    order=planned.order,
    donation=advice,
    peak=_peak(program, memory),
    before=before,
    after=after,
    baseline_timing=time_steps(own.scheduled, rates, before.num_steps),
    timing=time_steps(planned.module, rates, after.num_steps),
    program=program,
  )


def _peak(program: _Program, memory: Any) -> tuple[PeakRow, ...]:
  total_bytes = memory.argument_size_in_bytes + memory.output_size_in_bytes
  total_bytes += memory.temp_size_in_bytes - memory.alias_size_in_bytes
  model = program.planned.model
  return peak_rows(
    program.origins(model),
    model.assign(),
    output_paths=program.output_paths,
    total_bytes=total_bytes,
  )


def _is_larger(
  compiled: jax.stages.Compiled, baseline: jax.stages.Compiled
) -> bool:
  """Whether a plan takes more than XLA's own, whatever was predicted."""
  planned, own = _memory(compiled), _memory(baseline)
  return planned.temp_size_in_bytes > own.temp_size_in_bytes


def _memory(compiled: jax.stages.Compiled) -> Any:
  memory = compiled.memory_analysis()
  if memory is None:
    raise RuntimeError(
      "XLA reports no memory figures for this platform; plan for the CPU or an"
      " NVIDIA GPU."
    )
  return memory


def _status(program: _Program, *, is_exact: bool) -> Status:
  decision = program.planned.decision
  if isinstance(decision, LimitPlan):
    # What runs twice is chosen, not proven to be the best choice.
    is_edited = bool(decision.edits) or program.step is not program.written
    status = "feasible" if is_edited else decision.base.status
  else:
    status = decision.status
  if status == "optimal" and not is_exact:
    # What was proven, was proven of a prediction that XLA did not confirm.
    return "feasible" if decision.is_changed else "baseline"
  return status


def _host(
  planned: PlannedModule[Decision], memory: Any, rates: cost.Rates
) -> HostTraffic | None:
  argument_bytes = memory.host_argument_size_in_bytes
  run = cost.step_time(planned.module, rates)
  if not (argument_bytes or run.to_host_bytes or run.from_host_bytes):
    return None
  return HostTraffic(
    argument_bytes=argument_bytes,
    to_host_bytes=run.to_host_bytes,
    from_host_bytes=run.from_host_bytes,
    step_s=run.seconds,
    waiting_s=run.waiting_s,
  )
