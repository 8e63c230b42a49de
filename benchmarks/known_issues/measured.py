"""What becomes of a program: its bytes in several ways, its results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmem
from benchmarks.known_issues.steps import KnownStep
from jaxmem import targets

# Less is not worth a limit: a few scalars.
_FEW_BYTES = 2**20
_LIMIT_SHARE = 0.5


def measure(step: KnownStep) -> Iterator[dict[str, Any]]:
  """Yields the row of each target of a program."""
  function, shapes = step.make()
  keywords: dict[str, Any] = {"donate_argnums": 0} if step.donates else {}
  for target in step.targets:
    described = target if target in targets.known_names() else None
    start_s = time.perf_counter()
    plan = jaxmem.plan(function, *shapes, target=described, **keywords)
    row: dict[str, Any] = {
      "target": target,
      "jit_bytes": plan.baseline_temp_bytes,
      "other_bytes": _other_bytes(step, function, shapes, keywords),
      "planned_bytes": plan.temp_bytes,
      "lower_bound_bytes": plan.lower_bound_bytes,
      "planning_s": plan.planning_s,
      "compile_s": time.perf_counter() - start_s - plan.planning_s,
      "vain_donations": [
        a.reason for a in plan.donation if a.status == "unused donation"
      ],
    }
    jitted = [jaxmem.jit(function, **keywords)]
    if plan.baseline_temp_bytes > _FEW_BYTES:
      fixed_bytes = plan.total_bytes - plan.temp_bytes
      limit = fixed_bytes + int(_LIMIT_SHARE * plan.baseline_temp_bytes)
      keywords_limited = {**keywords, "memory_limit": limit}
      try:
        limited = jaxmem.plan(
          function, *shapes, target=described, **keywords_limited
        )
        budget = limited.budget
        assert budget is not None
        row["limited_bytes"] = limited.temp_bytes
        row["limited_change"] = budget.change
        row["limited_planning_s"] = limited.planning_s
        jitted.append(jaxmem.jit(function, **keywords_limited))
      except jaxmem.InfeasibleError as error:
        row["smallest_bytes"] = error.smallest_bytes - fixed_bytes
    if target == "cpu":
      expected = jax.jit(function, **keywords)
      row["is_bit_equal"] = all(
        _is_equal(expected, other, shapes) for other in jitted
      )
    yield row


def _other_bytes(
  step: KnownStep, function: Any, shapes: Any, keywords: dict[str, Any]
) -> int | None:
  """Returns the temporaries by XLA with other options, if there are any."""
  if step.xla_options is None:
    return None
  lowered = jax.jit(function, **keywords).lower(*shapes)
  memory: Any = lowered.compile(
    compiler_options={"xla_gpu_autotune_level": 0, **step.xla_options}
  ).memory_analysis()
  return memory.temp_size_in_bytes


def _is_equal(expected: Any, other: Any, shapes: Any) -> bool:
  """Whether two functions give the same bits."""
  pairs = zip(
    jax.tree.leaves(expected(*_arrays(shapes))),
    jax.tree.leaves(other(*_arrays(shapes))),
    strict=True,
  )
  return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _arrays(shapes: Any) -> Any:
  """Returns arrays of some shapes, the same each time."""
  source = np.random.default_rng(0)

  def make(shape: Any) -> Any:
    if jnp.issubdtype(shape.dtype, jnp.floating):
      return jnp.asarray(source.normal(size=shape.shape) / 16, shape.dtype)
    return jnp.asarray(source.integers(0, 30, shape.shape), shape.dtype)

  return jax.tree.map(make, shapes)
