"""Writes "Executed" and "With less effort" in docs/budget.md from rows.

python -m benchmarks.executed_time_report
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from absl import app

from benchmarks import page

_TITLES = (
  "",
  "limit MB",
  "total MB",
  "compile s",
  "CPU s",
  "planning CPU s",
  "of XLA's",
  "executed",
  "interval",
  "CPU time",
  "estimated",
  "to the policy",
  "difference",
)
_SUMMARY_TITLES = (
  "step",
  "to policies: mean",
  "worst",
  "CPU time: mean",
  "worst",
  "rank correlation",
  "of CPU time",
  "planning of XLA's: median",
  "worst",
  "no plan",
)

_EFFORT_TITLES = (
  "step",
  "limits",
  "planning s",
  "fast",
  "of XLA's",
  "fast",
  "by normal",
  "executed by normal: mean",
  "worst",
  "estimated: mean",
  "no plan",
  "fast",
)

# What estimates differ by to be the same.
_NO_MORE = 1.001


def main(argv: list[str]) -> None:
  """Fills the page."""
  del argv
  tables = {
    "executed": text_of(page.read_rows("executed_time.jsonl")),
    "effort": effort_text_of(page.read_rows("executed_effort.jsonl")),
  }
  page.fill("budget.md", tables, {})


def text_of(rows: Sequence[page.Row]) -> str:
  """Returns a summary of all steps, and a table for each.

  Args:
    rows: Of the benchmark; of each step all, jax.jit's first.
  """
  steps = page.by_step(rows)
  parts = [
    _overall([*steps.values()]),
    page.table(_SUMMARY_TITLES, map(_summary_cells, steps.values())),
  ]
  for name, own in steps.items():
    plain = own[0]
    parts.append(
      f"`{name}`, {plain['num_instructions']} instructions,"
      f" {1e3 * plain['wall_s']:.0f} ms, {plain['rounds']} rounds. XLA's"
      f" compile: {plain['backend_cpu_s']:.1f} s of CPU time.\n"
    )
    parts.append(page.table(_TITLES, (_cells(row, plain) for row in own)))
  return "\n".join(parts)


def effort_text_of(rows: Sequence[page.Row]) -> str:
  """Returns what less effort saves and costs, for all steps and for each.

  Args:
    rows: Of the benchmark with two efforts, "normal" first.
  """
  steps = page.by_step(rows)
  found = [_of_efforts(own) for own in steps.values()]
  shares = [each.fast.planning_s / each.normal.planning_s for each in found]
  planning = [ratio for each in found for ratio in each.fast.of_xla]
  wall = [ratio for each in found for ratio in each.executed]
  estimated = [ratio for each in found for ratio in each.estimated]
  lines = [
    'Planning with effort "fast" takes'
    f" {np.median(shares):.2f} of the CPU time that the default takes by the"
    f" median of {len(found)} steps, {max(shares):.2f} at worst, and"
    f" {np.median(planning):.1f} times that of XLA's compile by the median of"
    f" {len(planning)} limits, {max(planning):.1f} at worst.",
    f"Its plans take {_geometric_mean(wall):.3f} of the wall time of the"
    f" default's by the geometric mean of {len(wall)}, {max(wall):.3f} at"
    f" worst; by estimate {_geometric_mean(estimated):.3f} and"
    f" {max(estimated):.3f}.",
  ]
  cells = [_effort_cells(*each) for each in zip(steps, found, strict=True)]
  return page.bullets(lines) + "\n" + page.table(_EFFORT_TITLES, cells)


class _Effort(NamedTuple):
  """What planning a step took with one effort.

  Attributes:
    planning_s: CPU seconds for all limits.
    of_xla: Of each limit, by those of XLA's compile.
    no_plan: For how many limits no plan was found.
  """

  planning_s: float
  of_xla: list[float]
  no_plan: int

  @classmethod
  def of(cls, plans: Sequence[page.Row], plain: page.Row) -> _Effort:
    return cls(
      planning_s=sum(_planning_seconds(plans, plain)),
      of_xla=_planning_ratios(plans, plain),
      no_plan=sum("error" in row for row in plans),
    )


class _Efforts(NamedTuple):
  """Plans of one step with two efforts.

  Attributes:
    normal: With the default.
    fast: With less.
    executed: Wall time of plans of less effort, by that of the others.
    estimated: The same by estimate.
  """

  normal: _Effort
  fast: _Effort
  executed: list[float]
  estimated: list[float]


def _of_efforts(rows: Sequence[page.Row]) -> _Efforts:
  plain = rows[0]
  normal, fast = (
    [r for r in rows if r["limit_bytes"] is not None and r["effort"] == effort]
    for effort in ("normal", "fast")
  )
  pairs = [
    (one, other)
    for one, other in zip(normal, fast, strict=True)
    if "error" not in one and "error" not in other
  ]
  return _Efforts(
    normal=_Effort.of(normal, plain),
    fast=_Effort.of(fast, plain),
    executed=_wall(other["to_first_effort"] for _, other in pairs),
    estimated=[
      other["estimated_ratio"] / one["estimated_ratio"] for one, other in pairs
    ],
  )


def _effort_cells(name: str, found: _Efforts) -> list[str]:
  efforts = found.normal, found.fast
  number = len(found.normal.of_xla)
  return [
    f"`{name}`",
    str(number),
    *(f"{each.planning_s / number:.1f}" for each in efforts),
    *(f"{np.median(each.of_xla):.1f}" for each in efforts),
    f"{found.fast.planning_s / found.normal.planning_s:.2f}",
    *_mean_and_worst(found.executed),
    *_mean_and_worst(found.estimated)[:1],
    *(str(each.no_plan) for each in efforts),
  ]


def planning_cpu_s(row: page.Row, plain: page.Row) -> float:
  """Returns what a plan's compile took besides what jax.jit's takes.

  Args:
    row: Of a plan, or of a limit that none was found for.
    plain: jax.jit's, of the same step.
  """
  usual_s = plain["compile_cpu_s"]
  if "error" in row:  # Nothing was compiled to the end.
    usual_s -= plain["backend_cpu_s"]
  return row["compile_cpu_s"] - usual_s


def rank_correlation(rows: Sequence[page.Row], what: str) -> float:
  """Returns Spearman's, of estimated and executed ratios to jax.jit.

  Args:
    rows: Of one step.
    what: "wall" or "cpu".

  Returns:
    The correlation; nan for fewer than three programs, or if all estimates are
    alike.
  """
  ran = [row for row in rows if "error" not in row]
  estimated = _ranks([row["estimated_ratio"] for row in ran])
  executed = _ranks([row[what]["median_of_ratios"] for row in ran])
  if len(ran) < 3 or not (estimated.std() and executed.std()):
    return math.nan
  return float(np.corrcoef(estimated, executed)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
  """Returns each value's rank from 0; equal ones share the mean of theirs."""
  array = np.array(values)
  below = (array[:, None] > array).sum(1)
  return below + ((array[:, None] == array).sum(1) - 1) / 2


