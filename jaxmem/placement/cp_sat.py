"""Exact placement: the height goes down from decision to decision."""

from __future__ import annotations

from jaxmem.placement import decision
from jaxmem.placement.lowest_floor import decode
from jaxmem.placement.orders import static_orders
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import Search

# A bisection ends this close to what could not be decided.
_CLOSE = 1000
# Deterministic time by default, of a bisection's first decisions, its growth,
# and what a decision counts at least.
_WORK_TO_DECIDE = 2.0
_WORK_TO_DESCEND = 0.2
_WORK_TO_DESCEND_MANY = 0.01
_MANY = 200
_FIRST_SLICE = 0.02
_GROWTH = 4
_LEAST_WORK = 0.001


def cp_sat(
  problem: Problem,
  capacity: int | None = None,
  *,
  max_deterministic_time: float | None = None,
) -> Solution:
  """Minimises the height (equation 15), or reaches a capacity.

  Args:
    problem: The buffers.
    capacity: The search stops at this height, in bytes; by default at the
      lower bound.
    max_deterministic_time: Work to spend, in CP-SAT's unit: ten seconds or
      more. By default 2 with a capacity, 0.2 without, 0.01 for more than 200
      buffers.

  Returns:
    The lowest placement; maybe above the capacity.
  """
  search = Search(problem, capacity)
  order = static_orders(search.table)["TWA"]
  search.offer(decode(search.table, order), "lowest_floor TWA")
  descend(search, max_deterministic_time)
  return search.solution()


def descend(search: Search, max_work: float | None) -> None:
  """Lowers the best placement of a search, and raises its bound by proofs.

  A capacity is decided, and that is it. Otherwise heights are bisected: one
  that is not decided soon is given up like one that is not feasible. Once
  everything below the best placement is, it starts over with more time for
  each.

  Args:
    search: Has a placement.
    max_work: Deterministic time to spend, in CP-SAT's unit; None for a default.
  """
  left = max_work
  if left is None:
    left = _WORK_TO_DECIDE
    if not search.has_capacity:
      is_large = search.table.num_buffers > _MANY
      left = _WORK_TO_DESCEND_MANY if is_large else _WORK_TO_DESCEND
  slice_work = left if search.has_capacity else _FIRST_SLICE
  if search.is_done or left <= 0 or not decision.is_tractable(search.table):
    return
  target = given_up = search.goal_bytes
  while not search.is_done and left > 0:
    answer = decision.decide(search.table, target, min(slice_work, left))
    left -= max(answer.work, _LEAST_WORK)
    if answer.offsets is not None:
      search.offer(answer.offsets, "cp_sat")
    else:
      given_up = target
    if answer.status == "infeasible":
      search.raise_bound(target)
    if search.has_capacity:
      return
    missing = search.height_bytes - given_up
    target = given_up + missing // 2
    if missing <= max(search.tolerance_bytes, search.height_bytes // _CLOSE, 1):
      target = given_up = search.bound_bytes
      slice_work *= _GROWTH
