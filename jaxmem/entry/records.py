"""What became of each compile that jaxmem was asked to plan."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable

from jaxmem import units

# Of so many functions at least the compiles are told apart; a process that
# makes functions without end must not fill its memory with their records.
_MAX_RECORDS = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompileRecord:
  """One compile.

  Attributes:
    function: The function's name, as the user wrote it.
    xla_bytes: Of the whole program by XLA's own plan, as predicted from its
      schedule; None where the program came from jax's persistent cache, or
      could not be planned.
    planned_bytes: Of the whole program as it was compiled, by XLA's figures;
      None where nothing was compiled.
    limit_bytes: Most bytes that it was allowed; None for no limit.
    planning_s: Wall seconds of planning, compiles of versions included.
    total_s: Wall seconds of all, XLA's compile included.
    why_not: Why XLA's own plan runs; empty where a plan of jaxmem's does.
  """

  function: str
  xla_bytes: int | None
  planned_bytes: int | None
  limit_bytes: int | None
  planning_s: float
  total_s: float
  why_not: str


class Records:
  """The records of a process; threads may add to them at once."""

  def __init__(self):
    self._lock = threading.Lock()
    self._records: list[CompileRecord] = []
    self._num_dropped = 0

  def add(self, record: CompileRecord) -> None:
    """Appends a record."""
    with self._lock:
      if len(self._records) < _MAX_RECORDS:
        self._records.append(record)
      else:
        self._num_dropped += 1

  def all(self) -> list[CompileRecord]:
    """Returns the records, oldest first."""
    with self._lock:
      return list(self._records)


def table(records: Iterable[CompileRecord]) -> str:
  """Returns a table with a line for each function.

  Of several compiles of a function the largest program is shown, and the time
  of all.
  """
  groups: dict[str, list[CompileRecord]] = {}
  for record in records:
    groups.setdefault(record.function, []).append(record)
  lines = [
    f"{'function':<28} {'compiles':>8} {'XLA':>10} {'planned':>10}"
    f" {'limit':>10} {'planning':>9} {'in all':>9}  why not planned"
  ]
  lines += [_line(function, group) for function, group in groups.items()]
  return "\n".join(line.rstrip() for line in lines)


def _line(function: str, records: list[CompileRecord]) -> str:
  largest = max(records, key=lambda r: r.planned_bytes or 0)
  sizes = (largest.xla_bytes, largest.planned_bytes, largest.limit_bytes)
  xla, planned, limit = (
    "-" if size is None else units.format_bytes(size) for size in sizes
  )
  planning_s = sum(record.planning_s for record in records)
  total_s = sum(record.total_s for record in records)
  return (
    f"{function:<28} {len(records):>8} {xla:>10} {planned:>10} {limit:>10}"
    f" {planning_s:>7.2f} s {total_s:>7.2f} s  {largest.why_not}"
  )
