"""Ways to run one step: compiled, taken in turns, and looked at in memory."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jaxmem
from benchmarks import compiled_programs, zoo
from benchmarks.gpu.case import Row
from benchmarks.paired import Runner, median_interval
from jaxmem.entry import PLANNED

CompilerOptions = Mapping[str, Any] | None

# Which kernels run is then XLA's fixed choice, not that of a stopwatch.
UNTUNED = {"xla_gpu_autotune_level": 0}
NO_STATISTICS = "jax has no such statistics of this device's memory"
_NUM_WARM_UP = 2
_MIN_ROUNDS, _MAX_ROUNDS = 9, 41
_ENOUGH_S = 15.0
_REHEARSED_ROUNDS = 3


# What compiling or running a way may end with; the case goes on with the next.
FAILURES = (
  jax.errors.JaxRuntimeError,
  jaxmem.InfeasibleError,
  jaxmem.PlanningError,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Way:
  """A compiled step.

  Attributes:
    name: Of its rows: "jax.jit", "jaxmem, 50 %", a policy.
    step: What was compiled.
    compiled: Ready to run.
    compile_s: Wall seconds of tracing, lowering and compiling; of jaxmem,
      planning included.
    memory: XLA's analysis of it.
    limit_bytes: Given to jaxmem, of the whole program; None if there was none.
    is_remembered: Whether its plan was made at an earlier start.
  """

  name: str
  step: zoo.Step
  compiled: jax.stages.Compiled
  compile_s: float
  memory: Any
  limit_bytes: int | str | None = None
  is_remembered: bool = False

  @property
  def fixed_bytes(self) -> int:
    """Device bytes of arguments and outputs, shared ones once."""
    return compiled_programs.fixed_bytes(self.memory)

  @property
  def total_bytes(self) -> int:
    """Device bytes of one run, by XLA's analysis."""
    return self.fixed_bytes + self.memory.temp_size_in_bytes

  def limit_at(self, share: float) -> int:
    """Returns a limit that leaves a share of this way's temporaries."""
    return self.fixed_bytes + int(share * self.memory.temp_size_in_bytes)

  def row(self) -> Row:
    """Returns what is known before it runs."""
    return {
      "way": self.name,
      "temp_bytes": self.memory.temp_size_in_bytes,
      "total_bytes": self.total_bytes,
      "limit_bytes": self.limit_bytes,
      "compile_s": round(self.compile_s, 3),
    }


def by_jax(
  step: zoo.Step, name: str = "jax.jit", options: CompilerOptions = None
) -> Way:
  """Compiles a step with `jax.jit`, and XLA's options if any."""
  return _compiled(name, step, jax.jit, options)


def by_jaxmem(
  step: zoo.Step,
  name: str = "jaxmem",
  limit_bytes: int | str | None = None,
  options: CompilerOptions = None,
) -> Way:
  """Compiles a step with `jaxmem.jit`, and XLA's options if any.

  Raises:
    InfeasibleError: If no plan meets the limit.
    PlanningError: If the step could not be planned for it.
    ValueError: If jaxmem does not know the limit.
  """

  def jit(function: Callable[..., Any], **keywords: Any) -> Any:
    return jaxmem.jit(function, memory_limit=limit_bytes, **keywords)

  way = _compiled(name, step, jit, options)
  record = PLANNED.records.all()[-1]
  return dataclasses.replace(
    way, limit_bytes=limit_bytes, is_remembered=record.is_remembered
  )


def _compiled(
  name: str,
  step: zoo.Step,
  jit: Callable[..., Any],
  options: CompilerOptions,
) -> Way:
  start_s = time.perf_counter()
  lowered = jit(step.function, **step.jit_kwargs).lower(*step.args)
  compiled = lowered.compile(compiler_options=dict(options or {}) or None)
  compile_s = time.perf_counter() - start_s
  memory = compiled.memory_analysis()
  assert memory is not None
  return Way(
    name=name, step=step, compiled=compiled, compile_s=compile_s, memory=memory
  )


def statistics() -> dict[str, int]:
  """Returns what the device's allocator counts; nothing on a CPU."""
  return jax.devices()[0].memory_stats() or {}


def allowed_bytes() -> int | None:
  """Returns the bytes the allocator may hand out; None if unknown."""
  return statistics().get("bytes_limit")


def reasons(is_unknown: bool, why: str, *names: str) -> Row:
  """Returns nulls for figures that cannot exist here, and why."""
  if not is_unknown:
    return {}
  return {**dict.fromkeys(names), "why_null": why}


def release() -> None:
  """Frees what nobody refers to any more."""
  gc.collect()


def run_steps(way: Way, num_steps: int, args: Any = None) -> Any:
  """Runs a few steps; returns the arguments of the next.

  Args:
    way: What runs.
    num_steps: How many.
    args: To begin with; by default those of the zoo.
  """
  args = zoo.concrete(way.step) if args is None else args
  for _ in range(num_steps):
    result = jax.block_until_ready(way.compiled(*args))
    args = (*result[:2], *args[2:])
  return args


def take_turns(ways: Sequence[Way], *, is_rehearsal: bool) -> list[Row]:
  """Runs ways in turns, and returns a row of times for each.

  One state goes through all of them, for several would not fit: what one
  returns, the next takes. Every other round goes backward.

  Args:
    ways: Of the same step; all are compared with the first, round by round.
    is_rehearsal: Whether very few rounds are enough.
  """
  runners = [Runner(way.compiled, ()) for way in ways]
  structures = [jax.tree.structure(way.step.args) for way in ways]
  leaves = jax.tree.leaves(zoo.concrete(ways[0].step))
  start_s = time.perf_counter()
  num_rounds = 0
  while not _is_enough(num_rounds, time.perf_counter() - start_s, is_rehearsal):
    order = range(len(ways))
    for i in order if num_rounds % 2 else reversed(order):
      # Blocks under jax.checkpoint have other names, in the same order.
      runners[i].args = jax.tree.unflatten(structures[i], leaves)
      del leaves
      runners[i].run()
      leaves = jax.tree.leaves(runners[i].args)
      runners[i].args = ()
    num_rounds += 1
  return [time_row(runner, runners[0]) for runner in runners]


def time_row(runner: Runner, plain: Runner) -> Row:
  """Returns the wall seconds of a way, compared with those of another."""
  own, other = (r.taken(_NUM_WARM_UP)[:, 0] for r in (runner, plain))
  ratios = own / other
  return {
    "num_rounds": len(ratios),
    "wall_s": float(np.median(own)),
    "wall_ratio": float(np.median(ratios)),
    "wall_ratio_interval": median_interval(list(ratios)),
  }


def _is_enough(num_rounds: int, seconds: float, is_rehearsal: bool) -> bool:
  num_timed = num_rounds - _NUM_WARM_UP
  if is_rehearsal:
    return num_timed >= _REHEARSED_ROUNDS
  if num_timed < _MIN_ROUNDS:
    return False
  return num_timed >= _MAX_ROUNDS or seconds > _ENOUGH_S
