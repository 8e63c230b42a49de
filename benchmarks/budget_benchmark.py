"""Bytes against estimated time: byte limits, and checkpoint policies by hand.

For each step: a row for each limit (kind "plan"), for `jax.checkpoint` around
each block under JAX's policies ("policy", transformers only), for a plan with
the bytes of each of these policies, beside what edits take at least ("match"),
and for XLA's own rematerialisation under the same limits ("xla", GPUs only).
Programs are compiled up to their schedule; bytes are predicted, unless
--compile. With --on_host=1, a step's second argument and result, its
optimizer's state, wait in the host's memory.

    python -m benchmarks.budget_benchmark --models=gpt2_small --batch=8 \
      --targets=h200 --temp_mb=5000,3000 --kind=plan --kind=policy \
      --output=rows.jsonl

With --held_out, models are steps of `benchmarks.held_out`, at their own batch.
"""

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast
from unittest import mock

import jax
from absl import app, flags
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

import jaxmem
from benchmarks import zoo
from benchmarks.checkpointed_steps import (
  HeldOutModel,
  Model,
  ShapedStep,
  ZooModel,
)
from benchmarks.policies import policies_on
from benchmarks.row_output import emit_row, versions
from jaxmem import cost, targets
from jaxmem.compiler import (
  ScheduleCapture,
  Step,
  TracedStep,
  compile_and_read,
  handling,
)
from jaxmem.planning import (
  DecidedModules,
  LimitPlan,
  LimitPlanner,
  PlannedModule,
  Request,
)
from jaxmem.versions import budget_of, pick

