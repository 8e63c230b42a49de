"""Measures on a card all that jaxmem says of GPUs, within a given time.

    python -m benchmarks.gpu_campaign --minutes=25 --out=DIR

Each case runs in a process of its own, the most important first, and its rows
are in DIR/rows.jsonl as soon as they are known. Started again with the same
DIR, it goes on with what is not done. It needs nothing from the network.

    python -m benchmarks.gpu_campaign --rehearse --out=DIR   # on a CPU, tiny
    python -m benchmarks.gpu_campaign --report=DIR           # to the terminal
    python -m benchmarks.gpu_campaign --report=DIR --write   # into docs/gpu.md
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

from absl import app, flags

from benchmarks import page
from benchmarks.gpu import campaign, machine, parts, report, store

_MINUTES = flags.DEFINE_float("minutes", 25.0, "Time to be done in.")
_OUT = flags.DEFINE_string("out", None, "Folder of rows and logs.")
_REHEARSE = flags.DEFINE_bool("rehearse", False, "On the CPU, tiny steps.")
_PARTS = flags.DEFINE_list("parts", [], "Parts to run; all if empty.")
_AGAIN = flags.DEFINE_bool("again", False, "Measure what is done, too.")
_REMEMBER = flags.DEFINE_bool(
  "remember", False, "Use plans that earlier runs with this folder made."
)
_REPORT = flags.DEFINE_string(
  "report", None, "Folder or file of rows to report, in place of measuring."
)
_WRITE = flags.DEFINE_bool("write", False, "Write the report to docs/gpu.md.")

PAGE = "gpu.md"


def main(argv: list[str]) -> None:
  """Measures, or reports."""
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}.")
  if _REPORT.value is not None:
    _report(pathlib.Path(_REPORT.value))
  elif _OUT.value:
    _measure(pathlib.Path(_OUT.value).absolute())
  else:
    raise app.UsageError("Give --out=DIR to measure, or --report=DIR.")


def _measure(folder: pathlib.Path) -> None:
  """Runs what is left of the campaign in a folder."""
  # So that the process of a case ends with this one.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  end_s = time.monotonic() + 60 * _MINUTES.value
  chosen = [parts.by_name(name) for name in _PARTS.value] or parts.ALL
  folder.mkdir(parents=True, exist_ok=True)
  is_rehearsal = _REHEARSE.value
  environment = campaign.environment(
    None, folder, is_rehearsal=is_rehearsal, base=os.environ
  )
  try:
    identity = machine.identity(environment, is_rehearsal=is_rehearsal)
  except RuntimeError as error:
    sys.exit(str(error))
  print(f"{identity['device']['kind']}, {identity['versions']}", flush=True)
  counts = campaign.Campaign(
    folder,
    identity,
    end_s=end_s,
    again=_AGAIN.value,
    remembers=_REMEMBER.value,
    tell=lambda line: print(line, flush=True),
  ).run(chosen)
  told = ", ".join(f"{count} {status}" for status, count in counts.items())
  print(f"cases: {told or 'none left'}; rows in {folder / store.ROWS_FILE}")


def _report(path: pathlib.Path) -> None:
  """Prints what the rows say, or writes what those of cards say to the page."""
  rows = store.read(path / store.ROWS_FILE if path.is_dir() else path)
  if _WRITE.value:
    page.fill(PAGE, report.places(rows), {})
  else:
    print(report.tables(rows) or report.NOTHING)


if __name__ == "__main__":
  app.run(main)
