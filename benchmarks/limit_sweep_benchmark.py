"""Checks the plans of random small steps under random byte limits.

A row for each step and limit. Each plan is compiled: XLA has to take as many
bytes as predicted, and no more than the limit. Where a limit has no plan, the
smallest program that the error names has to be one. On a CPU the step runs,
too, and its outputs are compared with `jax.jit`'s. The last line counts rows
and failures; any failure makes the exit status 1.

    python -m benchmarks.limit_sweep_benchmark --first=0 --count=20 \
      --targets=cpu,h200 --output=rows.jsonl
"""

import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

import jax
import numpy as np
from absl import app, flags

import jaxmem
from benchmarks import random_steps
from benchmarks.row_output import emit_row, versions

_FIRST = flags.DEFINE_integer("first", 0, "The first seed.")
_COUNT = flags.DEFINE_integer("count", 5, "How many seeds.")
_TARGETS = flags.DEFINE_list("targets", ["cpu"], "Devices to plan for.")
_LIMITS = flags.DEFINE_integer("limits", 3, "Limits of each step.")
_EFFORT = flags.DEFINE_enum(
  "effort", "fast", ["fast", "normal", "prove"], "Effort of the search."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

# Of the temporaries without a limit.
_LEAST, _MOST = 0.1, 0.98

Row = dict[str, Any]


class _Case:
  """A random step on a target.

  Args:
    seed: Of the step and the limits.
    target: "cpu", or the name of a device to compile for.
  """

  def __init__(self, seed: int, target: str):
    self._seed, self._target = seed, target
    self._step = random_steps.build(seed)
    self._options: dict[str, Any] = {
      "donate_argnums": self._step.donate_argnums,
      "options": jaxmem.Options(effort=cast(Any, _EFFORT.value)),
    }

  def rows(self) -> Iterator[Row]:
    """Yields a row for each limit, in falling order."""
    whole = self._plan(None)
    fixed_bytes = whole.total_bytes - whole.temp_bytes
    source = np.random.default_rng(self._seed)
    fractions = sorted(source.uniform(_LEAST, _MOST, _LIMITS.value))[::-1]
    for fraction in fractions:
      start_s = time.process_time()
      limit = fixed_bytes + int(fraction * whole.temp_bytes)
      yield {
        "seed": self._seed,
        "target": self._target,
        "traits": dataclasses.asdict(self._step.traits),
        "fraction": round(float(fraction), 4),
        "limit_bytes": limit,
        "unlimited_bytes": whole.total_bytes,
        **self._outcome(limit),
        "planning_s": round(time.process_time() - start_s, 1),
        "versions": versions("jax", "jaxlib", "jaxmem"),
      }

  def _outcome(self, limit: int) -> Row:
    """Plans for a limit, or for the smallest program that an error names."""
    row: Row = {"is_feasible": True, "failure": ""}
    try:
      plan = self._plan(limit)
    except jaxmem.InfeasibleError as error:
      limit = error.smallest_bytes
      row |= {"is_feasible": False, "smallest_bytes": limit}
      row["lower_bound_bytes"] = error.lower_bound_bytes
      try:
        plan = self._plan(limit)
      except jaxmem.InfeasibleError:
        return row | {"failure": "the smallest program cannot be planned"}
    assert plan.budget is not None
    row |= {
      "total_bytes": plan.total_bytes,
      "model_error": plan.model_error,
      "num_recomputed": plan.budget.num_recomputed,
      "num_dropped": plan.budget.num_dropped,
      "extra": round(plan.budget.extra, 5),
    }
    if plan.model_error:
      return row | {"failure": "the prediction is wrong"}
    if plan.total_bytes > limit:
      return row | {"failure": "the plan does not fit"}
    if self._target != "cpu":
      return row
    error = self._error(limit)
    row["largest_error"] = error
    # Of a changed step, XLA may round bfloat16 elsewhere.
    dtype, num_dropped = self._step.traits.dtype, plan.budget.num_dropped
    may_differ = dtype == "bfloat16" and num_dropped > 0
    return row | {"failure": "" if not error or may_differ else "other outputs"}

  def _plan(self, limit: int | None) -> jaxmem.Plan:
    target = None if self._target == "cpu" else self._target
    return jaxmem.plan(
      self._step.function,
      *self._step.args,
      memory_limit=limit,
      target=target,
      **self._options,
    )

  def _error(self, limit: int) -> float:
    """Returns the largest difference to what `jax.jit` computes."""
    planned = jaxmem.jit(
      self._step.function, memory_limit=limit, **self._options
    )
    found = planned(*jax.tree.map(lambda x: x.copy(), self._step.args))
    expected = jax.jit(self._step.function)(*self._step.args)
    errors = jax.tree.map(_difference, found, expected)
    return max(jax.tree.leaves(errors))


def _difference(found: jax.Array, expected: jax.Array) -> float:
  wide = np.asarray(found, np.float64) - np.asarray(expected, np.float64)
  return float(np.abs(wide).max())


def main(argv: list[str]) -> None:
  """Prints the rows of all seeds."""
  del argv
  num_rows = num_failed = 0
  for seed in range(_FIRST.value, _FIRST.value + _COUNT.value):
    for target in _TARGETS.value:
      for row in _Case(seed, target).rows():
        emit_row(row, _OUTPUT.value)
        num_rows += 1
        num_failed += bool(row["failure"])
  print(f"{num_rows} rows, {num_failed} failures")
  sys.exit(num_failed > 0)


if __name__ == "__main__":
  app.run(main)