_MODELS = flags.DEFINE_list("models", ["gpt2_small"], "Models to plan for.")
_HELD_OUT = flags.DEFINE_bool(
  "held_out", False, "Models are steps of benchmarks.held_out."
)
_BATCH = flags.DEFINE_integer("batch", 8, "Examples per step.")
_TARGETS = flags.DEFINE_list("targets", ["cpu", "h200"], "Devices to plan for.")
_FRACTIONS = flags.DEFINE_list(
  "fractions", ["0.75", "0.5", "0.35", "0.25"], "Limits, of XLA's temporaries."
)
_TEMP_MB = flags.DEFINE_list(
  "temp_mb", [], "Limits, in MB of temporaries; in place of --fractions."
)
_SIZE = flags.DEFINE_enum("size", "full", zoo.SIZES, "Size of the models.")
_EFFORT = flags.DEFINE_enum(
  "effort", "normal", ["fast", "normal", "prove"], "Effort of the search."
)
_COMPILE = flags.DEFINE_bool("compile", False, "Compile plans, and measure.")
_KINDS = flags.DEFINE_multi_enum(
  "kind", ["plan"], ["plan", "policy", "match", "xla"], "Kinds of rows."
)
_ON_HOST = flags.DEFINE_list(
  "on_host", [], "Arguments and results that stay on the host: positions."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

Row = dict[str, Any]

# XLA plans for this share of a GPU's memory, less a slop, both in percent.
_XLA_SHARE = 80
_XLA_SLOP = 95


def _model(name: str) -> Model:
  if _HELD_OUT.value:
    return HeldOutModel(name)
  return ZooModel(name=name, batch=_BATCH.value, size=_SIZE.value)


def _on_host(step: ShapedStep) -> ShapedStep:
  """Leaves on the host what the flags say."""
  numbers = [int(number) for number in _ON_HOST.value]
  if not numbers:
    return step
  function = jaxmem.on_host(step.function, numbers, numbers)
  return dataclasses.replace(step, function=function)


class _Case:
  """A step on a target, compiled up to its schedule.

  Args:
    name: Of the model.
    target: The device to plan for.
  """

  def __init__(self, name: str, target: targets.Target):
    self._name = name
    self._model = _model(name)
    self._target = target
    self._platform = target.platform
    self._step = _on_host(self._model.step())
    options = jaxmem.Options(effort=cast(Any, _EFFORT.value))
    self._request = Request(options=options, target=target)
    # CPU seconds of each compile up to the schedule.
    self._compiles_s: list[float] = []
    module = self._module(self._trace(self._step))
    self._assignment = AssignmentModel(module, self._platform).assign()
    self._step_s = self._seconds(module, self._assignment.temp_bytes)
    # What policies make of the step, by their names.
    self._made_by_hand: dict[str, Row] = {}

  def rows(self) -> Iterator[Row]:
    """Yields all rows of the step."""
    rooms = self._rooms()
    if "plan" in _KINDS.value:
      for room in rooms:
        yield self._row("plan", room) | self._plan(room)
    if "policy" in _KINDS.value and self._model.takes_policy:
      for name in policies_on(self._platform):
        yield self._row("policy") | {"policy": name} | self._by_hand(name)
    if "match" in _KINDS.value and self._model.takes_policy:
      yield from self._matches()
    if "xla" in _KINDS.value and self._platform == "cuda":
      for room in rooms:
        yield self._row("xla", room) | self._by_xla(room)

  def _rooms(self) -> list[int]:
    """Limits of the temporaries, in bytes."""
    if _TEMP_MB.value:
      return [int(1e6 * float(size)) for size in _TEMP_MB.value]
    temp_bytes = self._assignment.temp_bytes
    return [int(float(f) * temp_bytes) for f in _FRACTIONS.value]

  def _row(self, kind: str, room: int | None = None) -> Row:
    before = self._assignment.temp_bytes
    return {
      "kind": kind,
      "model": self._name,
      "held_out": _HELD_OUT.value,
      "batch": None if _HELD_OUT.value else _BATCH.value,
      "size": None if _HELD_OUT.value else _SIZE.value,
      "target": self._target.name,
      "limit_temp_bytes": room,
      "limit_fraction": room and round(room / before, 4),
      "xla_temp_bytes": before,
      "fixed_bytes": self._assignment.program_bytes - before,
      "on_host": [*map(int, _ON_HOST.value)],
      "step_s": self._step_s,
      "versions": versions("jax", "jaxlib", "jaxmem"),
    }

  def _matches(self) -> Iterator[Row]:
    """Yields what jaxmem makes of each policy's bytes, if there are fewer.

    Beside it is what the fastest policy takes that needs no more bytes.
    """
    names = policies_on(self._platform)
    by_hand = {name: self._by_hand(name) for name in names}
    for name, row in by_hand.items():
      room = row["temp_bytes"]
      if room < self._assignment.temp_bytes:
        fitting = [r for r in by_hand.values() if r["temp_bytes"] <= room]
        best_extra = min(r["schedule_extra"] for r in fitting)
        yield {
          **self._row("match", room),
          "policy": name,
          "policies_schedule_extra": best_extra,
          **self._plan(room),
          **self._least(room, best_extra),
        }

  def _least(self, room: int, most_extra: float) -> Row:
    """Returns what no edits of the step as it is written go below.

    Args:
      room: Bytes of the temporaries.
      most_extra: What is looked at, as a share of the step; the most that is
        returned.
    """
    planner = self._planner
    start_s = time.process_time()
    least_s = planner.least_schedule_s(
      planner.fixed_bytes + room, (1 + most_extra) * self._step_s
    )
    return {
      "least_schedule_extra": round(least_s / self._step_s - 1, 5),
      "least_s": round(time.process_time() - start_s, 1),
    }

  def _plan(self, room: int) -> Row:
    """Returns what jaxmem makes of a limit of the temporaries.

    Args:
      room: Bytes of the temporaries.
    """
    start_s = time.thread_time()
    self._compiles_s = []
    fixed_bytes = self._assignment.program_bytes - self._assignment.temp_bytes
    request = dataclasses.replace(self._request, limit_bytes=fixed_bytes + room)
    with self._counting_compiles(), ScheduleCapture(request) as schedules:
      traced = self._trace(self._step)
      version, module = pick(traced, schedules, request)
    compile_s = sum(self._compiles_s)
    picking_s = time.thread_time() - start_s
    decided = DecidedModules()
    if module is not None:
      decided.add(module)
    captured = self._module(version.step)
    start_s = time.thread_time() - picking_s
    row: Row = {
      "effort": _EFFORT.value,
      "num_compiles": len(self._compiles_s),
      "compile_s": round(compile_s, 1),
    }
    try:
      planned = request.decide(captured, self._platform, decided)
    except jaxmem.InfeasibleError as error:
      row["error"] = "no plan was found"
      row["smallest_temp_bytes"] = error.smallest_bytes - fixed_bytes
      row["lower_bound_bytes"] = error.lower_bound_bytes - fixed_bytes
      return row | {"planning_s": round(time.thread_time() - start_s, 1)}
    plan = planned.decision
    assert isinstance(plan, LimitPlan)
    budget = budget_of(plan, version, self._step_s)
    row |= {
      "temp_bytes": plan.planned_bytes,
      "is_measured": False,
      "extra": round(budget.extra, 5),
      "lower_bound_bytes": plan.lower_bound_bytes,
      "num_recomputed": budget.num_recomputed,
      "num_offloaded": budget.num_offloaded,
      "num_dropped": budget.num_dropped,
      "dropped_bytes": budget.dropped_bytes,
      "blocks": version.choice and dataclasses.asdict(version.choice),
      "is_reordered": bool(plan.base.orders),
      "num_instructions": len(captured.entry.instructions),
      "first_plan_s": round(plan.first_s, 2),
      "planning_s": round(time.thread_time() - start_s, 1),
      "schedule_extra": round(budget.change, 5),
    }
    row["copies"] = dataclasses.asdict(
      cost.step_time(planned.module, cost.for_target(self._target))
    )
    if not _COMPILE.value:
      return row
    return row | _measured(row, self._measure(version.step, plan))

  def _measure(self, step: Step, plan: LimitPlan) -> int:
    """Compiles a plan; returns the temporaries as XLA reports them."""

    def rewrite(data: bytes, platform: str) -> bytes:
      module, _ = self._request.read(data, platform)
      return PlannedModule.of(module, plan).module.to_bytes()

    with handling(rewrite, as_scheduled=True) as options:
      return self._temp_bytes(step, options)

  @contextlib.contextmanager
  def _counting_compiles(self) -> Iterator[None]:
    """Counts compiles up to the schedule, and how long XLA takes for them."""
    compile_lowered = jax.stages.Lowered.compile

    def timed(*args: Any, **kwargs: Any) -> jax.stages.Compiled:
      # Each is in a thread of its own, which waits, and XLA has some besides:
      # the thread that plans has none of that.
      start_s = time.thread_time()
      try:
        return compile_lowered(*args, **kwargs)
      finally:
        self._compiles_s.append(time.thread_time() - start_s)

    with mock.patch.object(jax.stages.Lowered, "compile", timed):
      yield

  @functools.cached_property
  def _planner(self) -> LimitPlanner:
    """Plans the step as it is written."""
    module = self._module(self._trace(self._step))
    return self._request.planner(module, self._platform)

  def _by_hand(self, name: str) -> Row:
    """Returns what a policy around each block makes of the step."""
    if name not in self._made_by_hand:
      traced = self._trace(self._model.step(name))
      row = self._as_is(self._module(traced))
      if _COMPILE.value:
        row |= _measured(row, self._temp_bytes(traced, {}))
      self._made_by_hand[name] = row
    return self._made_by_hand[name]

  def _by_xla(self, room: int) -> Row:
    """Returns what XLA makes of a GPU with less memory.

    Args:
      room: Bytes of the temporaries. XLA takes them to be what the arguments
        and outputs leave of its share.
    """
    fixed_bytes = self._assignment.program_bytes - self._assignment.temp_bytes
    memory_bytes = int(
      (room / _XLA_SLOP * 100 + fixed_bytes) / _XLA_SHARE * 100
    )
    text = re.sub(
      r"device_memory_size: \d+",
      f"device_memory_size: {memory_bytes}",
      self._target.config_text,
    )
    target = dataclasses.replace(self._target, config_text=text)
    jitted = jax.jit(self._step.function, **self._step.jit_kwargs)
    traced = targets.trace(jitted, self._step.args, {}, target)
    # It recomputes after scheduling, so that only the whole compile shows it.
    compiled = compile_and_read(TracedStep(traced, target), {})
    return self._as_is(Module(compiled.hlo_module))

  def _as_is(self, module: Module) -> Row:
    """Returns what a module takes as it is."""
    temp_bytes = AssignmentModel(module, self._platform).assign().temp_bytes
    seconds = self._seconds(module, temp_bytes)
    return {
      "temp_bytes": temp_bytes,
      "is_measured": False,
      "schedule_extra": round(seconds / self._step_s - 1, 5),
    }

  def _trace(self, step: ShapedStep) -> TracedStep:
    jitted = jax.jit(step.function, **step.jit_kwargs)
    traced = targets.trace(jitted, step.args, {}, self._target)
    return TracedStep(traced, self._target)

  def _module(self, step: Step) -> Module:
    """Compiles a version of a step up to its schedule."""
    return ScheduleCapture(self._request).module(step)

  def _temp_bytes(self, step: Step, options: Mapping[str, Any]) -> int:
    """Compiles, and returns the temporaries as XLA reports them."""
    compiled = step.compile(options)
    memory = compiled.memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes

  def _seconds(self, module: Module, temp_bytes: int) -> float:
    """Estimated seconds of all that a schedule runs, temporaries mapped."""
    device = cost.device_for(self._target)
    seconds = cost.step_time(module, device.rates).seconds
    return seconds + device.mapping_s(temp_bytes)


def _measured(row: Row, temp_bytes: int) -> Row:
  """Returns what a measurement changes in a row."""
  return {
    "temp_bytes": temp_bytes,
    "predicted_temp_bytes": row["temp_bytes"],
    "is_measured": True,
  }


def main(argv: list[str]) -> None:
  """Prints the rows of all cases."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  for model in _MODELS.value:
    for name in _TARGETS.value:
      target = targets.get(name)
      if target.platform == "cuda":
        target.topology()
      for row in _Case(model, target).rows():
        emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