def _geometric_mean(ratios: Iterable[float]) -> float:
  return float(np.exp(np.mean(np.log([*ratios]))))


def _to_policies(rows: Iterable[page.Row]) -> list[page.Row]:
  """Returns what compares plans with policies of the same bytes."""
  return [row["to_policy"] for row in rows if "to_policy" in row]


def _wall(compared: Iterable[page.Row]) -> list[float]:
  return [one["median_of_ratios"] for one in compared]


def _num_surely_slower(compared: Iterable[page.Row]) -> int:
  return sum(one["median_of_ratios_interval"][0] > 1 for one in compared)


def _cpu_to_policies(rows: Sequence[page.Row]) -> list[float]:
  """Returns plans' CPU times, by those of the policies just before them."""
  return [
    _cpu(row) / _cpu(policy)
    for policy, row in itertools.pairwise(rows)
    if "to_policy" in row
  ]


def _cpu(row: page.Row) -> float:
  return row["cpu"]["median_of_ratios"]


def _planning_seconds(rows: Iterable[page.Row], plain: page.Row) -> list[float]:
  """Returns CPU seconds of planning under limits."""
  limited = (row for row in rows if row["limit_bytes"] is not None)
  return [planning_cpu_s(row, plain) for row in limited]


def _planning_ratios(rows: Iterable[page.Row], plain: page.Row) -> list[float]:
  """Returns planning under limits, of XLA's compile of the same step."""
  return [s / plain["backend_cpu_s"] for s in _planning_seconds(rows, plain)]


