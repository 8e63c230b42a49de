"""Seconds to place MiniMalloc's instances, and train steps of many buffers.

Prints a JSON row per problem. With --minimalloc, the path of MiniMalloc's own
binary, each row also says how long that takes on the same file.

    python -m benchmarks.placement_benchmark --minimalloc=/path/to/minimalloc
"""

import os
import pathlib
import subprocess
import tempfile
import time
from typing import Any

from absl import app, flags

from benchmarks.row_output import emit_row, versions
from benchmarks.synthetic import train_step
from jaxmem.placement import (
  InfeasiblePlacementError,
  Problem,
  from_csv,
  place,
  to_csv,
  validate,
)

_TESTDATA = pathlib.Path(__file__).parents[1] / "tests/testdata/minimalloc"

_FILES = flags.DEFINE_list(
  "files",
  sorted(str(p) for p in _TESTDATA.glob("[A-Z].*.csv")),
  "Problems as CSV; the capacity is in the name: NAME.CAPACITY.csv.",
)
_TRAIN_STEPS = flags.DEFINE_list(
  "train_steps", ["1000", "10000"], "Numbers of buffers of synthetic steps."
)
_MINIMALLOC = flags.DEFINE_string("minimalloc", None, "MiniMalloc's binary.")
_TIMEOUT_S = flags.DEFINE_integer("timeout_s", 60, "For MiniMalloc.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the synthetic steps.")


def measure(problem: Problem, capacity: int | None) -> dict[str, Any]:
  """Places one problem and returns its row."""
  row: dict[str, Any] = {
    "num_buffers": len(problem.buffers),
    "capacity_bytes": capacity,
  }
  start_s, start_cpu_s = time.perf_counter(), time.process_time()
  try:
    solution = place(problem, capacity)
  except InfeasiblePlacementError as error:
    row |= {
      "status": "infeasible",
      "lower_bound_bytes": error.lower_bound_bytes,
    }
  else:
    validate(problem, solution)
    row |= {
      "status": solution.status,
      "height_bytes": solution.height_bytes,
      "lower_bound_bytes": solution.lower_bound_bytes,
      "is_solved": capacity is None or solution.fits(capacity),
      "method": solution.method,
    }
  row["seconds"] = round(time.perf_counter() - start_s, 3)
  row["cpu_seconds"] = round(time.process_time() - start_cpu_s, 3)
  return row


def run_minimalloc(problem: Problem, capacity: int) -> dict[str, Any]:
  """Runs MiniMalloc on a problem; it reads and writes files."""
  with tempfile.TemporaryDirectory() as folder:
    given = os.path.join(folder, "problem.csv")
    pathlib.Path(given).write_text(to_csv(problem), encoding="utf-8")
    command = [
      _MINIMALLOC.value,
      f"--capacity={capacity}",
      f"--input={given}",
      f"--output={os.path.join(folder, 'output.csv')}",
      f"--timeout={_TIMEOUT_S.value}s",
    ]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)
    seconds = time.perf_counter() - start
  return {
    "minimalloc_seconds": round(seconds, 3),
    "minimalloc_is_solved": done.returncode == 0,
  }


def main(argv: list[str]) -> None:
  """Measures all problems."""
  del argv
  measured_with = versions("jaxmem", "python")
  for path in map(pathlib.Path, _FILES.value):
    problem = from_csv(path.read_text(encoding="utf-8"))
    capacity = int(path.name.split(".")[1])
    row = {"problem": path.name, **measure(problem, capacity)}
    if _MINIMALLOC.value:
      row |= run_minimalloc(problem, capacity)
    emit_row(row | {"versions": measured_with}, None)
  for num_buffers in map(int, _TRAIN_STEPS.value):
    row = measure(train_step(num_buffers, _SEED.value), None)
    row = {"problem": f"train_step_{num_buffers}", **row}
    emit_row(row | {"versions": measured_with}, None)


if __name__ == "__main__":
  app.run(main)
