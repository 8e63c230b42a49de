"""Rows of results: one JSON object a line."""

import json
import platform
from typing import Any

import jax
import jaxlib.version

from jaxmem.version import __version__

_VERSIONS = {
  "jax": jax.__version__,
  "jaxlib": jaxlib.version.__version__,
  "jaxmem": __version__,
  "python": platform.python_version(),
}


def versions(*names: str) -> dict[str, str]:
  """Returns the versions of what a row was measured with.

  Args:
    names: Of jax, jaxlib, jaxmem and python.
  """
  return {name: _VERSIONS[name] for name in names}


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
