"""Exact placement: the height goes down from decision to decision."""

from __future__ import annotations

from jaxmem.placement import decision
from jaxmem.placement.lowest_floor import decode
from jaxmem.placement.orders import static_orders
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import Search

# Placements this close to what could not be decided are close enough.
_CLOSE = 1000
# A decision of a descent gets a third of the work left, but at least so much.
_SHARE = 3
_MIN_WORK = 0.05


def cp_sat(
  problem: Problem,
  capacity: int | None = None,
  *,
  max_deterministic_time: float = 2.0,
) -> Solution:
  """Minimises the height (equation 15), or reaches a capacity.

  Args:
    problem: The buffers.
    capacity: The search stops at this height, in bytes; by default at the
      lower bound.
    max_deterministic_time: Work to spend, in CP-SAT's unit: ten seconds or
      more.

  Returns:
    The lowest placement; maybe above the capacity.
  """
  search = Search(problem, capacity)
  order = static_orders(search.table)["TWA"]
  search.offer(decode(search.table, order), "lowest_floor TWA")
  descend(search, max_deterministic_time)
  return search.solution()


def descend(search: Search, max_work: float) -> None:
  """Lowers the best placement of a search, and raises its bound by proofs.

  The goal is tried first. A height that is not decided within a share of the
  work is given up, and the next one is halfway to the best placement.

  Args:
    search: Has a placement.
    max_work: Deterministic time to spend, in CP-SAT's unit.
  """
  if search.is_done or not decision.is_tractable(search.table):
    return
  unit = search.table.unit
  target = search.goal_bytes
  given_up = search.goal_bytes
  has_capacity = search.goal_bytes > search.bound_bytes
  while not search.is_done and max_work > 0:
    share = max_work if has_capacity else max(max_work / _SHARE, _MIN_WORK)
    answer = decision.decide(search.table, target, share)
    max_work -= answer.work
    if answer.offsets is not None:
      search.offer(answer.offsets, "cp_sat")
    else:
      given_up = target
      if answer.status == "infeasible":
        search.raise_bound(target)
      if has_capacity:
        return
    missing = search.height_bytes - given_up
    if missing <= max(unit, search.height_bytes // _CLOSE):
      return
    target = given_up + missing // 2