def _planning_text(steps: Sequence[Sequence[page.Row]]) -> str:
  """Says what planning under limits takes, by XLA's compile and in seconds."""
  ratios = [r for rows in steps for r in _planning_ratios(rows, rows[0])]
  seconds = [s for rows in steps for s in _planning_seconds(rows, rows[0])]
  return (
    f"Planning under a limit takes {np.median(ratios):.1f} times the CPU time"
    f" of XLA's compile by the median of {len(ratios)}, {max(ratios):.1f} at"
    f" worst. That is {np.median(seconds):.1f} s by the median and"
    f" {max(seconds):.1f} at worst; {sum(s > 10 for s in seconds)} take more"
    " than 10."
  )


def _larger_by_smaller(rows: Sequence[page.Row]) -> list[float]:
  """Returns larger limits' estimated seconds by those of smaller ones.

  Of limits below what the step takes without one.
  """
  ran = [row for row in rows if row["kind"] == "jaxmem" and "error" not in row]
  needed = [row["total_bytes"] for row in ran if not row["limit_bytes"]]
  most = min(needed, default=math.inf)
  ran = [row for row in ran if 0 < (row["limit_bytes"] or 0) < most]
  ran.sort(key=lambda row: row["limit_bytes"])
  return [
    large["estimated_ratio"] / small["estimated_ratio"]
    for small, large in itertools.combinations(ran, 2)
    if small["limit_bytes"] < large["limit_bytes"]
  ]


def _overall(steps: Sequence[Sequence[page.Row]]) -> str:
  """Returns lines about all steps."""
  compared = _to_policies(row for rows in steps for row in rows)
  found = [rank_correlation(rows, "wall") for rows in steps]
  known = [value for value in found if not math.isnan(value)]
  lines = [f"These are {len(steps)} steps."]
  if compared:
    wall = _wall(compared)
    cpu = [ratio for rows in steps for ratio in _cpu_to_policies(rows)]
    slower = sum(ratio > 1 for ratio in wall)
    surely = _num_surely_slower(compared)
    lines.append(
      f"At a policy's bytes a plan takes {_geometric_mean(wall):.3f} of its"
      f" wall time by the geometric mean of {len(wall)}, {max(wall):.3f} at"
      f" worst; {slower} are slower, {surely} surely (the interval lies above"
      f" 1). Of CPU time it takes {_geometric_mean(cpu):.3f}, {max(cpu):.3f} at"
      f" worst; {sum(ratio > 1 for ratio in cpu)} take more."
    )
  if known:
    lines.append(
      "Rank correlation of estimated and executed times:"
      f" {np.median(known):.2f} by the median, {min(known):.2f} at worst."
    )
  slower = [ratio for rows in steps for ratio in _larger_by_smaller(rows)]
  if slower:
    lines.append(
      f"Of {len(slower)} pairs of limits that one step does not meet as it is,"
      " the larger has the plan of the longer estimate in"
      f" {sum(r > _NO_MORE for r in slower)}, by {max(slower) - 1:.1%} at most."
    )
  lines.append(_planning_text(steps))
  return page.bullets([*lines, *_without_limit(steps)])


