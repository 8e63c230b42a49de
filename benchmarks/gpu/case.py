"""What a campaign is made of: parts, and the cases of each."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.gpu import store

Row = dict[str, Any]
_MAX_ERROR_LENGTH = 300


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
  """Something measured in a process of its own.

  Attributes:
    name: What is measured; tells it from the other cases of its part.
    wave: Cases of wave 0 run before those of wave 1, whatever their part: the
      most important case of each part comes before the second of any.
    default_s: Seconds it may take, until a run has told.
    environment: Variables set for its process, besides what it inherits.
      `XLA_FLAGS` is added to what is set already; "{out}" in a value becomes
      the campaign's folder.
  """

  name: str
  wave: int = 0
  default_s: float = 60.0
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
  """What a case is run with.

  Attributes:
    case: The case.
    is_rehearsal: Whether a CPU stands in for the card.
    folder: Of the campaign: for files besides the rows.
    recorder: Takes the rows.
  """

  case: Case
  is_rehearsal: bool
  folder: pathlib.Path
  recorder: store.Recorder

  def emit(self, row: Row) -> None:
    """Writes a row down, before anything else can go wrong."""
    self.recorder.append(row)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
  """One question put to the card.

  Attributes:
    name: Of its rows, and for --parts.
    question: What it measures, for docs/gpu.md.
    cases: The cases, most important first; fewer and smaller ones for a
      rehearsal.
    run: Measures a case.
    titles: Of the columns of its table in docs/gpu.md.
    cells: What stands in these columns for a row; None for a row that the
      table leaves out.
  """

  name: str
  question: str
  cases: Callable[[bool], Sequence[Case]]
  run: Callable[[Context], None]
  titles: Sequence[str]
  cells: Callable[[Row], Sequence[object] | None]


def cases(
  names: Sequence[str],
  default_s: float,
  *,
  rehearsed: Sequence[str],
  rehearsed_s: float,
  waves: Sequence[int] = (0, 1),
  environment: Mapping[str, str] | None = None,
) -> Callable[[bool], Sequence[Case]]:
  """Returns a part's cases, as `Part.cases` has them.

  Args:
    names: Of the cases on a card, most important first.
    default_s: Seconds that each may take there, until a run has told.
    rehearsed: Names of those that a rehearsal runs.
    rehearsed_s: Seconds that each of these may take.
    waves: Of the first cases; the last one given is that of all others.
    environment: Of each case's process.
  """

  def chosen(is_rehearsal: bool) -> Sequence[Case]:
    return [
      Case(
        name=name,
        wave=waves[min(i, len(waves) - 1)],
        default_s=rehearsed_s if is_rehearsal else default_s,
        environment=environment or {},
      )
      for i, name in enumerate(rehearsed if is_rehearsal else names)
    ]

  return chosen


def number(value: float | None, scale: float = 1.0, digits: int = 1) -> str:
  """Returns what stands in a table for a figure, nothing for None.

  Args:
    value: The figure.
    scale: It is multiplied by this.
    digits: After the point.
  """
  return "" if value is None else f"{value * scale:.{digits}f}"


def megabytes(num_bytes: int | None) -> str:
  """Returns what stands in a table for bytes; more digits for a rehearsal's."""
  digits = 3 if num_bytes is not None and num_bytes < 10_000_000 else 1
  return number(num_bytes, 1e-6, digits)


def error_text(error: Exception) -> str:
  """Returns the line of an error that says what went wrong.

  XLA wraps what a callback raised into its own error, with the stack; paths of
  this machine do not belong into rows.
  """
  text = str(error)
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  for key in ("InfeasibleError", "RESOURCE_EXHAUSTED"):
    found = [line for line in lines if key in line]
    if found:
      return found[-1][:_MAX_ERROR_LENGTH]
  last = lines[-1] if lines else ""
  return f"{type(error).__name__}: {store.without_paths(last)}"[
    :_MAX_ERROR_LENGTH
  ]
