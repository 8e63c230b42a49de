"""Temporary bytes of XLA's own plan and of jaxmem's, over the model zoo.

Compiles each step twice, as jax.jit and as jaxmem.jit would, and reads both
temporary sizes from XLA. Prints a JSON row per case; nothing is executed.

    python -m benchmarks.order_benchmark --targets=cpu,h200 --output=rows.jsonl
"""

import time
from typing import Any, cast

import jax
from absl import app, flags

import jaxmem
from benchmarks import zoo
from benchmarks.row_output import emit_row

_MODELS = flags.DEFINE_list("models", [], "Models of the zoo; all if empty.")
_BATCHES = flags.DEFINE_list("batches", ["1", "32"], "Examples per step.")
_TARGETS = flags.DEFINE_list("targets", ["cpu", "h200"], "Devices to plan for.")
_SIZE = flags.DEFINE_enum("size", "full", zoo.SIZES, "Size of the models.")
_EFFORT = flags.DEFINE_enum(
  "effort", "normal", ["fast", "normal", "prove"], "Effort of the search."
)
_COPIES = flags.DEFINE_bool("remove_copies", True, "Remove needless copies.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def measure(model: str, batch: int, target: str) -> dict[str, Any]:
  """Plans one step and returns its row."""
  step = zoo.build(model, batch, size=_SIZE.value)
  options = jaxmem.Options(
    effort=cast(Any, _EFFORT.value), remove_copies=_COPIES.value
  )
  start = time.perf_counter()
  plan = jaxmem.plan(
    step.function,
    *step.args,
    target=target,
    options=options,
    **step.jit_kwargs,
  )
  return {
    "model": model,
    "batch": batch,
    "target": target,
    "size": _SIZE.value,
    "effort": _EFFORT.value,
    "remove_copies": _COPIES.value,
    "xla_temp_bytes": plan.baseline_temp_bytes,
    "temp_bytes": plan.temp_bytes,
    "lower_bound_bytes": plan.lower_bound_bytes,
    "model_error_bytes": plan.model_error,
    "baseline_model_error_bytes": plan.baseline_model_error,
    "total_bytes": plan.total_bytes,
    "status": plan.status,
    "is_order_proved": plan.is_order_proved,
    "num_instructions": plan.num_instructions,
    "num_removed_copies": plan.num_removed_copies,
    "planning_s": round(plan.planning_s, 3),
    "total_s": round(time.perf_counter() - start, 1),
    "versions": plan.versions,
  }


def _measure_if_compilable(
  model: str, batch: int, target: str
) -> dict[str, Any]:
  """Returns a row that says so where XLA itself cannot compile the step."""
  try:
    return measure(model, batch, target)
  except jax.errors.JaxRuntimeError as error:
    message = str(error).splitlines()[0]
    return {"model": model, "batch": batch, "target": target, "error": message}


def main(argv: list[str]) -> None:
  """Measures all cases."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  for model in _MODELS.value or zoo.MODELS:
    for batch in map(int, _BATCHES.value):
      for target in _TARGETS.value:
        emit_row(_measure_if_compilable(model, batch, target), _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
