"""Pages of docs/ that are filled from the benchmarks' rows."""

from __future__ import annotations

import json
import pathlib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_ROOT = pathlib.Path(__file__).parent.parent
DOCS = _ROOT / "docs"
Row = dict[str, Any]


def read_rows(name: str) -> list[Row]:
  """Returns the rows of a file in benchmarks/results/."""
  path = _ROOT / "benchmarks" / "results" / name
  lines = path.read_text(encoding="utf-8").splitlines()
  return [json.loads(line) for line in lines]


def table(titles: Sequence[str], cells: Iterable[Sequence[object]]) -> str:
  """Returns a table in Markdown."""
  rows = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
  rows += ["| " + " | ".join(map(str, row)) + " |" for row in cells]
  return "\n".join(rows) + "\n"


def by_step(rows: Iterable[Row]) -> dict[str, list[Row]]:
  """Returns the rows of each step, in their order."""
  found: dict[str, list[Row]] = {}
  for row in rows:
    found.setdefault(row["step"], []).append(row)
  return found


def bullets(lines: Iterable[str]) -> str:
  """Returns lines as a list in Markdown, wrapped."""
  wrapped = (
    textwrap.fill(f"- {line}", 80, subsequent_indent="  ") for line in lines
  )
  return "\n".join(wrapped) + "\n"


def fill(
  name: str,
  tables: Mapping[str, str],
  plots: Mapping[str, str],
  *,
  docs: pathlib.Path = DOCS,
) -> None:
  """Writes tables into a page, and plots beside it.

  Args:
    name: The page, for example "olla.md".
    tables: Per place, the text between `<!-- begin place -->` and the next
      `<!-- end -->`.
    plots: Per file name, what it contains.
    docs: Where the page is.

  Raises:
    ValueError: If the page has not exactly one such place for a table.
  """
  page = docs / name
  text = page.read_text(encoding="utf-8")
  for place, content in tables.items():
    pattern = rf"(<!-- begin {re.escape(place)} -->\n).*?(<!-- end -->)"
    text, count = re.subn(
      pattern, lambda m, c=content: m[1] + c + m[2], text, flags=re.DOTALL
    )
    if count != 1:
      raise ValueError(
        f"{page} must have one place for {place!r}, got {count}."
      )
  page.write_text(text, encoding="utf-8")
  for file_name, plot in plots.items():
    (docs / file_name).write_text(plot, encoding="utf-8")
