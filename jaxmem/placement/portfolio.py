"""The placer to use: cheap ones first, and no more than it takes."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem.placement import infeasible
from jaxmem.placement.best_fit import by_size
from jaxmem.placement.cp_sat import descend
from jaxmem.placement.fullest_first import try_fullest_first
from jaxmem.placement.iterated import iterate
from jaxmem.placement.large_first import try_large_first
from jaxmem.placement.lowest_floor import decode
from jaxmem.placement.orders import NAMES, static_orders
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.pyramid import stack
from jaxmem.placement.search import Search
from jaxmem.placement.validate import validate
from jaxmem.placement.xla import pack

# Above so many buffers, most orders and the later placers take seconds and gain
# nothing on the others in any case of benchmarks/olla_benchmark.py. They are
# tried if a capacity has to be met.
_MANY = 1000
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
      each; 0 leaves it out. See `cp_sat` for the default.

  Returns:
    The lowest placement found. With a capacity, look at `solution.fits`: it may
    not fit if neither that nor the contrary was found out.

  Raises:
    InfeasiblePlacementError: If no placement fits: proven, with the reason.
    ValueError: If the capacity is negative.
  """
  if capacity is not None and capacity < 0:
    raise ValueError(f"capacity must not be negative, got {capacity}.")
  search = Search(problem, capacity)
  infeasible.check_bounds(search.table, capacity)
  _offer_hints(search)
  is_large = search.table.num_buffers > _MANY
  placers = [_try_first_floors, try_large_first, try_fullest_first]
  if search.has_capacity and not is_large:
    # Tight capacities are left to CP-SAT.
    placers = [_try_floors, try_large_first, _try_heaps, iterate]
  elif search.has_capacity or not is_large:
    placers = [_try_floors, *placers[1:], _try_heaps, iterate]
  for placer in placers:
    if not search.is_done:
      placer(search)
  descend(search, max_deterministic_time)
  if capacity is not None and search.bound_bytes > capacity:
    raise infeasible.explain(search.table, capacity)
  return search.solution()


def _offer_hints(search: Search) -> None:
  """Offers the hints, if they are a placement."""
  problem = search.table.problem
  hints = [b.hint_bytes for b in problem.buffers if b.hint_bytes is not None]
  if len(hints) < len(problem.buffers):
    return
  hinted = Search(search.table)
  hinted.offer_bytes(hints, "hints")
  try:
    validate(problem, hinted.solution())
  except ValueError:
    return
  search.offer_bytes(hints, "hints")


def _try_first_floors(search: Search) -> None:
  _try_floors(search, _FIRST_ORDERS)


def _try_floors(search: Search, names: Sequence[str] = NAMES) -> None:
  orders = static_orders(search.table)
  for name in names:
    order = orders[name]
    search.offer(decode(search.table, order), f"lowest_floor {name}")
    if search.is_done:
      return


def _try_heaps(search: Search) -> None:
  table = search.table
  search.offer(by_size(table), "greedy_by_size best")
  search.offer(stack(table), "pyramid")
  if (table.fixed < 0).all():
    search.offer(pack(table), "xla_heap")
