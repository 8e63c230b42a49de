"""The bytes at the peak, as trees: by kind, module, line and argument."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Sequence

from jaxmem.report import origins
from jaxmem.report.peak import AFTERWARDS, PACKING, PeakRow

_WITHOUT_PLACE = (PACKING, AFTERWARDS)
# No path is longer; what is deep in loops of libraries is one node below that.
MAX_DEPTH = 64
_LINE = re.compile(r"(.*):(\d+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
  """A part of the bytes at the peak.

  Attributes:
    name: What it is of, within what is around it.
    size_bytes: Its bytes; those of its children together, if it has any.
    children: Its parts, the largest first.
  """

  name: str
  size_bytes: int
  children: tuple[Node, ...] = ()


Path = tuple[str, ...]


def paths(rows: Sequence[PeakRow]) -> dict[str, list[Path]]:
  """Returns where in each of the trees every row stands.

  Args:
    rows: Those of one plan.

  Returns:
    The tree's name -> a path for each row, in their order. Lines are given
    relative to the folder that holds all of the user's files.
  """
  folder = _common_folder(rows)
  return {
    "kind": [(row.kind, *row.module) for row in rows],
    "module": [_by_module(row) for row in rows],
    "line": [_by_line(row, folder) for row in rows],
    "argument": [_by_argument(row) for row in rows],
  }


def tree(name: str, rows: Sequence[PeakRow], where: Sequence[Path]) -> Node:
  """Returns the tree of some rows.

  Args:
    name: Of the whole.
    rows: The rows.
    where: The path of each.
  """
  slash = " via " if name == "line" else "/"
  return _grown(name, list(zip(where, rows, strict=True)), 0, slash)


def _grown(
  name: str, found: list[tuple[Path, PeakRow]], depth: int, slash: str
) -> Node:
  groups: dict[str, list[tuple[Path, PeakRow]]] = {}
  for path, row in found:
    if len(path) > depth and depth < MAX_DEPTH:
      groups.setdefault(path[depth], []).append((path, row))
  inside = sum(map(len, groups.values()))
  own = [each for each in found if len(each[0]) <= depth] if inside else []
  if own:
    # What is of the module itself, not of one in it.
    groups["(itself)"] = own
  children = [
    _grown(key, group, MAX_DEPTH if group is own else depth + 1, slash)
    for key, group in groups.items()
  ]
  size_bytes = sum(row.size_bytes for _, row in found)
  if len(children) == 1 and depth:
    # A way without branches is one step.
    (only,) = children
    return Node(
      name=f"{name}{slash}{only.name}",
      size_bytes=size_bytes,
      children=only.children,
    )
  children.sort(key=lambda n: (-n.size_bytes, _numbers_in_order(n.name)))
  return Node(name=name, size_bytes=size_bytes, children=tuple(children))


def _numbers_in_order(name: str) -> list[tuple[int, str]]:
  """Returns a key that sorts block 2 before block 10."""
  parts = re.split(r"(\d+)", name)
  return [(len(p) if i % 2 else 0, p) for i, p in enumerate(parts)]


def _by_module(row: PeakRow) -> Path:
  return row.module or ("(no module)", row.kind)


def _by_line(row: PeakRow, folder: str) -> Path:
  if row.kind in _WITHOUT_PLACE:
    return (row.kind,)
  if not (row.source or row.package):
    return ("arguments",) if row.argument else ("(no line known)",)
  source = row.source or row.package
  path = source.removeprefix(folder) or source
  return (path, row.package) if row.source and row.package else (path,)


def _by_argument(row: PeakRow) -> Path:
  if row.argument:
    return origins.keys(row.argument) or (row.argument,)
  return (row.kind,) if row.kind in _WITHOUT_PLACE else ("temporaries",)


def _common_folder(rows: Iterable[PeakRow]) -> str:
  """Returns the folder that holds the user's files, with a slash, or empty."""
  found = (_LINE.fullmatch(row.source) for row in rows if row.source)
  folders = {os.path.dirname(match[1]) for match in found if match}
  if not folders or not all(map(os.path.isabs, folders)):
    return ""
  return os.path.join(os.path.commonpath(folders), "")


def trimmed(node: Node, max_nodes: int) -> Node:
  """Returns a tree without its smallest parts, which are counted instead.

  Args:
    node: The whole.
    max_nodes: About how many may stay.
  """
  sizes = sorted((n.size_bytes for n in _nodes(node)), reverse=True)
  least = sizes[max_nodes] + 1 if len(sizes) > max_nodes else 0
  return _cut(node, lambda n: n.size_bytes >= least)


def shallow(node: Node, depth: int, max_children: int, share: float) -> Node:
  """Returns the top of a tree.

  Args:
    node: The whole.
    depth: How many levels stay below it.
    max_children: How many children of a node stay.
    share: Parts of fewer of the whole's bytes do not stay.
  """
  if not depth:
    return dataclasses.replace(node, children=())
  least = share * node.size_bytes if isinstance(share, float) else share
  kept = [c for c in node.children if abs(c.size_bytes) >= least]
  kept = kept[:max_children]
  children = [shallow(c, depth - 1, max_children, int(least)) for c in kept]
  return dataclasses.replace(
    node, children=(*children, *_more(node.children[len(kept) :]))
  )


def _nodes(node: Node) -> Iterable[Node]:
  yield node
  for child in node.children:
    yield from _nodes(child)


def _cut(node: Node, is_kept: Callable[[Node], bool]) -> Node:
  kept = [c for c in node.children if is_kept(c)]
  left = [c for c in node.children if not is_kept(c)]
  children = (*(_cut(c, is_kept) for c in kept), *_more(left))
  return dataclasses.replace(node, children=children)


def _more(left: Sequence[Node]) -> list[Node]:
  size_bytes = sum(n.size_bytes for n in left)
  if not left:
    return []
  return [Node(name=f"and {len(left)} more", size_bytes=size_bytes)]
