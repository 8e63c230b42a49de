"""What a plan's bytes are at its peak, and what would make them fewer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxmem import units
from jaxmem.report import peak_tree
from jaxmem.report.explain_html import explanation_html
from jaxmem.report.frontier import Frontier
from jaxmem.report.hints import hints
from jaxmem.report.peak import PeakRow
from jaxmem.report.peak_tree import Node
from jaxmem.report.plan_data import PlanData

# Of what is printed: how many levels each tree shows, if they are not more
# lines than that; of how many rows, and from which share of the whole on.
_DEPTH = {"kind": 2, "module": 3, "line": 2, "argument": 3}
_MAX_LINES = 24
_MAX_ROWS = 6
_MIN_SHARE = 0.01
_MIN_SHARE_OF_REST = 0.0005


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
  """Where the bytes at the peak come from. Print it, or show it in a notebook.

  Each tree holds all the bytes of the whole program.

  Attributes:
    name: The function's name.
    target: The device planned for.
    trees: "kind", "module", "line" and "argument" -> the tree.
    hints: What would make the peak lower, a line each.
  """

  name: str
  target: str
  trees: dict[str, Node]
  hints: tuple[str, ...]

  @property
  def total_bytes(self) -> int:
    """Device bytes of one execution."""
    return self.trees["kind"].size_bytes

  def __str__(self) -> str:
    total = units.format_bytes(self.total_bytes)
    lines = [f"{self.name} on {self.target}: {total} at the peak"]
    for by, node in self.trees.items():
      lines += [f"  by {by}", *self._top(node, _DEPTH[by])]
    if self.hints:
      lines += ["  what would shrink it", *(f"    {h}" for h in self.hints)]
    return "\n".join(lines)

  def _top(self, node: Node, depth: int) -> list[str]:
    top = peak_tree.shallow(node, depth, _MAX_ROWS, _MIN_SHARE)
    lines = self._lines(top, 0)
    is_long = len(lines) > _MAX_LINES and depth > 1
    return self._top(node, depth - 1) if is_long else lines

  def _lines(self, node: Node, depth: int) -> list[str]:
    lines = []
    for child in node.children:
      if child.size_bytes < _MIN_SHARE_OF_REST * self.total_bytes and lines:
        continue
      size = units.format_bytes(child.size_bytes)
      share = 100 * child.size_bytes / max(1, self.total_bytes)
      lines.append(f"  {size:>10} {share:5.1f} %  {'  ' * depth}{child.name}")
      lines += self._lines(child, depth + 1)
    return lines

  def to_html(self) -> str:
    """Returns a part of a page, which needs neither script nor network."""
    return explanation_html(self.trees, self.hints)

  def _repr_html_(self) -> str:
    return self.to_html()


def explain(plan: PlanData, frontier: Frontier | None = None) -> Explanation:
  """Says where a plan's bytes at the peak come from.

  Args:
    plan: The plan.
    frontier: What limits would cost, if that was planned; it is told, too.
  """
  told = hints(plan.peak, plan.donation, plan.replicated, frontier)
  return explain_rows(plan.name, plan.target, plan.peak, told)


def explain_rows(
  name: str, target: str, rows: Sequence[PeakRow], told: tuple[str, ...]
) -> Explanation:
  """Says where a program's bytes at the peak come from.

  Args:
    name: The function's.
    target: The device.
    rows: What the bytes are.
    told: What would make them fewer.
  """
  where = peak_tree.paths(rows)
  trees = {by: peak_tree.tree(by, rows, each) for by, each in where.items()}
  return Explanation(name=name, target=target, trees=trees, hints=told)
