"""Rows of Llama-3-8B's step: as XLA compiles it, with policies, and planned."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax
from jaxmem_hlo.assignment import AssignmentModel

import jaxmem
from benchmarks import compiled_programs, llama
from benchmarks.row_output import versions
from jaxmem import cost, targets
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.options import Effort
from jaxmem.planning import Request

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
  """What is to be measured.

  Attributes:
    shape: Sizes of the step.
    form: Of its stack of layers.
    policies: Which policies.
    limits_bytes: Limits to plan for besides.
    target: The device to compile for.
    effort: Of the search.
    attention: Its implementation.
    has_xla_remat: Whether XLA may recompute what does not fit its share; it is
      set in jax's configuration.
  """

  shape: llama.Shape
  form: llama.Form
  policies: Sequence[str]
  limits_bytes: Sequence[int] = ()
  target: str
  effort: Effort
  attention: llama.Attention
  has_xla_remat: bool


def rows(asked: Asked) -> Iterator[Row]:
  """Yields the rows of a step, jax.jit's first."""
  target = targets.get(asked.target)
  names: Row = {
    "form": asked.form,
    "num_layers": asked.shape.num_layers,
    "num_tokens": asked.shape.batch * asked.shape.length,
    "attention": asked.attention,
    "target": target.name,
    "versions": versions("jax", "jaxlib", "jaxmem"),
  }
  if not asked.has_xla_remat:
    names["xla_remat"] = False
  measured = _Measured(asked, target)
  jit = measured.as_written(None)
  yield names | {"kind": "jit"} | jit
  # What every user of jax.jit pays is not planning: `jaxmem.plan` traces the
  # step, and compiles it twice.
  usual_cpu_s = jit["compile_cpu_s"] + jit["backend_cpu_s"]
  yield names | {"kind": "jaxmem"} | measured.planned(None, usual_cpu_s)
  for policy in asked.policies:
    own = measured.as_written(policy)
    yield names | {"kind": "policy", "policy": policy} | own
    plan = measured.planned(own["total_bytes"], usual_cpu_s)
    yield names | {"kind": "jaxmem", "policy": policy} | plan
  for limit_bytes in asked.limits_bytes:
    plan = measured.planned(limit_bytes, usual_cpu_s)
    yield names | {"kind": "jaxmem", "policy": None} | plan


class _Measured:
  """A step on a target, compiled in several ways.

  Args:
    asked: What is measured.
    target: The device.
  """

  def __init__(self, asked: Asked, target: targets.Target):
    self._asked = asked
    self._target = target
    self._rates = cost.for_target(target)
    self._options = jaxmem.Options(effort=asked.effort)

  def as_written(self, policy: str | None) -> Row:
    """Returns what XLA makes of the step.

    Args:
      policy: Around each layer, if any.
    """
    step = self._step(policy)
    start_s = time.process_time()
    jitted = jax.jit(step.function, **step.jit_kwargs)
    with llama.described_cudnn():
      traced = targets.trace(jitted, step.args, {}, self._target)
      traced_s = time.process_time()
      request = Request(options=self._options, target=self._target)
      schedules = ScheduleCapture(request)
      own = TracedStep(traced, self._target)
      compiled = schedules.compiled(own)
    end_s = time.process_time()
    scheduled = AssignmentModel(schedules.module(own), self._target.platform)
    return {
      "compile_cpu_s": end_s - start_s,
      "backend_cpu_s": end_s - traced_s,
      "predicted_temp_bytes": scheduled.assign().temp_bytes,
      **self._facts(compiled),
    }

  def planned(self, limit_bytes: int | None, usual_cpu_s: float) -> Row:
    """Returns what jaxmem makes of the step as written.

    Args:
      limit_bytes: Most bytes of the whole program.
      usual_cpu_s: What `jaxmem.plan` takes besides planning.
    """
    step = self._step(None)
    row: Row = {"limit_bytes": limit_bytes, "effort": self._asked.effort}
    start_s = time.process_time()
    plan = None
    with llama.described_cudnn(), _compiles() as programs:
      try:
        plan = jaxmem.plan(
          step.function,
          *step.args,
          target=self._target,
          memory_limit=limit_bytes,
          options=self._options,
          **step.jit_kwargs,
        )
      except jaxmem.InfeasibleError as error:
        row["error"] = "no plan was found"
        row["smallest_bytes"] = error.smallest_bytes
        row["lower_bound_bytes"] = error.lower_bound_bytes
    row["compile_cpu_s"] = time.process_time() - start_s
    row["planning_cpu_s"] = row["compile_cpu_s"] - usual_cpu_s
    if plan is None:
      return row
    if plan.budget is not None:
      for name in ("num_recomputed", "num_offloaded", "num_dropped"):
        row[name] = getattr(plan.budget, name)
    row["predicted_temp_bytes"] = plan.predicted_temp_bytes
    facts = self._facts(programs[-1])
    if facts["temp_bytes"] != plan.temp_bytes:
      # Without a limit XLA's own program is kept where it takes less.
      facts = self._facts(programs[0])
    return row | facts

  def _step(self, policy: str | None) -> llama.Step:
    # So that all pay for tracing, and not the first alone.
    jax.clear_caches()
    asked = self._asked
    return llama.build(asked.shape, asked.form, policy, asked.attention)

  def _facts(self, compiled: jax.stages.Compiled) -> Row:
    """Returns a program's bytes, and the seconds expected of it."""
    memory: Any = compiled.memory_analysis()
    module = compiled_programs.final_module(compiled)
    run = cost.step_time(module, self._rates)
    return {
      "total_bytes": compiled_programs.total_bytes(memory),
      "temp_bytes": memory.temp_size_in_bytes,
      "host_temp_bytes": memory.host_temp_size_in_bytes,
      "num_instructions": sum(
        len(module.by_id[c].instructions) for c in module.scheduled_ids
      ),
      "step_s": run.seconds,
      "waiting_s": run.waiting_s,
      "to_host_bytes": run.to_host_bytes,
    }


@contextlib.contextmanager
def _compiles() -> Iterator[list[jax.stages.Compiled]]:
  """Yields a list of all programs that are compiled to the end inside."""
  compile_lowered = jax.stages.Lowered.compile
  found: list[jax.stages.Compiled] = []

  def recorded(*args: Any, **kwargs: Any) -> jax.stages.Compiled:
    found.append(compile_lowered(*args, **kwargs))
    return found[-1]

  with mock.patch.object(jax.stages.Lowered, "compile", recorded):
    yield found
