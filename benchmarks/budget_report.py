"""Writes the tables of docs/budget.md from the benchmark's rows.

python -m benchmarks.budget_report
"""

from __future__ import annotations

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


def main(argv: list[str]) -> None:
  """Fills the page."""
  del argv
  rows = [r for r in page.read_rows("budget.jsonl") if not r.get("on_host")]
  matches = [r for r in rows if r["kind"] == "match"]
  rows = [r for r in rows if r["kind"] != "match"]
  steps = dict.fromkeys(map(_step, rows))
  text = "\n".join(_part([r for r in rows if _step(r) == s]) for s in steps)
  half = page.table(_MATCH_TITLES, map(_match_cells, matches))
  page.fill("budget.md", {"tables": text, "half": half}, {})


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
