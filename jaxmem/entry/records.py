"""What became of each compile that jaxmem was asked to plan."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from jaxmem import units

if TYPE_CHECKING:
  from jaxmem.planning import Decision, PlannedModule

# Of so many functions at least the compiles are told apart; a process that
# makes functions without end must not fill its memory with their records.
_MAX_RECORDS = 10_000
_HEADER = (
  *("function", "compiles", "XLA", "planned", "limit", "planning", "in all"),
  "why not planned",
)


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
    is_remembered: Whether the plan was made at an earlier start.
    num_rematerialized: Operations that XLA recomputes beyond the plan.
  """

  function: str
  xla_bytes: int | None
  planned_bytes: int | None
  limit_bytes: int | None
  planning_s: float
  total_s: float
  why_not: str
  is_remembered: bool = False
  num_rematerialized: int = 0

  @property
  def note(self) -> str:
    """What the table says last."""
    notes = [self.why_not]
    if self.is_remembered and not self.why_not:
      notes.append("remembered")
    if self.num_rematerialized:
      notes.append(f"XLA recomputes {self.num_rematerialized} operations more")
    return "; ".join(filter(None, notes))

  @classmethod
  def failed(
    cls, function: str, limit_bytes: int | None, seconds: float, why_not: str
  ) -> CompileRecord:
    """Returns the record of a program that was not even compiled."""
    return cls(
      function=function,
      xla_bytes=None,
      planned_bytes=None,
      limit_bytes=limit_bytes,
      planning_s=seconds,
      total_s=seconds,
      why_not=why_not,
    )


# Hears of each compile, with the module that was planned if one was.
Listener = Callable[[CompileRecord, "PlannedModule[Decision] | None"], None]


class Records:
  """The records of a process; threads may add to them at once.

  Attributes:
    listener: Hears of each compile in the thread that compiles, before jax
      gets the program; what it raises reaches whoever called the function.
  """

  def __init__(self):
    self.listener: Listener | None = None
    self._lock = threading.Lock()
    self._records: list[CompileRecord] = []
    self._num_dropped = 0

  def add(
    self, record: CompileRecord, planned: PlannedModule[Decision] | None = None
  ) -> None:
    """Appends a record, and tells the listener.

    Args:
      record: What became of a compile.
      planned: The module that was planned; None where none was.
    """
    with self._lock:
      if len(self._records) < _MAX_RECORDS:
        self._records.append(record)
      else:
        self._num_dropped += 1
    if self.listener is not None:
      self.listener(record, planned)

  def all(self) -> list[CompileRecord]:
    """Returns the records, oldest first."""
    with self._lock:
      return list(self._records)


def table(records: Iterable[CompileRecord]) -> str:
  """Returns a table with a line for each function.

  Of several compiles of a function the largest program is shown, and the time
  of all.
  """
  return "\n".join(_line(cells) for cells in table_cells(records))


def table_cells(records: Iterable[CompileRecord]) -> list[tuple[str, ...]]:
  """Returns the cells of the table, row by row, the header first."""
  groups: dict[str, list[CompileRecord]] = {}
  for record in records:
    groups.setdefault(record.function, []).append(record)
  rows = [_cells(function, group) for function, group in groups.items()]
  return [_HEADER, *rows]


def _line(cells: tuple[str, ...]) -> str:
  function, compiles, xla, planned, limit, planning, total, why_not = cells
  line = (
    f"{function:<28} {compiles:>8} {xla:>10} {planned:>10} {limit:>10}"
    f" {planning:>9} {total:>9}  {why_not}"
  )
  return line.rstrip()


def _cells(function: str, records: list[CompileRecord]) -> tuple[str, ...]:
  largest = max(records, key=lambda r: r.planned_bytes or 0)
  sizes = (largest.xla_bytes, largest.planned_bytes, largest.limit_bytes)
  planning_s = sum(record.planning_s for record in records)
  total_s = sum(record.total_s for record in records)
  return (
    function,
    str(len(records)),
    *("-" if size is None else units.format_bytes(size) for size in sizes),
    f"{planning_s:.2f} s",
    f"{total_s:.2f} s",
    largest.note,
  )
