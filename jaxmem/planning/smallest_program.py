"""Finds the smallest program of several modules that do the same."""

from __future__ import annotations

from collections.abc import Iterable

from jaxmem.planning.fit import LimitPlanner


def smallest_program_bytes(planners: Iterable[LimitPlanner]) -> int:
  """Returns the bytes of the smallest whole program of several modules."""
  smallest: int | None = None
  # What is small without edits leaves the others little to search for.
  for planner in sorted(planners, key=lambda p: p.total_bytes):
    found = planner.smallest_bytes(smallest)
    smallest = found if smallest is None else min(smallest, found)
  assert smallest is not None
  return smallest
