"""Sharded steps on described H200s: memory, and what communication is hidden.

    python -m benchmarks.devices_benchmark --steps=mlp_fsdp,decoder_tensor \
      --output=benchmarks/results/devices.jsonl

Each step is compiled by XLA without its latency-hiding scheduler, by XLA as jax
does by default, and as planned; bytes are XLA's figures of these. Seconds, and
which collectives run beside kernels, are estimates for the schedules, the same
for both (`jaxmem.cost.step_time`). `python -m benchmarks.devices_report` fills
docs/devices.md. With `--policies` the step has no checkpoints, and is compiled
by XLA with each policy in turn as well, to compare what limits lead to with.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import app, flags, logging

import jaxmem
from benchmarks.policies import POLICIES
from benchmarks.row_output import emit_row, versions
from benchmarks.sharded import (
  DecoderSize,
  ShardedStep,
  decoder,
  experts,
  gathered,
  pipeline,
  residual_mlp,
  ring_attention,
)

_LLAMA = DecoderSize(
  width=4096,
  num_heads=32,
  num_kv_heads=8,
  hidden=14336,
  vocabulary=128_256,
  examples=8,
  length=8192,
)
# Nothing is measured on a device to choose kernels.
_OPTIONS = {"xla_gpu_autotune_level": 0}
_WITHOUT_HIDING = {"xla_gpu_enable_latency_hiding_scheduler": False}
_SIZES: Mapping[str, DecoderSize] = {
  "decoder": DecoderSize(),
  "llama": _LLAMA,
}

_STEPS = flags.DEFINE_list(
  "steps",
  ["mlp_data", "mlp_fsdp", "decoder_fsdp", "decoder_tensor"],
  "mlp_data, mlp_fsdp, decoder_fsdp, decoder_tensor, llama_fsdp, ring,"
  " pipeline, experts, gathered.",
)
_LAYERS = flags.DEFINE_integer("layers", 16, "How many blocks.", lower_bound=1)
_HOSTS = flags.DEFINE_integer(
  "hosts", 1, "How many hosts of eight.", lower_bound=1
)
_LIMITS = flags.DEFINE_list(
  "limits",
  [],
  "Percents of XLA's temporaries that limits leave, besides arguments and"
  " outputs.",
)
_POLICIES = flags.DEFINE_bool(
  "policies", False, "Whether to compare limits with policies of checkpoints."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append the rows to.")


def main(argv: list[str]) -> None:
  """Prints a row for each step and way."""
  del argv
  for name in _STEPS.value:
    devices = jaxmem.devices("h200", hosts=_HOSTS.value, per_host=8)
    made = functools.partial(build, name, devices, _LAYERS.value)
    step, policies = made(), {}
    if _POLICIES.value:
      step = made(policy=None)
      policies = {policy: made(policy=policy) for policy in POLICIES}
    logging.info("%s on %d devices", step.name, len(devices))
    for row in measure(step, list(map(float, _LIMITS.value)), policies):
      common = {"step": step.name, "hosts": _HOSTS.value}
      made = versions("jax", "jaxlib", "jaxmem")
      emit_row({**common, **row, "versions": made}, _OUTPUT.value)


def build(
  name: str, devices: list[Any], num_layers: int, **policy: str | None
) -> ShardedStep:
  """Returns a step by its name; `policy` as the step takes it.

  Raises:
    ValueError: If there is none of that name.
  """
  kind, _, sharding = name.partition("_")
  by_hand: dict[str, Callable[..., ShardedStep]] = {
    "ring": ring_attention,
    "pipeline": pipeline,
    "experts": experts,
    "gathered": gathered,
  }
  if name in by_hand:
    return by_hand[name](devices, num_layers=num_layers, **policy)
  makers: dict[str, Callable[..., ShardedStep]] = {
    "mlp_data": functools.partial(residual_mlp, fsdp=False),
    "mlp_fsdp": functools.partial(residual_mlp, fsdp=True),
  }
  if name in makers:
    examples = 4 * len(devices)
    return makers[name](
      devices, num_layers=num_layers, examples=examples, **policy
    )
  if kind not in _SIZES or sharding not in ("fsdp", "tensor"):
    raise ValueError(f"unknown step {name!r}; see --help.")
  return decoder(
    devices,
    tensor=2 if sharding == "tensor" else 1,
    num_layers=num_layers,
    size=_SIZES[kind],
    **policy,
  )


def measure(
  step: ShardedStep,
  percents: list[float],
  policies: Mapping[str, ShardedStep],
) -> list[dict[str, Any]]:
  """Compiles a step in all ways.

  Args:
    step: The step.
    percents: Of XLA's temporaries, what limits leave.
    policies: The same step with checkpoints, by their policies.

  Returns:
    A row for XLA without hiding, one for XLA, one for XLA with each policy, one
    for the plan, and one for each limit.
  """
  start = time.perf_counter()
  jitted = jax.jit(step.fun, donate_argnums=0)
  compiled = jitted.lower(*step.args).compile(
    compiler_options={**_OPTIONS, **_WITHOUT_HIDING}
  )
  compile_s = time.perf_counter() - start
  memory: Any = compiled.memory_analysis()
  plan = _plan(step)
  own = plan.baseline_communication
  rows = [
    {
      "way": "XLA, nothing hidden",
      "temp_bytes": memory.temp_size_in_bytes,
      "compile_s": compile_s,
    },
    {
      "way": "XLA",
      "temp_bytes": plan.baseline_temp_bytes,
      "predicted_bytes": plan.baseline_predicted_bytes,
      "compile_s": compile_s,
      **_communication(own),
    },
    *(_with_policy(*each) for each in policies.items()),
    {"way": "jaxmem", **_planned(plan)},
  ]
  fixed = plan.total_bytes - plan.temp_bytes
  for percent in percents:
    limit = fixed + int(percent / 100 * plan.baseline_temp_bytes)
    way = {"way": f"jaxmem, {percent:g} %", "limit_bytes": limit - fixed}
    try:
      start = time.perf_counter()
      limited = _plan(step, memory_limit=limit)
      whole_s = time.perf_counter() - start
      rows.append({**way, **_planned(limited), "whole_s": whole_s})
    except jaxmem.InfeasibleError as error:
      row = {**way, "error": "no plan"}
      row["smallest_bytes"] = error.smallest_bytes - fixed
      row["lower_bound_bytes"] = error.lower_bound_bytes - fixed
      rows.append(row)
  return rows


def _with_policy(policy: str, step: ShardedStep) -> dict[str, Any]:
  plan = _plan(step)
  return {
    "way": f"XLA, {policy}",
    "temp_bytes": plan.baseline_temp_bytes,
    "predicted_bytes": plan.baseline_predicted_bytes,
    **_communication(plan.baseline_communication),
  }


def _plan(step: ShardedStep, **limit: Any) -> jaxmem.Plan:
  return jaxmem.plan(
    step.fun,
    *step.args,
    donate_argnums=0,
    compiler_options=_OPTIONS,
    **limit,
  )


def _planned(plan: jaxmem.Plan) -> dict[str, Any]:
  return {
    "temp_bytes": plan.temp_bytes,
    "predicted_bytes": plan.predicted_temp_bytes,
    "lower_bound_bytes": plan.lower_bound_bytes,
    "num_instructions": plan.num_instructions,
    "planning_s": plan.planning_s,
    **_communication(plan.communication),
  }


def _communication(run: Any) -> dict[str, Any]:
  if run is None:
    return {}
  return {
    "step_s": run.step_s,
    "collective_s": run.seconds,
    "exposed_s": run.exposed_s,
    "num_asynchronous": run.num_asynchronous,
    "num_synchronous": run.num_synchronous,
  }


if __name__ == "__main__":
  app.run(main)
