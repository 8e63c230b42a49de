"""The rows of a campaign: written at once, read when it goes on."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

ROWS_FILE = "rows.jsonl"

# What a case came to, in its last row.
DONE = "done"
FAILED = "failed"
TIMED_OUT = "timed out"
SKIPPED = "skipped"

# A row is one of a case's results, or says how the case ended.
RESULT, END = "result", "end"

_PATH = re.compile(r"(?<![\w:/])/[\w.+-]+(/[\w.+-]*)+")


class Recorder:
  """Appends rows to a file, each safely on disk before the next.

  Args:
    path: The file.
    labels: Stands in every row: part, case, versions, device, and when the
      case's run began, by which its rows are known.
  """

  def __init__(self, path: pathlib.Path, labels: Mapping[str, Any]):
    self._path = path
    self._labels = dict(labels)

  def append(self, row: Mapping[str, Any], kind: str = RESULT) -> None:
    """Writes a row, with the labels."""
    line = json.dumps({**self._labels, "kind": kind, **row}) + "\n"
    with open(self._path, "ab+") as file:
      if _is_cut_off(file):
        line = "\n" + line
      file.write(line.encode())
      file.flush()
      os.fsync(file.fileno())

  def end(self, status: str, seconds: float, **details: Any) -> None:
    """Writes how the case ended."""
    row = {"status": status, "seconds": round(seconds, 2), **details}
    self.append(row, kind=END)


def _is_cut_off(file: BinaryIO) -> bool:
  """Whether the last line has no end, as a machine that went away leaves it."""
  if not file.seek(0, os.SEEK_END):
    return False
  file.seek(-1, os.SEEK_END)
  return file.read() != b"\n"


class History:
  """What earlier runs of a campaign have measured on the same machine.

  Args:
    rows: Rows of the campaign's file.
    identity: Versions, device, and whether it is a rehearsal. Rows of other
      machines or versions do not count.
  """

  def __init__(
    self, rows: Iterable[Mapping[str, Any]], identity: Mapping[str, Any]
  ):
    self._ends = {
      (row["part"], row["case"]): row
      for row in rows
      if row["kind"] == END
      and row["status"] != SKIPPED
      and all(row.get(key) == value for key, value in identity.items())
    }

  def status(self, part: str, case: str) -> str | None:
    """Returns how a case ended the last time it was tried, None if never."""
    row = self._ends.get((part, case))
    return row["status"] if row is not None else None

  def seconds(self, part: str, case: str) -> float | None:
    """Returns how long a case took the last time, None if that is unknown.

    One that was stopped took at least so long; one that failed says nothing.
    """
    row = self._ends.get((part, case))
    if row is None or row["status"] == FAILED:
      return None
    return row["seconds"]


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the rows of a file, none if there is no such file.

  A line that was cut off, by a machine that went away, is left out.
  """
  if not path.exists():
    return []
  rows = []
  for line in path.read_text(encoding="utf-8").splitlines():
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      continue
  return rows


def now() -> str:
  """Returns the time in UTC, as 2026-11-18T08:30:00.123456+00:00."""
  return datetime.datetime.now(datetime.UTC).isoformat()


def without_paths(text: str) -> str:
  """Returns a text without absolute paths, of which file names remain."""
  return _PATH.sub(lambda match: match[0].rstrip("/").rsplit("/", 1)[-1], text)
