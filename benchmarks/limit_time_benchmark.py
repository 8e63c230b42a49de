"""Real step times on a CPU: byte limits against checkpoint policies.

One step under `jax.jit`, under `jax.checkpoint` around each block with JAX's
policies, and under `jaxmem.jit` with shares of XLA's temporaries as the limit,
each with XLA's allocation of temporaries and with the arena kept. All run by
turns in one process, in alternating order.

    python -m benchmarks.limit_time_benchmark --output=rows.jsonl
"""

import resource
import time
from collections.abc import Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from flax import linen as nn

import jaxmem
from benchmarks import zoo
from benchmarks.paired import median_interval
from benchmarks.row_output import emit_row, versions
from benchmarks.zoo import language, layers
from jaxmem import arena

_BATCH = flags.DEFINE_integer("batch", 32, "Examples per step.")
_SIZE = flags.DEFINE_enum("size", "small", zoo.SIZES, "Size of the GPT-2.")
_SHARES = flags.DEFINE_list(
  "shares", ["0.75", "0.5", "0.35"], "Limits, of XLA's temporaries."
)
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Timed steps of each.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_NUM_WARM_UP = 2
_POLICIES = (
  "nothing_saveable",
  "dots_saveable",
  "dots_with_no_batch_dims_saveable",
)


class _Runner:
  """A compiled step, its state, and what each of its runs took."""

  def __init__(self, way: str, temp_bytes: int, compiled: Any, args: Any):
    self.way = way
    self.temp_bytes = temp_bytes
    self._compiled = compiled
    self._args = jax.tree.map(jnp.array, args)
    self._taken: list[tuple[float, ...]] = []

  def run(self) -> None:
    before, start = (
      resource.getrusage(resource.RUSAGE_SELF),
      time.perf_counter(),
    )
    result = jax.block_until_ready(self._compiled(*self._args))
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    user_s = after.ru_utime - before.ru_utime
    system_s = after.ru_stime - before.ru_stime
    num_faults = after.ru_minflt - before.ru_minflt
    self._taken.append((wall_s, user_s, system_s, num_faults))
    self._args = (*result[:2], *self._args[2:])

  @property
  def taken(self) -> np.ndarray:
    """Wall, user and system seconds, and page faults: shape [rounds, 4]."""
    return np.array(self._taken[_NUM_WARM_UP:])

  def row(self, plain: "_Runner") -> dict[str, Any]:
    """Returns what was measured, compared with `plain`, round by round."""
    wall = self.taken[:, 0] / plain.taken[:, 0]
    cpu = self.taken[:, 1:3].sum(1) / plain.taken[:, 1:3].sum(1)
    wall_s, user_s, system_s, num_faults = np.median(self.taken, axis=0)
    return {
      "way": self.way,
      "batch": _BATCH.value,
      "size": _SIZE.value,
      "temp_bytes": self.temp_bytes,
      "wall_s": float(wall_s),
      "user_s": float(user_s),
      "system_s": float(system_s),
      "num_page_faults": int(num_faults),
      "wall_ratio": float(np.median(wall)),
      "wall_ratio_interval": median_interval(list(wall)),
      "cpu_ratio": float(np.median(cpu)),
      "cpu_ratio_interval": median_interval(list(cpu)),
      "versions": versions("jax", "jaxmem"),
    }


def _runners() -> Iterator[_Runner]:
  """Yields the step under `jax.jit`, then all others."""
  step = language.gpt2_small(_BATCH.value, _SIZE.value)

  def runners(
    way: str, jitted: Any, step: zoo.Step = step
  ) -> Iterator[_Runner]:
    args = zoo.concrete(step)
    compiled = jitted.lower(*step.args).compile()
    temp_bytes = compiled.memory_analysis().temp_size_in_bytes
    kept = arena.keep(compiled, strict=True)
    yield _Runner(way, temp_bytes, compiled, args)
    yield _Runner(f"{way}, arena kept", temp_bytes, kept, args)

  plain = jax.jit(step.function, **step.jit_kwargs)
  memory: Any = plain.lower(*step.args).compile().memory_analysis()
  yield from runners("jax.jit", plain)
  for name in _POLICIES:
    policy = getattr(jax.checkpoint_policies, name)
    block = cast(Any, nn.remat(layers.Block, policy=policy))
    by_hand = language.gpt2_small(_BATCH.value, _SIZE.value, block=block)
    jitted = jax.jit(by_hand.function, **step.jit_kwargs)
    yield from runners(name, jitted, by_hand)
  yield from runners("jaxmem", jaxmem.jit(step.function, **step.jit_kwargs))
  rest_bytes = (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
  )
  for share in _SHARES.value:
    limit = rest_bytes + int(float(share) * memory.temp_size_in_bytes)
    limited = jaxmem.jit(step.function, memory_limit=limit, **step.jit_kwargs)
    yield from runners(f"jaxmem, {float(share):.0%}", limited)


def main(argv: list[str]) -> None:
  """Measures all ways by turns, and prints a row for each."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  runners = list(_runners())
  for i in range(_NUM_WARM_UP + _ROUNDS.value):
    for runner in runners if i % 2 else reversed(runners):
      runner.run()
  for runner in runners:
    emit_row(runner.row(runners[0]), _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
