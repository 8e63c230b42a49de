"""What a byte limit cost, edit by edit, as text and as a part of the page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from jaxmem import units
from jaxmem.report.plan_data import EditCost

# What each shows; the rest is one row, so that the rows still add up.
_MAX_LINES = 8
_MAX_ROWS = 500
_HEAD = (
  '<section class="list" aria-labelledby="edits-title">'
  '<h2 id="edits-title">What the limit cost, edit by edit</h2>'
  '<p class="note">Bytes of temporaries, and seconds of a step by estimate,'
  " that each adds; together what the plan takes less, and more, than XLA's"
  " own.</p>"
  '<div class="scroller"><table id="edits" class="sortable"><thead><tr>'
  '<th scope="col">Edit</th><th scope="col">What</th>'
  '<th scope="col" class="number">Frees at the peak</th>'
  '<th scope="col" class="number">Adds</th>'
  '<th scope="col" class="wide">Source</th></tr></thead>'
)


def edits_lines(edits: Sequence[EditCost]) -> list[str]:
  """Returns the edits that free most, a line each, and what all add up to."""
  if not edits:
    return []
  shown = [*_first(edits, _MAX_LINES), _total(edits)]
  width = max(len(edit.kind) for edit in shown)
  return [f"{'frees':>10} {'adds':>12}"] + [
    f"{units.format_bytes(edit.freed_bytes):>10} {_milliseconds(edit):>12}"
    f"  {edit.kind:{width}}  {edit.name}  {edit.source}".rstrip()
    for edit in shown
  ]


def edits_html(edits: Sequence[EditCost]) -> str:
  """Returns the edits as a table that a script of the page can sort."""
  rows = "\n".join(map(_row, _first(edits, _MAX_ROWS)))
  return (
    f"{_HEAD}\n<tbody>{rows}</tbody>\n<tfoot>{_row(_total(edits))}</tfoot>"
    "</table></div></section>\n"
  )


def _first(edits: Sequence[EditCost], count: int) -> list[EditCost]:
  """Returns some edits, and what the others free and add together."""
  if len(edits) <= count:
    return [*edits]
  rest = edits[count - 1 :]
  name = f"{len(rest)} that free less"
  return [*edits[: count - 1], _together(rest, "others", name)]


def _total(edits: Iterable[EditCost]) -> EditCost:
  return _together(edits, "together", "")


def _together(edits: Iterable[EditCost], kind: str, name: str) -> EditCost:
  edits = [*edits]
  return EditCost(
    kind=kind,
    name=name,
    source="",
    freed_bytes=sum(e.freed_bytes for e in edits),
    extra_s=sum(e.extra_s for e in edits),
  )


def _milliseconds(edit: EditCost) -> str:
  return f"{1e3 * edit.extra_s:+.3f} ms"


def _row(edit: EditCost) -> str:
  kind, name, source = map(html.escape, (edit.kind, edit.name, edit.source))
  return (
    f"<tr><td>{kind}</td><td>{name}</td>"
    f'<td class="number" data-value="{edit.freed_bytes}">'
    f"{units.format_bytes(edit.freed_bytes)}</td>"
    f'<td class="number" data-value="{edit.extra_s!r}">'
    f'{_milliseconds(edit)}</td><td class="wide source">{source}</td></tr>'
  )
