"""Exact placement: the height goes down from decision to decision."""

from __future__ import annotations

from jaxmem.placement import decision
from jaxmem.placement.search import PlacementSearch

# A bisection ends where the heights that are left are this part of the best.
_FINEST_BISECTION = 1000
# Deterministic time to spend by default: to meet a capacity, to lower the
# height, and to lower that of more than so many buffers, where it rarely pays.
_WORK_TO_DECIDE = 2.0
_WORK_TO_DESCEND = 0.2
_WORK_TO_DESCEND_MANY = 0.01
_MANY_BUFFERS = 200
# Deterministic time of a decision in the first bisection, how much longer each
# is in the next one, and what it counts at least, so that the work ends.
_FIRST_SLICE = 0.02
_SLICE_GROWTH = 4
_LEAST_WORK = 0.001


def descend(search: PlacementSearch, max_work: float | None = None) -> None:
  """Lowers the best placement of a search, and raises its bound by proofs.

  A capacity is decided, and that is it. Otherwise heights are bisected: one
  that is not decided soon is given up like one that is not feasible. Once
  everything below the best placement is, it starts over with more time for
  each.

  Args:
    search: Has a placement.
    max_work: Deterministic time to spend, in CP-SAT's unit: ten seconds or
      more. By default 2 with a capacity, 0.2 without, 0.01 for more than 200
      buffers.
  """
  left = max_work
  if left is None:
    left = _WORK_TO_DECIDE
    if not search.has_capacity:
      is_large = search.table.num_buffers > _MANY_BUFFERS
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
    if missing <= max(
      search.tolerance_bytes, search.height_bytes // _FINEST_BISECTION, 1
    ):
      target = given_up = search.bound_bytes
      slice_work *= _SLICE_GROWTH
