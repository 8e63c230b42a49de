"""Fills docs/blocks.md and docs/scan.md from the rows of the benchmark.

python -m benchmarks.versions_report
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from absl import app

from benchmarks import page


def main(argv: list[str]) -> None:
  """Fills the pages."""
  del argv
  rows = page.read_rows("versions.jsonl")
  made = [r for r in rows if r["kind"] == "blocks"]
  operands = operands_table(page.read_rows("operands.jsonl"))
  page.fill("blocks.md", {"kept": blocks_table(made), "operands": operands}, {})
  made = [r for r in rows if r["kind"] == "loops"]
  page.fill("scan.md", {"stacked": loops_table(made)}, {})


def blocks_table(rows: Sequence[page.Row]) -> str:
  """Returns three rows for each step: bytes, seconds, and their estimates."""
  shares = sorted({r["share"] for r in rows if "share" in r})
  titles = ["", "as written", *(f"{share:.0%}" for share in shares)]
  return page.table(titles, _block_cells(rows, shares))


def _block_cells(
  rows: Sequence[page.Row], shares: Sequence[float]
) -> Iterator[list[str]]:
  for step in dict.fromkeys((r["model"], r["target"]) for r in rows):
    mine = [r for r in rows if (r["model"], r["target"]) == step]
    written = next(r for r in mine if "share" not in r)
    by_share = {r["share"]: r for r in mine if "share" in r}
    versions = [by_share.get(share, {}) for share in shares]
    yield [
      f"`{step[0]}`, {step[1]}: temporaries MB",
      *(_megabytes(r) for r in (written, *versions)),
    ]
    yield ["added %", "", *(_percent(r, "extra") for r in versions)]
    estimates = (_percent(r, "estimated_extra") for r in versions)
    yield ["estimated %", "", *estimates]


def loops_table(rows: Sequence[page.Row]) -> str:
  """Returns a row for each amount that was asked for."""
  titles = ("asked to save", "temporaries MB", "time %")
  titles = (*titles, "without `keep_bits` MB", "time %")
  return page.table(titles, _loop_cells(rows))


def _loop_cells(rows: Sequence[page.Row]) -> Iterator[list[str]]:
  for asked in dict.fromkeys(
    r["asked_bytes"] for r in rows if "keep_bits" in r
  ):
    name = "all" if asked == "all" else f"{asked / 1e6:.0f} MB"
    both = [r for r in rows if r.get("asked_bytes") == asked]
    both.sort(key=lambda r: not r["keep_bits"])
    found = (c for r in both for c in (_megabytes(r), _percent(r, "extra")))
    yield [name, *found]


def operands_table(rows: Sequence[page.Row]) -> str:
  """Returns a row for each program: what it takes by what it took."""
  titles = ("step", "policy", "wall time", "by estimate", "temporaries")
  return page.table(titles, map(_operand_cells, rows))


def _operand_cells(row: page.Row) -> list[str]:
  low, high = row["wall"]["median_of_ratios_interval"]
  before, after = row["temp_bytes"]
  return [
    f"`{row['step']}`",
    "" if row["policy"] == "none" else f"`{row['policy']}`",
    f"{row['wall']['median_of_ratios']:.2f} ({low:.2f} to {high:.2f})",
    f"{row['estimated']:.2f}",
    f"{after / before:.2f}",
  ]


def _megabytes(row: page.Row) -> str:
  return f"{row['temp_bytes'] / 1e6:.0f}" if row else ""


def _percent(row: page.Row, name: str) -> str:
  return f"{100 * row[name]:.1f}" if name in row else ""


if __name__ == "__main__":
  app.run(main)
