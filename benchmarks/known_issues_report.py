"""Fills docs/known-issues.md from the rows of the benchmark.

python -m benchmarks.known_issues_report
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import app

from benchmarks import page
from benchmarks.known_issues import KNOWN_STEPS

_TITLES = (
  "report",
  "what",
  "on",
  "`jax.jit` MB",
  "`jaxmem.jit` MB",
  "no order below MB",
  "half as limit MB",
  "costs",
  "planning s",
  "results",
)


def main(argv: list[str]) -> None:
  """Fills the page."""
  del argv
  rows = page.read_rows("known_issues.jsonl")
  page.fill("known-issues.md", {"known issues": text_of(rows)}, {})


def text_of(rows: Sequence[page.Row]) -> str:
  """Returns the table.

  Args:
    rows: Of the benchmark.
  """
  latest = {(row["step"], row["target"]): row for row in rows}
  return page.table(_TITLES, map(_cells, latest.values()))


def _cells(row: page.Row) -> list[str]:
  known = KNOWN_STEPS[row["step"]]
  other = row["other_bytes"]
  jit = _megabytes(row["jit_bytes"])
  if other is not None:
    jit += f" ({_megabytes(other)} without the scheduler)"
  change = row.get("limited_change")
  return [
    ", ".join(known.reports),
    known.what,
    row["target"],
    jit,
    _megabytes(row["planned_bytes"]),
    _megabytes(row["lower_bound_bytes"]),
    _limited(row),
    "" if change is None else f"{100 * change:+.1f} %",
    f"{row['planning_s']:.1f}",
    _results(row),
  ]


def _results(row: page.Row) -> str:
  if "is_bit_equal" not in row:
    return ""
  return "bit-equal" if row["is_bit_equal"] else "differ"


def _limited(row: page.Row) -> str:
  if "smallest_bytes" in row:
    return f"no plan: {_megabytes(row['smallest_bytes'])}"
  if "limited_bytes" in row:
    return _megabytes(row["limited_bytes"])
  return ""


def _megabytes(num_bytes: int) -> str:
  return f"{num_bytes / 1e6:.1f}"


if __name__ == "__main__":
  app.run(main)
