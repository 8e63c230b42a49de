"""Plans and policies by hand, executed on a CPU at equal bytes.

Each step of `benchmarks.held_out` under `jax.jit`, under `jax.checkpoint`
around each block with JAX's policies, and under `jaxmem.jit`: without a limit,
with the bytes of each policy's program as the limit, and with shares of
jax.jit's. All run by turns in one process, in alternating order; a row for each
says what it took, beside what jaxmem's cost model expects.

    JAXMEM_CACHE_DIR="" python -m benchmarks.executed_time_benchmark \\
      --steps=gpt --output=benchmarks/results/executed_time.jsonl

Rows of a step are written once all of it ran. `python -m
benchmarks.executed_time_report` makes tables of them. With
`--efforts=normal,fast` every limit is planned for with both, and the programs
are compared; these rows belong into `benchmarks/results/executed_effort.jsonl`.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jaxmem
from benchmarks import compiled_programs, held_out
from benchmarks.paired import Runner, cpu_seconds, medians, ratios, run_round
from benchmarks.row_output import emit_row, versions
from jaxmem import cost
from jaxmem.options import Effort

_STEPS = flags.DEFINE_list("steps", sorted(held_out.STEPS), "Which steps.")
_SHARES = flags.DEFINE_list(
  "shares", ["0.75", "0.5"], "Limits, of the bytes of jax.jit's program."
)
_EFFORTS = flags.DEFINE_list(
  "efforts", ["normal"], "Efforts to plan for limits with; the first first."
)
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Timed runs of each.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_NUM_WARM_UP = 2

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Way:
  """A way to compile a step, and what came of it.

  Attributes:
    kind: "jit", "policy" or "jaxmem".
    policy: The policy's name; of a plan, that whose bytes are its limit.
    share: Of jax.jit's bytes, if that is the limit.
    effort: Of a plan.
    limit_bytes: What the program was to fit.
    compile: What compiling took and gave, for its row.
    compiled: The program; None if no plan was found.
  """

  kind: str
  policy: str | None = None
  share: float | None = None
  effort: Effort | None = None
  limit_bytes: int | None = None
  compile: Row
  compiled: jax.stages.Compiled | None

  def row(self) -> Row:
    """Returns what is known before anything runs."""
    names = ("kind", "policy", "share", "effort", "limit_bytes")
    return {name: getattr(self, name) for name in names} | self.compile


def _compile(
  jit: Callable[..., Any], step: held_out.Step
) -> tuple[Row, jax.stages.Compiled | None]:
  """Compiles a step, and says what that took.

  Args:
    jit: `jax.jit`, or jaxmem's with a limit.
    step: What to compile.
  """
  # So that all pay for tracing, and not the first alone.
  jax.clear_caches()
  shapes = jax.eval_shape(step.make_args)
  took: Row = {}
  compiled = None
  starts = [(time.perf_counter(), time.process_time())]
  try:
    lowered = jit(step.function, **step.jit_kwargs).lower(*shapes)
    starts.append((time.perf_counter(), time.process_time()))
    compiled = lowered.compile()
  except jaxmem.InfeasibleError as error:
    took["error"] = "no plan was found"
    took["smallest_bytes"] = error.smallest_bytes
    took["lower_bound_bytes"] = error.lower_bound_bytes
  starts.append((time.perf_counter(), time.process_time()))
  wall_s, cpu_s = np.subtract(starts[-1], starts[0])
  took |= {"compile_wall_s": float(wall_s), "compile_cpu_s": float(cpu_s)}
  if compiled is not None:
    # Without tracing and lowering.
    took["backend_cpu_s"] = starts[2][1] - starts[1][1]
    took |= _facts(compiled)
  return took, compiled


def _facts(compiled: jax.stages.Compiled) -> Row:
  """Returns a program's bytes, and the seconds expected of it."""
  memory: Any = compiled.memory_analysis()
  module = compiled_programs.final_module(compiled)
  device = cost.device_for("cpu")
  return {
    "total_bytes": compiled_programs.total_bytes(memory),
    "temp_bytes": memory.temp_size_in_bytes,
    "num_instructions": len(module.entry.instructions),
    "estimated_s": cost.step_time(module, device.rates).seconds
    + device.mapping_s(memory.temp_size_in_bytes),
  }


