"""Writes docs/conformance.md's table from the benchmark's rows.

python -m benchmarks.conformance_report
"""

from collections.abc import Iterable, Iterator, Sequence

from absl import app

from benchmarks import page

_TITLES = (
  "file",
  "tests",
  "pass by jax alone",
  "pass with jaxmem",
  "end otherwise",
  "compiles",
  "given another plan",
  "seconds",
  "with jaxmem",
  "date",
)


def main(argv: list[str]) -> None:
  """Fills the page."""
  del argv
  rows = page.read_rows("conformance.jsonl")
  page.fill("conformance.md", {"conformance": text_of(rows)}, {})


def text_of(rows: Sequence[page.Row]) -> str:
  """Returns the table, and what did not end as by jax alone."""
  # Of a file that was run again, the last row counts.
  latest = {row["file"]: row for row in rows}
  cells = [_cells(row) for row in latest.values()]
  return "\n".join([page.table(_TITLES, cells), *_differences(latest.values())])


def _cells(row: page.Row) -> list[object]:
  names = ("num_tests", "num_passed_jit", "num_passed")
  faults = "; ".join(row["faults"])
  return [
    f"`{row['file']}`" + (f" ({faults})" if faults else ""),
    *(row[name] for name in names),
    len(row["differences"]),
    row["num_planned"],
    row["num_changed"],
    *(row[name] for name in ("jit_s", "planned_s", "date")),
  ]


def _differences(rows: Iterable[page.Row]) -> Iterator[str]:
  """Yields a line for each test that ends otherwise."""
  for row in rows:
    for name, outcome in row["differences"].items():
      yield f"- `{name}`: {outcome}."


if __name__ == "__main__":
  app.run(main)
