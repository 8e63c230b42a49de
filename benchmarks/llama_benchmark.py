"""Llama-3-8B's train step: MaxText's policies and plans at equal bytes, H200.

Nothing runs: programs are compiled for a described H200, bytes are those of
XLA's `memory_analysis`, seconds are estimates of the schedule that XLA ends
with. One row is for jax.jit, one for each policy of MaxText's around each
layer, and after it one for jaxmem on the step without any, with the bytes of
the policy's program as its limit.

    JAXMEM_CACHE_DIR="" python -m benchmarks.llama_benchmark \\
      --form=unrolled --layers=32 --output=benchmarks/results/llama.jsonl

`python -m benchmarks.llama_report` makes tables of the rows.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, cast
from unittest import mock

import jax
import jax.numpy as jnp
from absl import app, flags
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

import jaxmem
from benchmarks import llama
from benchmarks.row_output import emit_row, versions
from jaxmem import cost, targets
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.planning import Request

_FORM = flags.DEFINE_enum("form", "scanned", llama.FORMS, "Of the layers.")
_LAYERS = flags.DEFINE_integer("layers", 2, "How many; Llama-3-8B has 32.")
_ROWS = flags.DEFINE_list("rows", [*llama.POLICIES], "Which policies.")
_TARGET = flags.DEFINE_string("target", "h200", "Device to compile for.")
_EFFORT = flags.DEFINE_enum(
  "effort", "normal", ["fast", "normal", "prove"], "Effort of the search."
)
_ATTENTION = flags.DEFINE_enum(
  "attention", "cudnn", ["cudnn", "xla"], "Implementation of attention."
)
_XLA_REMAT = flags.DEFINE_bool(
  "xla_remat", True, "Whether XLA may recompute what does not fit its share."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

Row = dict[str, Any]


def rows(shape: llama.Shape, form: llama.Form) -> Iterator[Row]:
  """Yields the rows of a step, jax.jit's first.

  Args:
    shape: Sizes of the step.
    form: Of its stack of layers.
  """
  target = targets.get(_TARGET.value)
  names: Row = {
    "form": form,
    "num_layers": shape.num_layers,
    "num_tokens": shape.batch * shape.length,
    "attention": _ATTENTION.value,
    "target": target.name,
    "versions": versions("jax", "jaxlib", "jaxmem"),
  }
  if not _XLA_REMAT.value:
    names["xla_remat"] = False
  measured = _Measured(shape, form, target)
  jit = measured.as_written(None)
  yield names | {"kind": "jit"} | jit
  # What every user of jax.jit pays is not planning: `jaxmem.plan` traces the
  # step, and compiles it twice.
  usual_cpu_s = jit["compile_cpu_s"] + jit["backend_cpu_s"]
  yield names | {"kind": "jaxmem"} | measured.planned(None, usual_cpu_s)
  for policy in _ROWS.value:
    own = measured.as_written(policy)
    yield names | {"kind": "policy", "policy": policy} | own
    plan = measured.planned(own["total_bytes"], usual_cpu_s)
    yield names | {"kind": "jaxmem", "policy": policy} | plan


class _Measured:
  """A step on a target, compiled in several ways.

  Args:
    shape: Its sizes.
    form: Of its stack of layers.
    target: The device.
  """

  def __init__(
    self, shape: llama.Shape, form: llama.Form, target: targets.Target
  ):
    self._shape = shape
    self._form: llama.Form = form
    self._target = target
    self._rates = cost.for_target(target)
    self._options = jaxmem.Options(effort=cast(Any, _EFFORT.value))

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
    row: Row = {"limit_bytes": limit_bytes, "effort": _EFFORT.value}
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
    attention = cast(llama.Attention, _ATTENTION.value)
    return llama.build(self._shape, self._form, policy, attention)

  def _facts(self, compiled: jax.stages.Compiled) -> Row:
    """Returns a program's bytes, and the seconds expected of it."""
    memory: Any = compiled.memory_analysis()
    executable = compiled.runtime_executable()
    assert executable is not None, "XLA shows what it compiled."
    proto = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    module = Module.from_bytes(proto)
    run = cost.step_time(module, self._rates)
    return {
      "total_bytes": memory.argument_size_in_bytes
      + memory.output_size_in_bytes
      - memory.alias_size_in_bytes
      + memory.temp_size_in_bytes,
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


def _load_planner() -> None:
  """Compiles something small for the target, so that all is loaded."""
  x = jnp.ones((8, 8))
  for limit in (None, "1GiB"):
    jaxmem.plan(
      lambda x: jnp.sin(x @ x) @ x,
      x,
      target=_TARGET.value,
      memory_limit=limit,
    )


def main(argv: list[str]) -> None:
  """Prints the rows of one step."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  jax.config.update("jax_compiler_enable_remat_pass", _XLA_REMAT.value)
  _load_planner()
  shape = llama.Shape(num_layers=_LAYERS.value)
  start_s = time.perf_counter()
  for row in rows(shape, cast(llama.Form, _FORM.value)):
    emit_row(row, _OUTPUT.value)
    elapsed_s = time.perf_counter() - start_s
    name = row.get("policy") or "no policy"
    print(
      f"{elapsed_s:6.0f} s: {row['kind']}, {name}", file=sys.stderr, flush=True
    )


if __name__ == "__main__":
  app.run(main)
