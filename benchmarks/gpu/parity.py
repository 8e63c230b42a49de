"""Whether a planned step computes what `jax.jit` computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import zoo
from benchmarks.gpu import models, ways
from benchmarks.gpu.case import Context, Part, Row, cases, error_text

_DETERMINISTIC = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
_NUM_STEPS = 3
_SHARE = 0.75
# By hand, blocks are recomputed so where memory is short.
_POLICY = "nothing_saveable"
_TITLES = (
  "step",
  "way",
  "bit-equal",
  "differs by",
  "two of jax.jit differ by",
  "jax.checkpoint differs by",
  "passed",
)


def _run(context: Context) -> None:
  """Compares jax.jit with itself, compiled twice, and jaxmem with it.

  Where they differ, once more without autotuning: two compiles may have been
  given different kernels.
  """
  if not _compare(context, None, "") and not context.is_rehearsal:
    _compare(context, ways.UNTUNED, ", not autotuned")


def _compare(
  context: Context, options: ways.CompilerOptions, suffix: str
) -> bool:
  """Writes a row for each way; returns whether all passed.

  Blocks that a limit has recomputed are compiled to other kernels, as they are
  under `jax.checkpoint`; so as much as that changes is no failure there.
  """
  name = context.case.name

  def build(policy: str | None = None) -> zoo.Step:
    return models.build_small(
      name, is_rehearsal=context.is_rehearsal, policy=policy
    )

  first = ways.by_jax(build(), options=options)
  args = ways.run_steps(first, _NUM_STEPS)
  second = ways.by_jax(build(), options=options)
  own = difference(args, ways.run_steps(second, _NUM_STEPS))
  by_hand = None
  if name in models.MODELS:
    checkpointed = ways.by_jax(build(_POLICY), options=options)
    by_hand = difference(args, ways.run_steps(checkpointed, _NUM_STEPS))
  limits = {"jaxmem": None, f"jaxmem, {_SHARE:.0%}": first.limit_at(_SHARE)}
  passed = True
  for way_name, limit_bytes in limits.items():
    row: Row = {
      "model": name,
      "way": way_name + suffix,
      "jax_difference": own,
      "checkpoint_difference": by_hand,
      "jax_temp_bytes": first.memory.temp_size_in_bytes,
    }
    try:
      way = ways.by_jaxmem(build(), way_name, limit_bytes, options)
    except ways.FAILURES as error:
      context.emit(row | {"error": error_text(error)})
      continue
    found = difference(args, ways.run_steps(way, _NUM_STEPS))
    allowed = own if limit_bytes is None else max(own, by_hand or 0.0)
    passed &= found <= allowed
    row |= {"difference": found, "num_steps": _NUM_STEPS}
    row |= {"is_bit_equal": found == 0.0, "passed": found <= allowed}
    context.emit(row | {"temp_bytes": way.memory.temp_size_in_bytes})
  return passed


def difference(one: Any, other: Any) -> float:
  """Returns by how much two states differ, 0 if bit by bit not at all.

  The largest difference of an array, as a fraction of its largest value.
  Infinite if one is not finite where the other is.
  """
  worst = 0.0
  leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  for a, b in leaves:
    x, y = np.asarray(a), np.asarray(b)
    if x.tobytes() == y.tobytes():
      continue
    x, y = x.astype(np.float64), y.astype(np.float64)
    gap = np.max(np.abs(x - y))
    scale = np.max(np.abs(x))
    is_known = np.isfinite(gap) and np.isfinite(scale)
    # Equal values of unequal bits, 0 and -0, still are a difference.
    worst = max(worst, gap / scale if is_known and scale else np.inf, 5e-324)
  return float(worst)


def _cells(row: Row) -> Sequence[object]:
  if "error" in row:
    return [row["model"], row["way"], row["error"], *[""] * 4]
  by_hand = row.get("checkpoint_difference")
  return [
    row["model"],
    row["way"],
    "yes" if row["is_bit_equal"] else "no",
    f"{row['difference']:.1e}",
    f"{row['jax_difference']:.1e}",
    "" if by_hand is None else f"{by_hand:.1e}",
    "yes" if row["passed"] else "no",
  ]


PART = Part(
  name="parity",
  question=(
    "Are three steps of the zoo's small models, under deterministic kernels,"
    " equal to those of `jax.jit`, or as near as two compiles of `jax.jit` are"
    " to each other, or under a limit as `jax.checkpoint` is?"
  ),
  cases=cases(
    models.ALL_STEPS,
    30,
    rehearsed=("unet", "llama_stack", "alexnet"),
    rehearsed_s=10,
    waves=(*(0 for _ in models.MODELS), 2),
    environment=_DETERMINISTIC,
  ),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
