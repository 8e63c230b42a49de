"""Writes the tables of docs/budget.md from the benchmark's rows.

python -m benchmarks.budget_report
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from absl import app

from benchmarks import page

_KINDS = ("plan", "policy", "xla")
_TITLES = (
  "",
  "limit MB",
  "of XLA's",
  "temporaries MB",
  "extra %",
  "schedule %",
  "run twice",
  "to the host",
  "dropped",
  "first plan s",
  "planning s",
  "XLA s",
)
_MATCH_TITLES = (
  "step",
  "bytes of",
  "limit MB",
  "policies %",
  "half %",
  "jaxmem MB",
  "jaxmem %",
  "edits, at least %",
  "bound s",
  "planning s",
  "XLA s",
)
_HELD_OUT_TITLES = (
  "step",
  "instructions",
  "limits, of XLA's %",
  "policies %",
  "jaxmem %",
  "edits, at least %",
  "half",
  "behind",
  "planning s",
  "XLA s",
)
# What a plan may take more, as a share of the step, and not be behind.
_ALIKE = 5e-4


def main(argv: list[str]) -> None:
  """Fills the page."""
  del argv
  rows = [r for r in page.read_rows("budget.jsonl") if not r.get("on_host")]
  held_out = [r for r in rows if r.get("held_out")]
  rows = [r for r in rows if not r.get("held_out")]
  matches = [r for r in rows if r["kind"] == "match"]
  rows = [r for r in rows if r["kind"] != "match"]
  steps = dict.fromkeys(map(_step, rows))
  text = "\n".join(_part([r for r in rows if _step(r) == s]) for s in steps)
  half = page.table(_MATCH_TITLES, map(_match_cells, matches))
  tables = {"tables": text, "half": half, "held out": _held_out(held_out)}
  page.fill("budget.md", tables, {})


def _step(row: page.Row) -> tuple[str, int, str]:
  return row["model"], row["batch"], row["target"]


def _part(rows: Sequence[page.Row]) -> str:
  """Returns a line about a step, and its table."""
  one = rows[0]
  title = (
    f"`{one['model']}`, batch {one['batch']}, {one['target']}. XLA alone:"
    f" {_megabytes(one['xla_temp_bytes'])} MB, {1e3 * one['step_s']:,.1f} ms by"
    " estimate.\n\n"
  )
  ordered = sorted(
    rows,
    key=lambda r: (_KINDS.index(r["kind"]), -(r["limit_temp_bytes"] or 0)),
  )
  return title + page.table(_TITLES, map(_cells, ordered))


def _cells(row: page.Row) -> list[str]:
  limit = row["limit_temp_bytes"]
  cells = [_name(row), "", ""]
  if limit is not None:
    cells[1:] = [_megabytes(limit), f"{100 * row['limit_fraction']:.0f} %"]
  if "error" in row:
    smallest = _megabytes(row["smallest_temp_bytes"])
    found = [f"none found; smallest {smallest}"] + [""] * 6
  else:
    found = [
      _megabytes(row["temp_bytes"]),
      _percent(row["extra"]) if "extra" in row else "",
      _percent(row["schedule_extra"]),
      *(_count(row, k) for k in ("recomputed", "offloaded", "dropped")),
      str(row.get("first_plan_s", "")),
    ]
  times = [str(row.get(k, "")) for k in ("planning_s", "compile_s")]
  return [*cells, *found, *times]


def _match_cells(row: page.Row) -> list[str]:
  policies = row["policies_schedule_extra"]
  found = ["none found", ""]
  if "error" not in row:
    found = [_megabytes(row["temp_bytes"]), _percent(row["schedule_extra"])]
  return [
    f"`{row['model']}`, {row['target']}",
    f"`{row['policy']}`",
    _megabytes(row["limit_temp_bytes"]),
    _percent(policies),
    _percent(policies / 2) if policies > 0 else "",
    *found,
    _percent(row["least_schedule_extra"]),
    str(row["least_s"]),
    str(row["planning_s"]),
    str(row["compile_s"]),
  ]


def _held_out(rows: Sequence[page.Row]) -> str:
  """Returns what steps take that nobody tuned on, and a table of them."""
  found = [r for r in rows if "error" not in r]
  num_without = len(rows) - len(found)
  num_behind = sum(map(_is_behind, rows))
  worst = max(
    (1 + r["schedule_extra"]) / (1 + r["policies_schedule_extra"])
    for r in found
  )
  shares = [
    r["planning_s"] / (r["compile_s"] / r["num_compiles"]) for r in rows
  ]
  steps = dict.fromkeys(r["model"] for r in rows)
  measured = [r for r in found if r["is_measured"]]
  exact = [r for r in measured if r["temp_bytes"] == r["predicted_temp_bytes"]]
  lines = (
    f"These are {len(steps)} steps, each at the bytes of policies: {len(rows)}"
    f" limits. {sum(map(_is_half, rows))} plans add at most half of what the"
    f" fastest policy adds, {len(rows) - num_behind} at most as much,"
    f" {num_behind - num_without} add more, by"
    f" {100 * (worst - 1):.1f}% of the schedule at worst, and"
    f" {num_without} limits have no plan.",
    f"Planning takes {statistics.median(shares):.1f} times the CPU time of one"
    f" compile up to the schedule by the median, {max(shares):.1f} at worst,"
    f" {max(r['planning_s'] for r in rows):.1f} s at most, besides"
    f" {statistics.median(r['num_compiles'] for r in rows):.0f} such compiles"
    " by the median.",
    f"{len(measured)} plans were compiled to the end (`--compile`); for"
    f" {len(exact)} of them XLA took what was predicted, to the byte.",
  )
  cells = [
    _held_out_cells([r for r in rows if r["model"] == step]) for step in steps
  ]
  return page.bullets(lines) + "\n" + page.table(_HELD_OUT_TITLES, cells)


def _held_out_cells(rows: Sequence[page.Row]) -> list[str]:
  extras = [
    _percent(r["schedule_extra"]) if "error" not in r else "none" for r in rows
  ]
  return [
    f"`{rows[0]['model']}`",
    str(max(r.get("num_instructions", 0) for r in rows)),
    ", ".join(f"{100 * r['limit_fraction']:.0f}" for r in rows),
    ", ".join(_percent(r["policies_schedule_extra"]) for r in rows),
    ", ".join(extras),
    ", ".join(_percent(r["least_schedule_extra"]) for r in rows),
    str(sum(map(_is_half, rows))),
    str(sum(map(_is_behind, rows))),
    f"{statistics.median(r['planning_s'] for r in rows):.1f}",
    f"{statistics.median(r['compile_s'] for r in rows):.1f}",
  ]


def _is_half(row: page.Row) -> bool:
  """Whether a plan adds half of what policies add, or less where they do."""
  policies = row["policies_schedule_extra"]
  half = policies / 2 if policies > 0.0 else policies
  return "error" not in row and row["schedule_extra"] <= half


def _is_behind(row: page.Row) -> bool:
  """Whether policies are faster, or there is no plan."""
  most = row["policies_schedule_extra"] + _ALIKE
  return "error" in row or row["schedule_extra"] > most


def _percent(share: float) -> str:
  return f"{100 * share:.1f}"


def _name(row: page.Row) -> str:
  if row["kind"] == "policy":
    return f"`{row['policy']}`"
  if row["kind"] == "xla":
    return "XLA"
  return "jaxmem" if row["effort"] == "normal" else f"jaxmem, {row['effort']}"


def _count(row: page.Row, what: str) -> str:
  return str(row.get(f"num_{what}", ""))


def _megabytes(num_bytes: int) -> str:
  return f"{num_bytes / 1e6:.0f}"


if __name__ == "__main__":
  app.run(main)
