"""MiniMalloc's CSV: a line per buffer, named columns in any order.

    id,lower,upper,size,alignment,gaps,offset,hint,cost
    b1,0,9,4,1,3-5 6-7@0:2,,,

`id`, `lower`, `upper` and `size` are required. A gap is `lower-upper`, or with
the bytes that stay taken `lower-upper@low:high`. An `offset` is fixed, a `hint`
is not; either may be empty. The `cost` of a buffer outside of all pools is its
size if empty. MiniMalloc's older names (`buffer`, `begin`,
`start`, and `end`, which is inclusive) are read too.

What `fill_pools` found has a column `pool`, before `offset`. There an offset is
that in its pool: it says where the buffer was put, and fixes nothing.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

from jaxmem.placement.pools import Place, PoolSolution
from jaxmem.placement.problem import Buffer, Gap, Problem, Solution

_REQUIRED = ("id", "lower", "upper", "size")
_OPTIONAL = ("alignment", "gaps", "pool", "offset", "hint", "cost")
_ALIASES = {
  "buffer": "id",
  "buffer_id": "id",
  "begin": "lower",
  "start": "lower",
  "end": "upper",
}
_GAP = re.compile(r"(-?\d+)-(-?\d+)(?:@(\d+):(\d+))?")


def from_csv(text: str) -> Problem:
  """Reads a problem.

  Args:
    text: The content of a CSV file, with a line of column names. If there is a
      column `pool`, offsets are not those of one arena, and none is fixed;
      `places_from_csv` returns them.

  Raises:
    ValueError: Names the line and what is wrong with it.
  """
  buffers, _ = _read(text)
  return Problem(buffers)


def places_from_csv(text: str) -> tuple[Place | None, ...]:
  """Reads where buffers are in pools.

  Args:
    text: The content of a CSV file, as `to_csv` writes it of a `PoolSolution`.

  Returns:
    A place for each buffer of `from_csv`, or None outside of all pools.

  Raises:
    ValueError: Names the line and what is wrong with it.
  """
  _, places = _read(text)
  if places is None:
    raise ValueError("line 1: column 'pool' is missing.")
  return places


def _read(
  text: str,
) -> tuple[tuple[Buffer, ...], tuple[Place | None, ...] | None]:
  """Returns the buffers, and their places if there is a column for pools."""
  reader = csv.reader(io.StringIO(text))
  lines = _lines(reader)
  header = next(lines, None)
  if not header:
    raise ValueError("line 1: expected column names, got nothing.")
  columns, inclusive = _columns(header)
  has_pools = "pool" in columns
  buffers: list[Buffer] = []
  places: list[Place | None] = []
  for fields in filter(None, lines):
    try:
      if len(fields) != len(columns):
        raise ValueError(f"expected {len(columns)} fields, got {len(fields)}.")
      row = dict(zip(columns, map(str.strip, fields), strict=True))
      if has_pools:
        places.append(_pop_place(row))
      buffers.append(_buffer(row, inclusive))
    except ValueError as error:
      raise ValueError(f"line {reader.line_num}: {error}") from error
  return tuple(buffers), tuple(places) if has_pools else None


def _lines(reader: Any) -> Iterator[list[str]]:
  """Yields the fields of each line; what csv cannot read names the line."""
  try:
    yield from reader
  except csv.Error as error:
    raise ValueError(f"line {reader.line_num}: {error}.") from error


def to_csv(
  problem: Problem, solution: Solution | PoolSolution | None = None
) -> str:
  """Writes a problem, or a placement of it.

  Args:
    problem: The buffers.
    solution: Where they are; the column `offset` then holds its offsets. Of
      pools, there is also a column `pool`; both are empty outside of all.

  Returns:
    CSV with the required columns and those that say anything.
  """
  buffers = problem.buffers
  columns = {
    "id": [b.name for b in buffers],
    "lower": [b.lower for b in buffers],
    "upper": [b.upper for b in buffers],
    "size": [b.size_bytes for b in buffers],
  }
  if any(b.alignment_bytes != 1 for b in buffers):
    columns["alignment"] = [b.alignment_bytes for b in buffers]
  if any(b.gaps for b in buffers):
    columns["gaps"] = [" ".join(map(_gap_text, b.gaps)) for b in buffers]
  if isinstance(solution, PoolSolution):
    columns["pool"] = [p and p.pool for p in solution.places]
    columns["offset"] = [p and p.offset_bytes for p in solution.places]
  elif solution is not None:
    columns["offset"] = list(solution.offsets)
  elif any(b.offset_bytes is not None for b in buffers):
    columns["offset"] = [b.offset_bytes for b in buffers]
  if any(b.hint_bytes is not None for b in buffers):
    columns["hint"] = [b.hint_bytes for b in buffers]
  if any(b.outside_cost is not None for b in buffers):
    columns["cost"] = [b.outside_cost for b in buffers]
  out = io.StringIO()
  writer = csv.writer(out, lineterminator="\n")
  writer.writerow(columns)
  writer.writerows(zip(*columns.values(), strict=True))
  return out.getvalue()


def _columns(header: list[str]) -> tuple[list[str], bool]:
  """Returns the names of the columns, and whether `upper` is inclusive."""
  found = [name.strip() for name in header]
  columns = [_ALIASES.get(name, name) for name in found]
  for name in _REQUIRED:
    if name not in columns:
      raise ValueError(f"line 1: column {name!r} is missing, got {found}.")
  known = ", ".join((*_REQUIRED, *_OPTIONAL))
  for i, name in enumerate(columns):
    if name not in (*_REQUIRED, *_OPTIONAL):
      raise ValueError(f"line 1: unknown column {name!r}; known are {known}.")
    if name in columns[:i]:
      raise ValueError(f"line 1: column {name!r} is there twice.")
  return columns, "end" in found


def _buffer(row: dict[str, str], inclusive: bool) -> Buffer:
  gaps = row.get("gaps", "").split()
  return Buffer(
    name=row["id"],
    size_bytes=_integer(row, "size"),
    lower=_integer(row, "lower"),
    upper=_integer(row, "upper") + inclusive,
    alignment_bytes=_integer(row, "alignment") if row.get("alignment") else 1,
    offset_bytes=_integer(row, "offset") if row.get("offset") else None,
    gaps=tuple(_gap(part, inclusive) for part in gaps),
    hint_bytes=_integer(row, "hint") if row.get("hint") else None,
    outside_cost=_integer(row, "cost") if row.get("cost") else None,
  )


def _pop_place(row: dict[str, str]) -> Place | None:
  """Takes the pool and the offset in it out of a row."""
  found = {name: row.pop(name, "") for name in ("pool", "offset")}
  if not any(found.values()):
    return None
  if not all(found.values()):
    raise ValueError(f"pool and offset must both be given or not, got {found}.")
  place = Place(_integer(found, "pool"), _integer(found, "offset"))
  if min(place) < 0:
    raise ValueError(f"pool and offset must not be negative, got {found}.")
  return place


def _integer(row: dict[str, str], column: str) -> int:
  try:
    return int(row[column])
  except ValueError as error:
    raise ValueError(
      f"{column} must be an integer, got {row[column]!r}."
    ) from error


def _gap(text: str, inclusive: bool) -> Gap:
  match = _GAP.fullmatch(text)
  if match is None:
    raise ValueError(
      f"a gap must be lower-upper or lower-upper@low:high, got {text!r}."
    )
  lower, upper = int(match[1]), int(match[2])
  window = None if match[3] is None else (int(match[3]), int(match[4]))
  return Gap(lower, upper + inclusive, window)


def _gap_text(gap: Gap) -> str:
  text = f"{gap.lower}-{gap.upper}"
  if gap.window is not None:
    text += f"@{gap.window[0]}:{gap.window[1]}"
  return text
