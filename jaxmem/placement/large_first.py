"""Large buffers first: they decide the height, the others fill the gaps.

A train step has thousands of buffers, but the few hundred largest take nearly
all of its bytes. Alone they are placed without a gap in most cases, and each
attempt takes a fraction of the time that all of them would. Small ones that are
live where next to nothing may be wasted are as hard to place, and may join.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from jaxmem.placement import decision
from jaxmem.placement.fullest_first import RULES, decodes
from jaxmem.placement.lowest_floor import decode, iterate
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import PlacementSearch

# Up to so many large buffers, perturbed orders of them and stages that take
# longer are tried as well.
_FEW_BUFFERS = 450


# Large are, stage by stage, buffers of at least the height divided by the first
# entry; with the second, those too that are larger than what may be wasted in
# one of their sections. A stage is left out if more than the third are large.
_STAGES = (
  (1000, True, math.inf),
  (1000, False, _FEW_BUFFERS),
  (3000, False, math.inf),
)
# Orders of lowest-floor decodes; a fullest-first decode by each rule follows.
_ORDERS = ("TWA", "TAW")
# How many perturbed orders of a few large buffers are decoded in between.
_MAX_DECODES = 30
# How many placements of the large ones are filled up with the others: of those
# without a gap, and if there is none.
_MAX_FILLS = 2
_MAX_FILLS_WITH_GAPS = 1
# Deterministic time to decide whether the large ones fit, and up to how many.
_WORK_TO_DECIDE = 0.01
_MAX_DECIDED = 250


def large_first(problem: Problem, capacity: int | None = None) -> Solution:
  """Places the large buffers as low as can be, then the rest.

  Args:
    problem: The buffers.
    capacity: The search stops at this height, in bytes; by default at the
      bytes live at once.

  Returns:
    The lowest placement; maybe above the capacity.
  """
  search = PlacementSearch(problem, capacity)
  try_large_first(search)
  everything = np.zeros(0, np.int64)
  search.offer(decision.fill(search.table, [], everything), "large_first")
  return search.solution()


def try_large_first(search: PlacementSearch) -> None:
  """Offers placements in which ever smaller buffers count as large.

  Leaves problems with fixed offsets, gaps or alignments to others.
  """
  table = search.table
  if not table.is_plain:
    return
  always = (table.starts == 0) & (table.ends == table.num_sections)
  floors = np.cumsum(np.where(always, table.highs, 0)) - table.highs
  base = int(table.highs[always].sum())
  tried = set()
  for part, hard_join, max_large in _STAGES:
    chosen = table.sizes_bytes * part >= search.goal_bytes
    if hard_join:
      # Larger than what can be wasted in its fullest section.
      chosen |= table.highs > search.goal_bytes // table.unit - table.peaks
    large = np.flatnonzero(chosen & ~always)
    if search.is_done or not 0 < len(large) <= max_large:
      continue
    # The chosen ones grow with the part: as many are the same.
    if (hard_join, len(large)) in tried:
      continue
    tried.add((hard_join, len(large)))
    placed = [*np.flatnonzero(always).tolist(), *large.tolist()]
    # CP-SAT is slow with small ones among large ones; see `decision.decide`.
    for offsets in _place_large(search, large, is_decided=not hard_join):
      known = np.concatenate([floors[always], offsets + base])
      found = decision.fill(table, placed, known)
      search.offer(found, f"large_first 1/{part}")
      if search.is_done:
        return


def _place_large(
  search: PlacementSearch, large: np.ndarray, is_decided: bool
) -> list[np.ndarray]:
  """Returns some placements of the large ones alone, in the search's units."""
  buffers = search.table.problem.buffers
  alone = PlacementSearch(Problem(tuple(buffers[i] for i in large)))
  found = []
  num_done = 0
  for turn, offsets in enumerate(_attempts(alone, is_decided)):
    tops = offsets * alone.table.unit + alone.table.sizes_bytes
    missing = max(int(tops.max()) - alone.goal_bytes, 0)
    found.append((missing, turn, offsets))
    num_done += not missing
    if num_done == _MAX_FILLS:
      break
  found.sort(key=lambda attempt: attempt[:2])
  num_kept = num_done or _MAX_FILLS_WITH_GAPS
  scale = alone.table.unit // search.table.unit
  return [offsets * scale for _, _, offsets in found[:num_kept]]


def _attempts(alone: PlacementSearch, is_decided: bool) -> Iterator[np.ndarray]:
  table = alone.table
  for name in _ORDERS:
    yield decode(table, table.static_orders[name])
  if is_decided and table.num_buffers <= _FEW_BUFFERS:
    iterate(alone, max_decodes=_MAX_DECODES)
    offsets = np.array(alone.solution().offsets, np.int64)
    yield offsets // table.unit
  goal = alone.goal_bytes // table.unit
  yield from itertools.islice(decodes(table, goal), len(RULES))
  if is_decided and table.num_buffers <= _MAX_DECIDED:
    answer = decision.decide(table, alone.bound_bytes, _WORK_TO_DECIDE)
    if answer.offsets is not None:
      yield answer.offsets
