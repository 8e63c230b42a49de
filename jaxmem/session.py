"""One call of `jaxmem.report.plan`: two compiles, and what they showed."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jaxlib.version
from jaxmem_hlo import compiler_hook, replay
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import cost, targets
from jaxmem.compiler import Capture, mark, xla_dump
from jaxmem.errors import InfeasibleError
from jaxmem.planning import Decided, LimitPlan, Request, apply, frontier
from jaxmem.report import (
  Budget,
  Frontier,
  HostTraffic,
  Plan,
  Progress,
  Status,
  donation,
  layout,
  signature,
)
from jaxmem.version import __version__
from jaxmem.versions import choose


def _memory(compiled: jax.stages.Compiled) -> Any:
  memory = compiled.memory_analysis()
  if memory is None:
    raise RuntimeError(
      "XLA reports no memory figures for this platform; plan for the CPU or an"
      " NVIDIA GPU."
    )
  return memory


@dataclasses.dataclass(kw_only=True)
class _Captured:
  """What the hook saw and decided."""

  module: Module | None = None
  platform: str = ""
  plan: Decided | None = None
  error: Exception | None = None


class Session:
  """One call of `plan`.

  Args:
    fun: The step.
    jit_kwargs: What jax.jit is to be called with.
    request: What is asked of the planner.
  """

  def __init__(
    self,
    fun: Callable[..., Any],
    jit_kwargs: dict[str, Any],
    request: Request,
  ):
    self._fun = fun
    self._jit_kwargs = jit_kwargs
    self._request = request
    self._device = request.target
    self._captured = _Captured()

  def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """Compiles the step with and without the plan, and compares.

    Args:
      args: The step's positional arguments.
      kwargs: Its keyword arguments.

    Raises:
      InfeasibleError: If no plan meets the request's limit.
      RuntimeError: If the step cannot be planned.
    """
    tag = mark.new_tag()
    progress = Progress()
    if self._device is not None and self._device.platform == "cuda":
      self._device.topology()
    compiler_hook.install()
    compiler_hook.add_handler(tag, self._handle)
    start = time.perf_counter()
    try:
      progress.show("compiling XLA's own plan")
      traced = self._trace(args, kwargs)
      capture = self._capture()
      baseline = self._compile_baseline(traced, capture)
      progress.show("planning and compiling the plan")
      variant = choose.pick(traced, capture, self._request)
      planned = self._compile(mark.with_mark(variant.traced, tag))
    finally:
      compiler_hook.remove_handler(tag)
      progress.close()
    seconds = time.perf_counter() - start
    written = functools.partial(capture.module, traced)
    return dataclasses.replace(
      self._result(baseline, planned, variant, written, seconds),
      program=_Program(self, variant.traced),
    )

  def smallest_bytes(self, args: tuple[Any, ...]) -> int:
    """Returns the bytes of the smallest program that is found for the step.

    Compiles up to the schedule: once, and again with all that loops stack
    dropped, if there is any.

    Args:
      args: The step's positional arguments.
    """
    traced = self._trace(args, {})
    return choose.smallest_bytes(traced, self._capture(), self._request)

  def _capture(self) -> Capture:
    options = self._compiler_options()
    return Capture(self._lower, options, self._request)

  def _handle(self, data: bytes, platform: str) -> bytes | None:
    captured = self._captured
    try:
      module, is_changed = self._request.read(data, platform)
      captured.module, captured.platform = module, platform
      captured.plan = self._request.decide(module, platform)
      return apply(module, captured.plan, always=is_changed)
    except Exception as error:  # Reported by plan itself, in _result.
      captured.error = error
      return None

  def _trace(self, args: tuple[Any, ...], kwargs: Any) -> jax.stages.Traced:
    @functools.wraps(self._fun)
    def step(*args: Any, **kwargs: Any) -> Any:
      return self._fun(*args, **kwargs)

    # A new function: jax remembers what others did when they were traced, and
    # a step may look at the device.
    jitted = jax.jit(step, **self._jit_kwargs)
    if self._device is None:
      return jitted.trace(*args, **kwargs)
    return targets.trace(jitted, args, kwargs, self._device)

  def _lower(self, traced: jax.stages.Traced) -> jax.stages.Lowered:
    if self._device is None:
      return traced.lower()
    return targets.lower_traced(traced, self._device)

  def _compiler_options(self) -> dict[str, Any] | None:
    return targets.compile_options(self._device) if self._device else None

  def _compile(self, traced: jax.stages.Traced) -> jax.stages.Compiled:
    lowered = self._lower(traced)
    return lowered.compile(compiler_options=self._compiler_options())

  def _compile_baseline(
    self, traced: jax.stages.Traced, capture: Capture
  ) -> jax.stages.Compiled:
    """Compiles the step as `jax.jit` does on the device planned for."""
    is_here = self._device is None or self._device.platform == "cpu"
    if is_here and self._request.limit_bytes is None:
      # Not marked: it may come from jax's compilation cache.
      return self._compile(traced)
    return capture.compiled(traced)

  def replay(self, traced: jax.stages.Traced) -> replay.ReplayReport:
    """Compiles the plan again and replays it on XLA's real assignment.

    Args:
      traced: The version of the step that was planned.
    """
    tag = mark.new_tag()
    compiler_hook.add_handler(tag, self._request.rewrite)
    try:
      lowered = self._lower(mark.with_mark(traced, tag))
      real = xla_dump.compile_and_read(lowered, self._compiler_options())
    finally:
      compiler_hook.remove_handler(tag)
    return replay.check_assignment(
      Module(real.hlo_module), real.buffer_assignment, self._captured.platform
    )

  def frontier(self, limits: Sequence[int] | None) -> Frontier:
    """Plans for several limits, in bytes; None chooses some."""
    module = self._captured.module
    assert module is not None
    planner = self._request.planner(module, self._captured.platform)
    return frontier.compute(planner, limits, self._name(), self._target())

  def _name(self) -> str:
    return getattr(self._fun, "__name__", type(self._fun).__name__)

  def _target(self) -> str:
    return self._device.name if self._device else jax.default_backend()

  def _result(
    self,
    baseline: jax.stages.Compiled,
    planned: jax.stages.Compiled,
    variant: choose.Variant,
    written: Callable[[], Module],
    compile_s: float,
  ) -> Plan:
    captured = self._captured
    if isinstance(captured.error, InfeasibleError):
      raise captured.error
    if captured.plan is None or captured.module is None:
      raise RuntimeError(
        "The step was compiled, but could not be planned. Its module holds"
        " something jaxmem does not understand; jaxmem.jit would leave it to"
        " XLA's own plan."
      ) from captured.error
    module = captured.module
    model = AssignmentModel(module, captured.platform)
    memory = _memory(planned)
    before = _memory(baseline).temp_size_in_bytes
    after = memory.temp_size_in_bytes
    decided = captured.plan
    is_limited = isinstance(decided, LimitPlan)
    order = decided.base if is_limited else decided
    rates = self._request.rates(captured.platform)
    budget = None
    if is_limited:
      written_s = cost.schedule_seconds(written(), rates)
      budget = _budget(decided, variant, written_s)
    planned_module = decided.apply(module)
    planned_model = AssignmentModel(planned_module, captured.platform)
    return Plan(
      name=self._name(),
      target=self._target(),
      status=_status(decided),
      method=order.method,
      is_order_proved=order.search_proved,
      baseline_temp_bytes=before,
      temp_bytes=after,
      predicted_temp_bytes=decided.planned_bytes,
      baseline_predicted_bytes=order.baseline_bytes,
      lower_bound_bytes=min(decided.lower_bound_bytes, after),
      argument_bytes=memory.argument_size_in_bytes,
      output_bytes=memory.output_size_in_bytes,
      alias_bytes=memory.alias_size_in_bytes,
      num_instructions=order.num_instructions,
      num_removed_copies=len(order.removed_copies),
      kept_copy_bytes=dict(order.kept_copy_bytes),
      num_pinned=order.num_pinned,
      planning_s=decided.seconds,
      compile_s=compile_s,
      versions={
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "jaxmem": __version__,
      },
      budget=budget,
      host=_host(planned_module, memory, rates),
      order=tuple(
        i.name for i in planned_module.schedule(planned_module.entry.id)
      ),
      donation=donation.advise(
        module, signature.read(planned, self._fun, self._jit_kwargs)
      ),
      before=layout.describe(module, model.assign()),
      after=layout.describe(planned_module, planned_model.assign()),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
  """The handle to its program that a plan keeps: a `PlannedProgram`."""

  session: Session
  traced: jax.stages.Traced

  def replay(self) -> replay.ReplayReport:
    """Compiles the plan again and replays it on XLA's real assignment."""
    return self.session.replay(self.traced)

  def frontier(self, limits: Sequence[int] | None) -> Frontier:
    """Plans for several limits, in bytes; None chooses some."""
    return self.session.frontier(limits)


