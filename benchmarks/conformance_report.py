"""Writes docs/conformance.md's tables from the benchmark's rows.

python -m benchmarks.conformance_report
"""

from collections.abc import Iterable, Iterator, Sequence

from absl import app

from benchmarks import page
from benchmarks.conformance_runs import JAX_FILES

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
  jax = [row for row in rows if _project(row) == "jax"]
  others = [row for row in rows if _project(row) != "jax"]
  page.fill(
    "conformance.md",
    {
      "conformance": text_of(jax) + remaining(jax),
      "libraries": text_of(others),
    },
    {},
  )


def text_of(rows: Sequence[page.Row]) -> str:
  """Returns the table, and what did not end as by jax alone."""
  # Of what was run again, the last row counts.
  latest = [*{_name(row): row for row in rows}.values()]
  cells = [*map(_cells, latest), _total(latest)]
  return "\n".join([page.table(_TITLES, cells), *_differences(latest)])


def remaining(rows: Sequence[page.Row]) -> str:
  """Returns a line that says which of jax's files have no whole run."""
  whole = {r["file"] for r in rows if not (r["faults"] or r["select"])}
  left = [f"`{file}`" for file in JAX_FILES if file not in whole]
  return f"\nNot run to their end: {', '.join(left) or 'none'}.\n"


def _project(row: page.Row) -> str:
  return row.get("project", "jax")


def _name(row: page.Row) -> str:
  """Names what was run: whose, which file, and which part of it."""
  project = _project(row)
  name = f"`{row['file']}`"
  if project != "jax":
    name = f"{project} {row['project_version']}: {name}"
  if row["select"]:
    name += f", `-k '{row['select']}'`"
  for variable, value in row.get("environment", {}).items():
    name += f", `{variable}={value}`"
  return name


def _cells(row: page.Row) -> list[object]:
  names = ("num_tests", "num_passed_jit", "num_passed")
  faults = "; ".join(row["faults"])
  return [
    _name(row) + (f" ({faults})" if faults else ""),
    *(row[name] for name in names),
    len(row["differences"]),
    row["num_planned"],
    row["num_changed"],
    *(row[name] for name in ("jit_s", "planned_s", "date")),
  ]


def _total(rows: Sequence[page.Row]) -> list[object]:
  """Returns the last row of a table: what all others sum up to."""
  columns = zip(*(_cells(row)[1:-1] for row in rows), strict=True)
  return ["all", *(round(sum(column), 1) for column in columns), ""]


def _differences(rows: Iterable[page.Row]) -> Iterator[str]:
  """Yields a line for each test that ends otherwise."""
  for row in rows:
    for name, outcome in row["differences"].items():
      yield f"- `{name}`: {outcome}."


if __name__ == "__main__":
  app.run(main)
