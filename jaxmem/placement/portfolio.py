"""The placer to use: cheap ones first, and no more than it takes."""

from __future__ import annotations

import functools

from jaxmem.placement import infeasible
from jaxmem.placement.check_placement import validate
from jaxmem.placement.cp_sat import descend
from jaxmem.placement.fullest_first import try_fullest_first
from jaxmem.placement.heaps import try_by_size, try_pyramid, try_xla_heap
from jaxmem.placement.large_first import try_large_first
from jaxmem.placement.lowest_floor import iterate, try_floors
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import PlacementSearch

# Above so many buffers, most orders and the later placers take seconds and gain
# nothing on the others in any case of benchmarks/olla_benchmark.py. They are
# tried if a capacity has to be met.
_MANY_BUFFERS = 1000
_FIRST_ORDERS = ("TWA", "TAW")


def place(
  problem: Problem,
  capacity: int | None = None,
  *,
  max_deterministic_time: float | None = None,
) -> Solution:
  """Places buffers as low as possible, or below a capacity.

  Deterministic: what is tried depends on the problem, never on the clock.

  Args:
    problem: The buffers.
    capacity: Bytes of the arena. The search stops as soon as they suffice; if
      None, at the bytes live at once.
    max_deterministic_time: Work for CP-SAT, in its unit, ten seconds or more
      each; 0 leaves it out. See `cp_sat.descend` for the default.

  Returns:
    The lowest placement found. With a capacity, look at `solution.fits`: it may
    not fit if neither that nor the contrary was found out.

  Raises:
    InfeasiblePlacementError: If no placement fits: proven, with the reason.
    ValueError: If the capacity is negative.
  """
  if capacity is not None and capacity < 0:
    raise ValueError(f"capacity must not be negative, got {capacity}.")
  search = PlacementSearch(problem, capacity)
  infeasible.check_bounds(search.table, capacity)
  _offer_hints(search)
  exact = functools.partial(descend, max_work=max_deterministic_time)
  is_large = search.table.num_buffers > _MANY_BUFFERS
  if search.has_capacity and not is_large:
    # Tight capacities are for CP-SAT, which meets most of them at once.
    placers = [try_floors, _try_heaps, exact, try_large_first, iterate]
  elif search.has_capacity or not is_large:
    placers = [try_floors, try_large_first, try_fullest_first]
    placers += [_try_heaps, iterate, exact]
  else:
    placers = [_try_first_floors, try_large_first, try_fullest_first, exact]
  for placer in placers:
    if not search.is_done and search.bound_bytes <= search.goal_bytes:
      placer(search)
  if capacity is not None and search.bound_bytes > capacity:
    raise infeasible.explain(search.table, capacity)
  return search.solution()


def _offer_hints(search: PlacementSearch) -> None:
  """Offers the hints, if they are a placement."""
  problem = search.table.problem
  hints = [b.hint_bytes for b in problem.buffers if b.hint_bytes is not None]
  if len(hints) < len(problem.buffers):
    return
  hinted = PlacementSearch(search.table)
  hinted.offer_bytes(hints, "hints")
  try:
    validate(problem, hinted.solution())
  except ValueError:
    return
  search.offer_bytes(hints, "hints")


def _try_first_floors(search: PlacementSearch) -> None:
  try_floors(search, _FIRST_ORDERS)


def _try_heaps(search: PlacementSearch) -> None:
  try_by_size(search)
  try_pyramid(search)
  if (search.table.fixed < 0).all():
    try_xla_heap(search)
