"""Step time under jaxmem against jax.jit, interleaved in one process.

Measures `jaxmem.jit`, and the same with its arena kept from step to step
(`jaxmem.runtime.keep`). In each round all three run one right after the other,
in alternating order, so that drift of the machine's speed hits all alike. Also
compares outputs after three steps. What a call of an almost empty step costs is
measured by `benchmarks.door_overhead_benchmark`.

    python -m benchmarks.step_time_benchmark --output=rows.jsonl
"""

from typing import Any

import jax
import numpy as np
from absl import app, flags

import jaxmem
from benchmarks import zoo
from benchmarks.paired import Runner, ratios, run_round
from benchmarks.row_output import emit_row, versions
from jaxmem.runtime import kept_arena

_MODELS = flags.DEFINE_list("models", [], "Models of the zoo; all if empty.")
_BATCH = flags.DEFINE_integer("batch", 4, "Examples per step.")
_SIZE = flags.DEFINE_enum("size", "small", zoo.SIZES, "Size of the models.")
_STEPS = flags.DEFINE_integer("steps", 25, "Timed steps of each.")
_COPIES = flags.DEFINE_bool("remove_copies", True, "Remove needless copies.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_NUM_WARM_UP = 3


def measure(model: str) -> dict[str, Any]:
  """Times one model and returns its row."""
  step = zoo.build(model, _BATCH.value, size=_SIZE.value)
  plain, planned, kept = runners = _runners(step)
  is_equal = True
  for i in range(_NUM_WARM_UP + _STEPS.value):
    run_round(runners, i)
    if i < _NUM_WARM_UP:
      is_equal &= _same(plain.args, planned.args)
      is_equal &= _same(plain.args, kept.args)
  return {
    "model": model,
    "batch": _BATCH.value,
    "size": _SIZE.value,
    "remove_copies": _COPIES.value,
    "is_bit_equal": is_equal,
    "xla_temp_bytes": plain.compiled.memory_analysis().temp_size_in_bytes,
    "temp_bytes": planned.compiled.memory_analysis().temp_size_in_bytes,
    "kept_bytes": kept.compiled.arena_bytes,
    "xla_step_s": float(np.median(_seconds(plain))),
    "jit": ratios(_seconds(planned), _seconds(plain)),
    "kept": ratios(_seconds(kept), _seconds(plain)),
    "versions": versions("jax", "jaxmem"),
  }


def _runners(step: zoo.Step) -> tuple[Runner, Runner, Runner]:
  """Returns a step under jax.jit, jaxmem.jit, and that with its arena kept."""
  options = jaxmem.Options(remove_copies=_COPIES.value)
  plain, planned = (
    jitted.lower(*step.args).compile()
    for jitted in (
      jax.jit(step.function, **step.jit_kwargs),
      jaxmem.jit(step.function, options=options, **step.jit_kwargs),
    )
  )
  kept = kept_arena.keep(planned, strict=True)
  args = zoo.concrete(step)
  return Runner(plain, args), Runner(planned, args), Runner(kept, args)


def _seconds(runner: Runner) -> np.ndarray:
  return runner.taken(_NUM_WARM_UP)[:, 0]


def _same(a: Any, b: Any) -> bool:
  return all(
    np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )


def main(argv: list[str]) -> None:
  """Measures all models."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  for model in _MODELS.value or zoo.MODELS:
    emit_row(measure(model), _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
