"""Writes "Llama-3-8B" in docs/budget.md from the benchmark's rows.

python -m benchmarks.llama_report
"""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections.abc import Iterable, Sequence

from absl import app

from benchmarks import page
from jaxmem import targets

# Of a GPU's memory: beyond it XLA recomputes once a program is scheduled.
_XLA_SHARE = 0.8
_TITLES = (
  "",
  "total MB",
  "ms",
  "compile CPU s",
  "jaxmem: total MB",
  "ms",
  "planning CPU s",
  "ms by the policy's",
)
_LIMIT_TITLES = ("limit MB", "total MB", "ms", "planning CPU s")


def main(argv: list[str]) -> None:
  """Fills the page."""
  del argv
  rows = page.read_rows("llama.jsonl")
  page.fill("budget.md", {"llama": text_of(rows)}, {})


def text_of(rows: Sequence[page.Row]) -> str:
  """Returns a summary of all steps, and a table for each.

  Args:
    rows: Of the benchmark; of each step all, jax.jit's first, and each plan
      right after the policy whose bytes are its limit.
  """
  steps: dict[tuple[str, int, bool], list[page.Row]] = {}
  for row in rows:
    step = row["form"], row["num_layers"], _may_rematerialise(row)
    steps.setdefault(step, []).append(row)
  parts = [_overall([*steps.values()])]
  for own in steps.values():
    plain, unlimited = own[:2]
    parts.append(
      textwrap.fill(
        f"{_title(plain)}. `jax.jit`: {_program(plain)},"
        f" {plain['num_instructions']} instructions,"
        f" {plain['compile_cpu_s']:.1f} s of CPU time to compile. jaxmem"
        f" without a limit: {_program(unlimited)}.",
        80,
      )
      + "\n"
    )
    pairs = _pairs(own)
    parts.append(page.table(_TITLES, itertools.starmap(_cells, pairs)))
    others = [r for r in own[2:] if r["policy"] is None]
    if others:
      parts.append(page.table(_LIMIT_TITLES, map(_limit_cells, others)))
  return "\n".join(parts)


def _pairs(rows: Sequence[page.Row]) -> list[tuple[page.Row, page.Row]]:
  """Returns policies' rows, each with that of the plan at its bytes."""
  return [
    (policy, plan)
    for policy, plan in itertools.pairwise(rows)
    if policy["kind"] == "policy"
  ]


def _overall(steps: Sequence[Sequence[page.Row]]) -> str:
  """Returns lines about the pairs of each step."""
  return page.bullets(
    f"{_title(rows[0])}: {sentence}"
    for rows in steps
    for sentence in _compared(_pairs(rows))
  )


def _title(row: page.Row) -> str:
  switched = "" if _may_rematerialise(row) else ", `--xla_remat=false`"
  return f"{row['num_layers']} layers, {row['form']}{switched}"


def _compared(pairs: Sequence[tuple[page.Row, page.Row]]) -> Iterable[str]:
  """Yields a sentence about the plans that were found, and one about others."""
  ratios = {
    policy["policy"]: plan["step_s"] / policy["step_s"]
    for policy, plan in pairs
    if "error" not in plan
  }
  if ratios:
    dearer = [f"`{name}` ({r:.3f})" for name, r in ratios.items() if r > 1]
    kept = [r for name, r in ratios.items() if not name.endswith("_offloaded")]
    mean = statistics.geometric_mean
    beside = ""
    if kept:
      beside = f", {mean(kept):.3f} beside those that offload nothing"
    yield (
      f"at a policy's bytes a plan takes {mean(ratios.values()):.3f} of its"
      f" estimated time by the geometric mean of {len(ratios)}{beside}. Dearer"
      f" than the policy: {', '.join(dearer) or 'none'}."
    )
  missing = [
    f"`{policy['policy']}`"
    f" ({plan['smallest_bytes'] / policy['total_bytes']:.3f})"
    for policy, plan in pairs
    if "error" in plan
  ]
  if missing:
    yield (
      f"no plan was found at the bytes of {', '.join(missing)}; in brackets"
      " the smallest program that was found, by the policy's."
    )


def _may_rematerialise(row: page.Row) -> bool:
  return row.get("xla_remat", True)


def _program(row: page.Row) -> str:
  """Returns a program's bytes and time, in words."""
  return f"{_megabytes(row)} MB, {1e3 * row['step_s']:.1f} ms"


def _cells(policy: page.Row, plan: page.Row) -> list[str]:
  cells = [
    f"`{policy['policy']}`",
    *_bytes_and_time(policy),
    f"{policy['compile_cpu_s']:.1f}",
  ]
  is_found = "error" not in plan
  ratio = f"{plan['step_s'] / policy['step_s']:.3f}" if is_found else ""
  return [*cells, *_plan_cells(plan), ratio]


def _limit_cells(plan: page.Row) -> list[str]:
  return [f"{plan['limit_bytes'] / 1e6:,.0f}", *_plan_cells(plan)]


def _plan_cells(plan: page.Row) -> list[str]:
  """Returns a plan's bytes and time, and what planning took."""
  planning = f"{plan['planning_cpu_s']:.1f}"
  if "error" in plan:
    smallest = f"none; smallest {plan['smallest_bytes'] / 1e6:,.0f}"
    return [smallest, "", planning]
  return [*_bytes_and_time(plan), planning]


def _bytes_and_time(row: page.Row) -> list[str]:
  return [_megabytes(row), f"{1e3 * row['step_s']:.1f}"]


def _megabytes(row: page.Row) -> str:
  """Returns a program's bytes, with a star where XLA went on recomputing."""
  text = f"{row['total_bytes'] / 1e6:,.0f}"
  share_bytes = _XLA_SHARE * (targets.get(row["target"]).memory_bytes or 0)
  # Under a limit XLA runs what was planned.
  is_planned = row.get("limit_bytes") is not None
  is_above = row["total_bytes"] > share_bytes and not is_planned
  is_changed = row["temp_bytes"] != row["predicted_temp_bytes"]
  is_recomputed = _may_rematerialise(row) and (is_above or is_changed)
  return f"{text}*" if is_recomputed else text


if __name__ == "__main__":
  app.run(main)