def _status(decided: Decided) -> Status:
  if not isinstance(decided, LimitPlan):
    return decided.status
  return "feasible" if decided.edits else decided.base.status


def _host(module: Module, memory: Any, rates: cost.Rates) -> HostTraffic | None:
  argument_bytes = memory.host_argument_size_in_bytes
  run = cost.step_time(module, rates)
  if not (argument_bytes or run.to_host_bytes or run.from_host_bytes):
    return None
  return HostTraffic(
    argument_bytes=argument_bytes,
    to_host_bytes=run.to_host_bytes,
    from_host_bytes=run.from_host_bytes,
    step_s=run.seconds,
    waiting_s=run.waiting_s,
  )


def _budget(
  decided: LimitPlan, variant: choose.Variant, written_s: float
) -> Budget:
  return Budget(
    limit_bytes=decided.limit_bytes,
    num_recomputed=len(decided.edits.recomputes),
    num_offloaded=len(decided.edits.offloads),
    num_dropped=variant.num_residuals,
    dropped_bytes=variant.saved_bytes,
    # The captured step recomputes what was dropped already.
    step_s=decided.step_s - variant.extra_s,
    extra_s=decided.extra_s + variant.extra_s,
    written_s=written_s,
    schedule_s=decided.schedule_s,
  )
