"""Rows of results: one JSON object a line."""

import json
from typing import Any


def emit_row(row: dict[str, Any], path: str | None) -> None:
  """Prints a row, and appends it to a file if there is one.

  Args:
    row: What was measured.
    path: The file, or None.
  """
  text = json.dumps(row)
  print(text, flush=True)
  if path:
    with open(path, "a", encoding="utf-8") as file:
      file.write(text + "\n")