def _ways(build: Callable[..., held_out.Step]) -> Iterator[_Way]:
  """Yields jax.jit's program, then all others.

  Each plan comes right after what it is compared with, so that the two also run
  one after the other.
  """
  step = build()

  def plans(
    limit_bytes: int | None, efforts: Iterable[str], **names: Any
  ) -> Iterator[_Way]:
    for effort in cast(Iterable[Effort], efforts):
      options = jaxmem.Options(effort=effort)
      took, compiled = _compile(
        functools.partial(
          jaxmem.jit, memory_limit=limit_bytes, options=options
        ),
        step,
      )
      yield _Way(
        kind="jaxmem",
        effort=effort,
        limit_bytes=limit_bytes,
        compile=took,
        compiled=compiled,
        **names,
      )

  took, compiled = _compile(jax.jit, step)
  yield _Way(kind="jit", compile=took, compiled=compiled)
  total_bytes = took["total_bytes"]
  efforts = _EFFORTS.value
  yield from plans(None, efforts[:1])
  for policy in held_out.POLICIES if held_out.takes_policy(build) else ():
    took, compiled = _compile(jax.jit, build(policy))
    yield _Way(kind="policy", policy=policy, compile=took, compiled=compiled)
    yield from plans(took["total_bytes"], efforts, policy=policy)
  for share in map(float, _SHARES.value):
    yield from plans(int(share * total_bytes), efforts, share=share)


def _difference(found: Any, expected: Any) -> Row:
  """Compares results; differences are of each array's largest number.

  Raises:
    ValueError: If a result is not finite, so that a comparison says nothing.
  """
  largest, is_equal = 0.0, True
  leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
  for own, other in leaves:
    own, other = (np.asarray(array, np.float64) for array in (own, other))
    if not np.isfinite([own, other]).all():
      raise ValueError("Results must be finite; is the step a sensible one?")
    is_equal &= bool(np.array_equal(own, other))
    scale = max(float(np.abs(other).max(initial=0.0)), 1e-30)
    change = float(np.abs(own - other).max(initial=0.0))
    largest = max(largest, change / scale)
  return {"is_bit_equal": is_equal, "largest_difference": largest}


def measure(name: str, build: Callable[..., held_out.Step]) -> list[Row]:
  """Compiles and runs a step in all ways; returns a row for each.

  Args:
    name: Of the step.
    build: Makes it; takes the name of a policy if its blocks repeat.
  """
  ways = []
  for way in _ways(build):
    ways.append(way)
    # Plans may take long; the rows come when all ran.
    print(f"{name}: {way.row()}", file=sys.stderr, flush=True)
  args = jax.jit(build().make_args)()
  runners: dict[int, Runner] = {}
  differences: dict[int, Row] = {}
  expected: Any = None
  for i, way in enumerate(ways):
    if way.compiled is not None:
      runners[i] = Runner(way.compiled, args)
      results = way.compiled(*jax.tree.map(jnp.array, args))
      expected = results if expected is None else expected
      differences[i] = _difference(results, expected)
  for i in range(_NUM_WARM_UP + _ROUNDS.value):
    run_round([*runners.values()], i)
  taken = {i: runner.taken(_NUM_WARM_UP) for i, runner in runners.items()}
  rows = []
  for i, way in enumerate(ways):
    row = {"step": name} | way.row()
    if i in taken:
      row |= _times(taken[i], taken[0]) | differences[i]
      plain_s = ways[0].compile["estimated_s"]
      row["estimated_ratio"] = row["estimated_s"] / plain_s
      beside = _beside(ways, i)
      if beside in taken:
        own, other = taken[i][:, 0], taken[beside][:, 0]
        is_policy = ways[beside].kind == "policy"
        row["to_policy" if is_policy else "to_first_effort"] = ratios(
          own, other
        )
    rows.append(row | {"versions": versions("jax", "jaxlib", "jaxmem")})
  return rows


def _beside(ways: Sequence[_Way], number: int) -> int | None:
  """Returns what a way is compared with: what it follows, at equal bytes."""
  way, before = ways[number], ways[number - 1]
  is_alike = (before.policy, before.share) == (way.policy, way.share)
  return number - 1 if way.limit_bytes is not None and is_alike else None


def _times(own: np.ndarray, plain: np.ndarray) -> Row:
  """Returns what runs took, and that of jax.jit's beside them."""
  return {
    "rounds": len(own),
    **medians(own),
    "wall": ratios(own[:, 0], plain[:, 0]),
    "cpu": ratios(cpu_seconds(own), cpu_seconds(plain)),
  }


def _load_planner() -> None:
  """Compiles something small in each way, so that all is loaded."""
  x = jnp.ones((8, 8))
  for jit in (
    jax.jit,
    jaxmem.jit,
    functools.partial(jaxmem.jit, memory_limit="1GiB"),
  ):
    jit(lambda x: jnp.sin(x @ x) @ x).lower(x).compile()


def main(argv: list[str]) -> None:
  """Measures all steps that were named."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  _load_planner()
  for name in _STEPS.value:
    for row in measure(name, held_out.STEPS[name]):
      emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
