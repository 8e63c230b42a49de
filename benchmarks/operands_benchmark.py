"""What it changes to write operands of products to memory first, on a CPU.

Steps of `benchmarks.held_out` under `jax.jit`, as they are written and with
policies of `jax.checkpoint` around each block; each program and the same with
`jaxmem.versions.materialized`, by turns in one process. A row for each.

    python -m benchmarks.operands_benchmark --steps=mlp_mixer,gpt \\
      --policies=none,nothing_saveable --output=rows.jsonl
"""

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import app, flags

from benchmarks import compiled_programs, held_out
from benchmarks.paired import Runner, cpu_seconds, ratios, run_round
from benchmarks.row_output import emit_row, versions
from jaxmem import cost
from jaxmem.compiler import TracedStep
from jaxmem.versions import materialized

_STEPS = flags.DEFINE_list("steps", sorted(held_out.STEPS), "Which steps.")
_POLICIES = flags.DEFINE_list(
  "policies", ["none"], "Policies of jax.checkpoint; none for the step itself."
)
_ROUNDS = flags.DEFINE_integer("rounds", 9, "Timed runs of each.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_NUM_WARM_UP = 2


def _row(name: str, policy: str) -> dict[str, Any]:
  """Compiles a step in both ways, and runs the two by turns."""
  step = held_out.STEPS[name](*([] if policy == "none" else [policy]))
  jitted = jax.jit(step.function, **step.jit_kwargs)
  traced = TracedStep(jitted.trace(*jax.eval_shape(step.make_args)))
  changed = traced.with_jaxpr(materialized(traced.jaxpr))
  programs = [each.compile({}) for each in (traced, changed)]
  rates = cost.device_for("cpu").rates
  seconds = [
    cost.step_time(compiled_programs.final_module(each), rates).seconds
    for each in programs
  ]
  analyses: list[Any] = [each.memory_analysis() for each in programs]
  args = jax.jit(step.make_args)()
  runners = [Runner(each, args) for each in programs]
  for index in range(_NUM_WARM_UP + _ROUNDS.value):
    run_round(runners, index)
  written, first = (runner.taken(_NUM_WARM_UP) for runner in runners)
  return {
    "step": name,
    "policy": policy,
    "rounds": _ROUNDS.value,
    "wall": ratios(first[:, 0], written[:, 0]),
    "cpu": ratios(cpu_seconds(first), cpu_seconds(written)),
    "estimated": seconds[1] / seconds[0],
    "temp_bytes": [each.temp_size_in_bytes for each in analyses],
    "versions": versions("jax", "jaxlib", "jaxmem"),
  }


def _main(argv: Sequence[str]) -> None:
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  for name in _STEPS.value:
    takes_policies = bool(inspect.signature(held_out.STEPS[name]).parameters)
    for policy in _POLICIES.value:
      if policy == "none" or takes_policies:
        emit_row(_row(name, policy), _OUTPUT.value)
      else:
        print(f"{name} takes no policies", file=sys.stderr)


if __name__ == "__main__":
  app.run(_main)
