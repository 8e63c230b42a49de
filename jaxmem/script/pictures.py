"""The pages of a run: every planned function's picture, and the table."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import threading
from collections.abc import Sequence

from jaxmem_hlo.assignment import AssignmentModel

from jaxmem import units
from jaxmem.entry import CompileRecord, table_cells
from jaxmem.planning import Decision, LimitPlan, PlannedModule
from jaxmem.report import (
  Table,
  donation,
  explain_rows,
  hints,
  layout,
  origins_in,
  peak_rows,
  plan_html,
)

Facts = list[tuple[str, str]]
# Characters of a function's name that its file's name has: systems take few.
_MAX_NAME = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Picture:
  """One compile, as its page shows it.

  Attributes:
    record: What became of it.
    before: XLA's own plan.
    after: jaxmem's.
    lower_bound_bytes: No order of the program has smaller temporaries.
    facts: The main figures.
    explanation: HTML that says what the bytes at the plan's peak are.
  """

  record: CompileRecord
  before: layout.Layout
  after: layout.Layout
  lower_bound_bytes: int
  facts: Facts
  explanation: str


class Pictures:
  """Keeps what pages need, of each function's largest program.

  Threads may add to them at once.
  """

  def __init__(self):
    self._lock = threading.Lock()
    self._of_function: dict[str, _Picture] = {}

  def add(
    self, record: CompileRecord, planned: PlannedModule[Decision]
  ) -> None:
    """Keeps a plan, unless a larger program of the function is kept."""
    with self._lock:
      known = self._of_function.get(record.function)
      if known is not None and _bytes(record) <= _bytes(known.record):
        return
      self._of_function[record.function] = _picture(record, planned)

  def save(
    self, path: pathlib.Path, records: Sequence[CompileRecord]
  ) -> list[pathlib.Path]:
    """Writes a page for each function, with the table of all on each.

    Args:
      path: Of the page of the largest program. The others lie beside it, and
        their functions' names are part of theirs.
      records: What the table shows.

    Returns:
      The files, that at `path` first; none if nothing was planned.

    Raises:
      OSError: If a file cannot be written.
    """
    pictures = sorted(
      self._of_function.values(), key=lambda p: _bytes(p.record), reverse=True
    )
    files = _files(path, [p.record.function for p in pictures])
    header, *rows = table_cells(records)
    links = tuple(files[row[0]].name if row[0] in files else "" for row in rows)
    table = Table(header=header, rows=tuple(rows), links=links)
    for picture in pictures:
      page = plan_html(
        picture.record.function,
        picture.before,
        picture.after,
        lower_bound_bytes=picture.lower_bound_bytes,
        facts=picture.facts,
        table=table,
        explanation=picture.explanation,
      )
      files[picture.record.function].write_text(page, encoding="utf-8")
    return list(files.values())


def main_figures(
  record: CompileRecord, planned: PlannedModule[Decision]
) -> Facts:
  """Returns the main figures of a plan, as labels and values."""
  decision = planned.decision
  bound = units.format_bytes(decision.lower_bound_bytes)
  base, facts = decision, []
  if isinstance(decision, LimitPlan):
    base = decision.base
    extra = 100 * decision.extra_s / decision.step_s if decision.step_s else 0.0
    facts = [
      ("Memory limit", units.format_bytes(decision.limit_bytes)),
      ("Operations run twice", str(len(decision.edits.recomputes))),
      ("Moved to the host", str(len(decision.edits.offloads))),
      ("Extra time by estimate", f"{extra:+.1f} %"),
    ]
  assert not isinstance(base, LimitPlan)
  own_bytes = _own_bytes(record, decision)
  is_rewritten = own_bytes != base.baseline_bytes
  if is_rewritten:
    # It is drawn as it was after that.
    drawn = units.format_bytes(base.baseline_bytes)
    facts = [("XLA's with less kept", drawn), *facts]
  is_chosen = isinstance(decision, LimitPlan) and (
    bool(decision.edits) or is_rewritten
  )
  return [
    # What runs twice is chosen, not proven to be the best choice.
    ("Status", "feasible" if is_chosen else base.status),
    ("XLA's temporaries", units.format_bytes(own_bytes)),
    ("Planned temporaries", units.format_bytes(decision.planned_bytes)),
    ("Lower bound", "none" if record.num_rematerialized else bound),
    ("Whole program", units.format_bytes(_bytes(record))),
    ("Instructions", str(base.num_instructions)),
    ("Copies removed", str(len(base.removed_copies))),
    *facts,
  ]


def _own_bytes(record: CompileRecord, decision: Decision) -> int:
  """Returns XLA's temporaries of the step as it is written.

  Under a limit what XLA got may already keep less for the backward pass.
  """
  if not isinstance(decision, LimitPlan) or record.xla_bytes is None:
    return decision.baseline_bytes
  return record.xla_bytes - decision.fixed_bytes


def _picture(
  record: CompileRecord, planned: PlannedModule[Decision]
) -> _Picture:
  platform = planned.decision.platform
  own, model = AssignmentModel(planned.given, platform), planned.model
  own_origins, origins = origins_in(own, {}), origins_in(model, {})
  assigned = model.assign()
  rows = peak_rows(
    origins, assigned, output_paths=(), total_bytes=_bytes(record)
  )
  told = hints(rows, donation.advise(planned.given))
  return _Picture(
    record=record,
    before=layout.describe(planned.given, own.assign(), own_origins),
    after=layout.describe(planned.module, assigned, origins),
    lower_bound_bytes=planned.decision.lower_bound_bytes,
    facts=main_figures(record, planned),
    explanation=explain_rows(record.function, platform, rows, told).to_html(),
  )


def _bytes(record: CompileRecord) -> int:
  return record.planned_bytes or 0


def _files(
  path: pathlib.Path, functions: Sequence[str]
) -> dict[str, pathlib.Path]:
  """Returns a file for each function: the path itself for the first."""
  files: dict[str, pathlib.Path] = {}
  for function in functions:
    safe = re.sub(r"[^\w.-]+", "_", function, flags=re.ASCII)[:_MAX_NAME]
    stem = f"{path.stem}.{safe}" if files else path.stem
    file = path.with_name(f"{stem}{path.suffix}")
    number = len(files)
    while file in files.values():
      file = path.with_name(f"{stem}.{number}{path.suffix}")
      number += 1
    files[function] = file
  return files
