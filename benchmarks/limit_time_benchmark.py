"""Real step times on a CPU: byte limits against checkpoint policies.

One step under `jax.jit`, under `jax.checkpoint` around each block with JAX's
policies, and under `jaxmem.jit` with shares of XLA's temporaries as the limit,
each with XLA's allocation of temporaries and with the arena kept. All run by
turns in one process, in alternating order.

    python -m benchmarks.limit_time_benchmark --output=rows.jsonl
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from absl import app, flags
from flax import linen as nn

import jaxmem
from benchmarks import compiled_programs, zoo
from benchmarks.paired import (
  Runner,
  cpu_seconds,
  median_interval,
  medians,
  run_round,
)
from benchmarks.policies import POLICIES, policy_named
from benchmarks.row_output import emit_row, versions
from benchmarks.zoo import language, layers
from jaxmem.runtime import kept_arena

_BATCH = flags.DEFINE_integer("batch", 32, "Examples per step.")
_SIZE = flags.DEFINE_enum("size", "small", zoo.SIZES, "Size of the GPT-2.")
_SHARES = flags.DEFINE_list(
  "shares", ["0.75", "0.5", "0.35"], "Limits, of XLA's temporaries."
)
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Timed steps of each.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_NUM_WARM_UP = 2


class _Way(NamedTuple):
  """A way to run the step.

  Attributes:
    name: Of the row.
    temp_bytes: Of the compiled step.
    runner: Runs it.
  """

  name: str
  temp_bytes: int
  runner: Runner


def _row(way: _Way, plain: _Way) -> dict[str, Any]:
  """Returns what was measured, compared with `plain`, round by round."""
  taken, other = (w.runner.taken(_NUM_WARM_UP) for w in (way, plain))
  wall = taken[:, 0] / other[:, 0]
  cpu = cpu_seconds(taken) / cpu_seconds(other)
  return {
    "way": way.name,
    "batch": _BATCH.value,
    "size": _SIZE.value,
    "temp_bytes": way.temp_bytes,
    **medians(taken),
    "wall_ratio": float(np.median(wall)),
    "wall_ratio_interval": median_interval(list(wall)),
    "cpu_ratio": float(np.median(cpu)),
    "cpu_ratio_interval": median_interval(list(cpu)),
    "versions": versions("jax", "jaxmem"),
  }


def _both_ways(
  name: str, compiled: jax.stages.Compiled, step: zoo.Step
) -> Iterator[_Way]:
  """Yields a compiled step as it is, and with its arena kept."""
  memory: Any = compiled.memory_analysis()
  args = zoo.concrete(step)
  kept = kept_arena.keep(compiled, strict=True)
  yield _Way(name, memory.temp_size_in_bytes, Runner(compiled, args))
  yield _Way(
    f"{name}, arena kept", memory.temp_size_in_bytes, Runner(kept, args)
  )


def _ways() -> Iterator[_Way]:
  """Yields the step under `jax.jit`, then all others."""
  step = language.gpt2_small(_BATCH.value, _SIZE.value)
  plain = jax.jit(step.function, **step.jit_kwargs).lower(*step.args).compile()
  memory: Any = plain.memory_analysis()
  yield from _both_ways("jax.jit", plain, step)
  for name in POLICIES:
    policy = policy_named(name)
    block = cast(Any, nn.remat(layers.Block, policy=policy))
    by_hand = language.gpt2_small(_BATCH.value, _SIZE.value, block=block)
    jitted = jax.jit(by_hand.function, **step.jit_kwargs)
    compiled = jitted.lower(*by_hand.args).compile()
    yield from _both_ways(name, compiled, by_hand)
  rest_bytes = compiled_programs.fixed_bytes(memory)
  limits: dict[str, int | None] = {"jaxmem": None}
  for share in map(float, _SHARES.value):
    temp_bytes = int(share * memory.temp_size_in_bytes)
    limits[f"jaxmem, {share:.0%}"] = rest_bytes + temp_bytes
  for name, limit in limits.items():
    jitted = jaxmem.jit(step.function, memory_limit=limit, **step.jit_kwargs)
    yield from _both_ways(name, jitted.lower(*step.args).compile(), step)


def main(argv: list[str]) -> None:
  """Measures all ways by turns, and prints a row for each."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  ways = list(_ways())
  for i in range(_NUM_WARM_UP + _ROUNDS.value):
    run_round([way.runner for way in ways], i)
  for way in ways:
    emit_row(_row(way, ways[0]), _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
