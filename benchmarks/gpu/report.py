"""What stands in docs/gpu.md between its marks, made from rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import page
from benchmarks.gpu import parts, store
from benchmarks.gpu.case import Part, Row

NOTHING = "No row from a card exists yet.\n"


def places(rows: Iterable[Row]) -> dict[str, str]:
  """Returns the text of each place of the page.

  Args:
    rows: Of campaigns; those of rehearsals, and of anything else than a GPU,
      are left out.
  """
  of_cards = [row for row in rows if _is_of_card(row)]
  return {"parts": _parts(), "measured": tables(of_cards) or NOTHING}


def _parts() -> str:
  """Returns the table of the parts and of their cases, by wave."""
  cells = []
  for part in parts.ALL:
    waves: dict[int, list[str]] = {}
    for case in part.cases(False):
      waves.setdefault(case.wave, []).append(case.name)
    named = "; ".join(
      f"{wave + 1}: {', '.join(names)}" for wave, names in sorted(waves.items())
    )
    cells.append([f"`{part.name}`", part.question, named])
  return page.table(("part", "question", "round: cases"), cells)


def tables(rows: Iterable[Row]) -> str:
  """Returns the tables of all campaigns, rehearsals too, the latest first."""
  campaigns: dict[str, list[Row]] = {}
  for row in sorted(rows, key=lambda r: r["started"]):
    identity = [row[name] for name in ("rehearsal", "device", "versions")]
    key = json.dumps(identity, sort_keys=True)
    campaigns.setdefault(key, []).append(row)
  return "\n".join(_campaign(found) for found in reversed(campaigns.values()))


def _is_of_card(row: Row) -> bool:
  return not row["rehearsal"] and row["device"]["platform"] == "gpu"


def _campaign(rows: Sequence[Row]) -> str:
  """Returns what one card with one set of versions has shown."""
  device: Mapping[str, Any] = rows[0]["device"]
  versions = ", ".join(f"{k} {v}" for k, v in rows[0]["versions"].items())
  memory = device["memory_bytes"]
  facts = [
    "Rehearsal" if rows[0]["rehearsal"] else "",
    device["kind"],
    f"{memory / 2**30:.1f} GiB" if memory else "",
    f"driver {device['driver']}" if device["driver"] else "",
    versions,
  ]
  latest = _latest(rows)
  sections = [f"### {'; '.join(fact for fact in facts if fact)}\n"]
  for part in parts.ALL:
    section = _section(part, [r for r in latest if r["part"] == part.name])
    if section:
      sections.append(section)
  return "\n".join(sections)


def _latest(rows: Sequence[Row]) -> list[Row]:
  """Returns the rows of the latest run of each case.

  One that was skipped was not run, and one that got nowhere does not replace
  one that was done.
  """
  is_done: dict[tuple[str, str], bool] = {}
  runs: dict[tuple[str, str], list[Row]] = {}
  attempts: dict[tuple[str, str, str], list[Row]] = {}
  for row in rows:
    run = (row["part"], row["case"], row["started"])
    attempts.setdefault(run, []).append(row)
  for (part, case, _), attempt in attempts.items():
    key = (part, case)
    end = [row for row in attempt if row["kind"] == store.END]
    done = bool(end) and end[-1]["status"] == store.DONE
    if key not in runs or done or not is_done[key]:
      runs[key], is_done[key] = attempt, done
  return [row for attempt in runs.values() for row in attempt]


def _section(part: Part, rows: Sequence[Row]) -> str:
  """Returns a part's table, and which of its cases are missing."""
  if not rows:
    return ""
  results = [row for row in rows if row["kind"] == store.RESULT]
  cells = [c for c in map(part.cells, results) if c is not None]
  text = f"#### `{part.name}`\n\n{part.question}\n\n"
  if cells:
    text += page.table(part.titles, cells)
  reasons = dict.fromkeys(r["why_null"] for r in results if "why_null" in r)
  if cells and reasons:
    text += f"\nNot known here: {'; '.join(reasons)}.\n"
  missing = [
    f"{row['case']}: {row['status']}, {row['why']}"
    for row in rows
    if row["kind"] == store.END and row["status"] != store.DONE
  ]
  if missing:
    text += "\nNot measured to the end: " + "; ".join(missing) + ".\n"
  return text
