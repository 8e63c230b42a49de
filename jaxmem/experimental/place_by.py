"""Placements by chosen placers alone."""

from collections.abc import Callable

from jaxmem.placement import PlacementSearch, Problem, Solution


def place_by(
  problem: Problem, *placers: Callable[[PlacementSearch], None]
) -> Solution:
  """Returns the lowest placement that some placers find.

  Args:
    problem: The buffers.
    placers: Called one after the other, until the bytes live at once are
      reached; the first one has to find a placement.
  """
  search = PlacementSearch(problem)
  for placer in placers:
    if not search.is_done:
      placer(search)
  return search.solution()
