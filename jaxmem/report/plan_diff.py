"""What grew and what shrank from one plan to another, and where."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from jaxmem import units
from jaxmem.report import peak_tree
from jaxmem.report.peak_tree import Path
from jaxmem.report.plan_data import PlanData

# Levels that are shown of each tree, and rows of each level.
_DEPTH = {"kind": 2, "module": 3, "line": 2, "argument": 3}
_MAX_ROWS = 8
# Rows of a tree in a summary, which has one level.
_MAX_SUMMARY_ROWS = 10
_MAX_CHARACTERS = 120

# A path and the bytes there, before and after.
_Row = tuple[Path, int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
  """A part of the bytes at the peak, in two plans.

  Attributes:
    name: What it is of, within what is around it.
    before_bytes: In the first plan.
    after_bytes: In the second.
    children: Its parts that changed, those that changed most first.
  """

  name: str
  before_bytes: int
  after_bytes: int
  children: tuple[Change, ...] = ()

  @property
  def bytes(self) -> int:
    """By how much it grew; negative if it shrank."""
    return self.after_bytes - self.before_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanDiff:
  """What became of the bytes at the peak. Print it.

  Attributes:
    title: The functions, and the devices planned for.
    figures: "whole program" and the like -> bytes before, bytes after.
    trees: "kind", "module", "line" and "argument" -> the change of the whole,
      with its parts.
    notes: What makes the two hard to compare, if anything.
  """

  title: str
  figures: dict[str, tuple[int, int]]
  trees: dict[str, Change]
  notes: tuple[str, ...]

  @property
  def total(self) -> Change:
    """The change of the whole program, with its parts by kind."""
    return self.trees["kind"]

  @property
  def growth(self) -> float:
    """How much the whole program grew, as a fraction of the first."""
    return self.total.bytes / max(1, self.total.before_bytes)

  def __str__(self) -> str:
    lines = [self.title]
    for label, (before, after) in self.figures.items():
      sizes = f"{units.format_bytes(before)} -> {units.format_bytes(after)}"
      lines.append(f"  {label:<15} {sizes} ({_share(before, after)})")
    for by, change in self.trees.items():
      found = _lines(change.children, _DEPTH[by], 0)
      lines += [f"  by {by}", *found] if found else []
    if not self.total.children and not self.total.bytes:
      lines.append("  nothing changed at the peak")
    return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

  def to_markdown(self) -> str:
    """Returns the main changes as tables, for a summary of a CI run."""
    lines = [
      f"### {_cell(self.title)}",
      "",
      "| | before | now | change |",
      "| --- | ---: | ---: | ---: |",
    ]
    lines += [
      _row(label, before, after, _share(before, after))
      for label, (before, after) in self.figures.items()
    ]
    for by in ("kind", "module", "argument"):
      changes = self.trees[by].children[:_MAX_SUMMARY_ROWS]
      if changes:
        lines += ["", f"| by {by} | before | now | change |"]
        lines.append("| --- | ---: | ---: | ---: |")
      lines += [
        _row(c.name, c.before_bytes, c.after_bytes, _signed(c.bytes))
        for c in changes
      ]
    notes = [f"\nNote: {_cell(note)}" for note in self.notes]
    return "\n".join([*lines, *notes, ""])


def diff(before: PlanData, after: PlanData) -> PlanDiff:
  """Compares what two plans' bytes are at their peaks.

  Args:
    before: The first.
    after: The second.
  """
  ends = peak_tree.paths(before.peak), peak_tree.paths(after.peak)
  trees = {}
  for by in ends[0]:
    rows = [
      *((p, r.size_bytes, 0) for p, r in _zip(ends[0][by], before.peak)),
      *((p, 0, r.size_bytes) for p, r in _zip(ends[1][by], after.peak)),
    ]
    trees[by] = _changed("total", rows, 0, " via " if by == "line" else "/")
  titles = [f"{p.name} on {p.target}" for p in (before, after)]
  return PlanDiff(
    title=" -> ".join(dict.fromkeys(titles)),
    figures={
      "whole program": (before.total_bytes, after.total_bytes),
      "temporaries": (before.temp_bytes, after.temp_bytes),
      "XLA temporaries": (
        before.baseline_temp_bytes,
        after.baseline_temp_bytes,
      ),
    },
    trees=trees,
    notes=tuple(_notes(before, after)),
  )


def _zip(paths: Sequence[Path], rows: Sequence) -> Iterable:
  return zip(paths, rows, strict=True)


def _changed(name: str, rows: list[_Row], depth: int, slash: str) -> Change:
  groups: dict[str, list[_Row]] = {}
  for row in rows:
    path = row[0]
    # What is of the module itself is told by the module's own bytes.
    if len(path) > depth and depth < peak_tree.MAX_DEPTH:
      groups.setdefault(path[depth], []).append(row)
  children = [
    child
    for key, group in groups.items()
    if (child := _changed(key, group, depth + 1, slash)).bytes or child.children
  ]
  before = sum(row[1] for row in rows)
  after = sum(row[2] for row in rows)
  if len(children) == 1 and depth and len(groups) == 1:
    (only,) = children
    if (only.before_bytes, only.after_bytes) == (before, after):
      return dataclasses.replace(only, name=f"{name}{slash}{only.name}")
  children.sort(key=lambda c: (-abs(c.bytes), c.name))
  return Change(
    name=name,
    before_bytes=before,
    after_bytes=after,
    children=tuple(children),
  )


def _lines(changes: Sequence[Change], levels: int, depth: int) -> list[str]:
  lines = []
  for change in changes[:_MAX_ROWS] if levels else ():
    sizes = (
      f"{units.format_bytes(change.before_bytes)} ->"
      f" {units.format_bytes(change.after_bytes)}"
    )
    lines.append(
      f"  {_signed(change.bytes):>10}  {'  ' * depth}{change.name}  ({sizes})"
    )
    lines += _lines(change.children, levels - 1, depth + 1)
  left = changes[_MAX_ROWS:] if levels else ()
  if left:
    size = _signed(sum(change.bytes for change in left))
    lines.append(f"  {size:>10}  {'  ' * depth}{len(left)} more")
  return lines


def _signed(size_bytes: int) -> str:
  return f"{'+' if size_bytes > 0 else ''}{units.format_bytes(size_bytes)}"


def _share(before: int, after: int) -> str:
  if not before:
    return _signed(after)
  return f"{100 * (after / before - 1):+.1f} %"


def _notes(before: PlanData, after: PlanData) -> Iterable[str]:
  if before.target != after.target:
    yield f"planned for {before.target} and for {after.target}"
  for name in sorted(before.versions.keys() | after.versions.keys()):
    old, new = before.versions.get(name), after.versions.get(name)
    if old != new:
      yield f"planned with {name} {old} and with {name} {new}"


def _row(name: str, before: int, after: int, change: str) -> str:
  sizes = f"{units.format_bytes(before)} | {units.format_bytes(after)}"
  return f"| {_cell(name)} | {sizes} | {change} |"


def _cell(text: str) -> str:
  """Returns text that Markdown shows as it is, in one cell of a table."""
  if len(text) > _MAX_CHARACTERS:
    text = f"…{text[-_MAX_CHARACTERS:]}"
  text = " ".join(text.split())
  for character in "\\`*_[]<>|#":
    text = text.replace(character, f"\\{character}")
  return text
