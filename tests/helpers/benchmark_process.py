"""Benchmarks run as people run them: a process that appends rows to a file."""

import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any


def rows(benchmark: str, *flags: str) -> list[dict[str, Any]]:
  """Runs a benchmark; returns the rows that it wrote.

  Args:
    benchmark: Module in `benchmarks`.
    flags: All but `--output`.
  """
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "rows.jsonl")
    done = subprocess.run(
      [
        *(sys.executable, "-m", f"benchmarks.{benchmark}"),
        *(*flags, f"--output={path}"),
      ],
      capture_output=True,
      text=True,
    )
    if done.returncode:
      raise AssertionError(done.stderr)
    return [json.loads(line) for line in path.read_text().splitlines()]