def _without_limit(steps: Sequence[Sequence[page.Row]]) -> list[str]:
  """Returns sentences about steps and compiles without a limit, if any."""
  compiles = [pair for rows in steps for pair in _compile_ratios(rows)]
  ran = [
    row["wall"]
    for rows in steps
    for row in rows
    if row["kind"] == "jaxmem" and not row["limit_bytes"]
  ]
  if not ran:
    return []
  wall = _wall(ran)
  return [
    f"Without a limit, steps take {_geometric_mean(wall):.3f} of `jax.jit`'s"
    f" wall time by the geometric mean of {len(wall)}, {max(wall):.3f} at"
    f" worst; {_num_surely_slower(ran)} are surely slower.",
    "Without a limit, compiling takes " + _free_text(compiles),
  ]


def _compile_ratios(rows: Sequence[page.Row]) -> list[tuple[float, float]]:
  """Returns the CPU and wall time of compiles without a limit by jax.jit's."""
  plain = next(row for row in rows if row["kind"] == "jit")
  return [
    tuple(row[key] / plain[key] for key in ("compile_cpu_s", "compile_wall_s"))
    for row in rows
    if row["kind"] == "jaxmem" and not row["limit_bytes"]
  ]


def _free_text(ratios: Sequence[tuple[float, float]]) -> str:
  cpu, wall = zip(*ratios, strict=True)
  return (
    f"{np.median(cpu):.2f} of `jax.jit`'s CPU time by the median,"
    f" {max(cpu):.2f} at worst; of wall time {np.median(wall):.2f} and"
    f" {max(wall):.2f}."
  )


def _summary_cells(rows: Sequence[page.Row]) -> list[str]:
  wall, cpu = _wall(_to_policies(rows)), _cpu_to_policies(rows)
  planning = _planning_ratios(rows, rows[0])
  return [
    f"`{rows[0]['step']}`",
    *_mean_and_worst(wall),
    *_mean_and_worst(cpu),
    *_rank_correlations(rows),
    f"{np.median(planning):.1f}",
    f"{max(planning):.1f}",
    str(sum("error" in row for row in rows)),
  ]


def _rank_correlations(rows: Sequence[page.Row]) -> list[str]:
  found = [rank_correlation(rows, what) for what in ("wall", "cpu")]
  return ["" if math.isnan(each) else f"{each:.2f}" for each in found]


def _mean_and_worst(ratios: Sequence[float]) -> list[str]:
  if not ratios:
    return ["", ""]
  return [f"{_geometric_mean(ratios):.3f}", f"{max(ratios):.3f}"]


def _cells(row: page.Row, plain: page.Row) -> list[str]:
  cells = [_name(row), _megabytes(row["limit_bytes"])]
  compiling = [f"{row['compile_wall_s']:.1f}", f"{row['compile_cpu_s']:.1f}"]
  if row["kind"] == "jaxmem":
    planning_s = planning_cpu_s(row, plain)
    relative = planning_s / plain["backend_cpu_s"]
    compiling += [f"{planning_s:.1f}", f"{relative:.1f}"]
  else:
    compiling += ["", ""]
  if "error" in row:
    smallest = f"none; smallest {_megabytes(row['smallest_bytes'])}"
    return [*cells, smallest, *compiling, *[""] * 6]
  wall = row["wall"]
  policy = row.get("to_policy")
  return [
    *cells,
    _megabytes(row["total_bytes"]),
    *compiling,
    f"{wall['median_of_ratios']:.3f}",
    "{:.2f} to {:.2f}".format(*wall["median_of_ratios_interval"]),
    f"{row['cpu']['median_of_ratios']:.3f}",
    f"{row['estimated_ratio']:.3f}",
    f"{policy['median_of_ratios']:.3f}" if policy else "",
    "none" if row["is_bit_equal"] else f"{row['largest_difference']:.0e}",
  ]


def _name(row: page.Row) -> str:
  if row["kind"] == "jit":
    return "`jax.jit`"
  if row["kind"] == "policy":
    return f"`{row['policy']}`"
  if row["policy"]:
    return f"jaxmem, as `{row['policy']}`"
  return f"jaxmem, {row['share']:.0%}" if row["share"] else "jaxmem, no limit"


def _megabytes(num_bytes: int | None) -> str:
  return "" if num_bytes is None else f"{num_bytes / 1e6:.1f}"


if __name__ == "__main__":
  app.run(main)
