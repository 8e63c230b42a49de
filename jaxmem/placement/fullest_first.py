"""The fullest-first decoder: where most is still to come, a buffer is next.

The lowest-floor decoder fills the arena evenly; whether the fullest section
ends up without waste is left to its order. Here the section with the most bytes
to place picks, of its buffers that can lie lowest, one that is safe: in none of
its sections does it leave so much room below that what is to come cannot end
below the goal. Between safe ones a rule decides, such as the longest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np

from jaxmem.placement.lowest_floor import lowest_floor
from jaxmem.placement.problem import Problem, Solution
from jaxmem.placement.search import Search
from jaxmem.placement.table import Table

Rule = Literal["remaining", "width", "start", "centre", "end", "area"]
RULES: tuple[Rule, ...] = (
  "remaining",
  "width",
  "start",
  "centre",
  "end",
  "area",
)

# Buffers placed in all decodes together, and the number of decodes.
_STEPS = 4000
_MIN_DECODES, _MAX_DECODES = 2, 12
# Of the repetitions: how much a rule is shaken, and by how much sections count
# for more in which buffers stood out.
_SHAKE = 0.02
_BUMP = 0.003


def is_possible(table: Table) -> bool:
  """Whether all buffers are free, whole, and may begin at any unit."""
  return (
    table.has_one_piece_each
    and bool((table.fixed < 0).all())
    and bool(table.alignments.max(initial=1) < 2)
  )


def decode(
  table: Table,
  goal: int,
  rule: Rule = "remaining",
  *,
  factors: np.ndarray | None = None,
  weights: np.ndarray | None = None,
) -> np.ndarray:
  """Places all buffers.

  Args:
    table: The problem; `is_possible`.
    goal: Height to stay below, in units.
    rule: What a section prefers: the buffer that lives longest from there on or
      at all, begins first, is central to the section, ends last, or is largest
      in space and time.
    factors: float `[num_buffers]`, multiply what the rule compares.
    weights: float `[num_sections]`, multiply what is still to be placed.

  Returns:
    Offsets, int64 `[num_buffers]`, in units.
  """
  widths = table.ends - table.starts
  # Between equal ones the largest is next, or the longest.
  order = np.argsort(
    -widths if rule == "centre" else -table.highs, kind="stable"
  )
  starts, ends = table.starts[order], table.ends[order]
  sizes = table.highs[order]
  factor = np.ones(len(order)) if factors is None else factors[order]
  weight = np.ones(table.num_sections) if weights is None else weights
  rows = list(zip(starts.tolist(), ends.tolist(), sizes.tolist(), strict=True))
  static = _static_keys(rule, starts, ends, sizes) * factor
  floors = np.zeros(len(order), np.int64)
  skyline = np.zeros(table.num_sections, np.int64)
  rest = table.live.copy()
  urgency = rest * weight
  # One past the last section, or -1 once placed.
  open_ends = ends.copy()
  placed = np.zeros(len(order), np.int64)
  for _ in rows:
    section = int(urgency.argmax())
    here = ((starts <= section) & (open_ends > section)).nonzero()[0]
    lowest = floors[here]
    floor = int(lowest.min())
    here = here[lowest == floor]
    skyline[section] = floor
    if len(here) > 1:
      here = _safest(
        here, starts[here], ends[here], section, floor, skyline, rest, goal
      )
    keys = static[here]
    if rule == "remaining":
      keys = (ends[here] - section) * factor[here]
    elif rule == "centre":
      keys = np.minimum(ends[here] - section, section - starts[here])
      keys = keys * factor[here]
    i = int(here[keys.argmax()])
    start, end, size = rows[i]
    placed[i], top = floor, floor + size
    open_ends[i] = -1
    skyline[start:end] = top
    rest[start:end] -= size
    urgency[start:end] = rest[start:end] * weight[start:end]
    floors[(starts < end) & (open_ends > start) & (floors < top)] = top
  offsets = np.zeros(table.num_buffers, np.int64)
  offsets[order] = placed
  return offsets


def _static_keys(
  rule: Rule, starts: np.ndarray, ends: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
  if rule == "start":
    return -starts.astype(float)
  if rule == "end":
    return ends.astype(float)
  if rule == "area":
    return (ends - starts) * sizes.astype(float)
  return (ends - starts).astype(float)


def _safest(
  here: np.ndarray,
  starts: np.ndarray,
  ends: np.ndarray,
  section: int,
  floor: int,
  skyline: np.ndarray,
  rest: np.ndarray,
  goal: int,
) -> np.ndarray:
  """Returns the buffers that lift what is to come least above the goal.

  All lie on `floor` and live in `section`. In another section that one of them
  covers, all that is to come must then lie above `floor`.
  """
  low, high = int(starts.min()), int(ends.max())
  excess = np.where(
    skyline[low:high] < floor, rest[low:high] + (floor - goal), 0
  )
  np.maximum(excess, 0, out=excess)
  if not excess.any():
    return here
  middle = section - low
  before = np.maximum.accumulate(excess[middle::-1])
  after = np.maximum.accumulate(excess[middle:])
  worst = np.maximum(before[section - starts], after[ends - 1 - section])
  return here[worst == worst.min()]


def fullest_first(problem: Problem, capacity: int | None = None) -> Solution:
  """Decodes by each rule, and some times more with small changes.

  Args:
    problem: The buffers: without gaps, fixed offsets and alignments, or it is
      left to the lowest-floor decoder.
    capacity: The search stops at this height, in bytes; by default at the
      bytes live at once.

  Returns:
    The lowest placement; maybe above the capacity.
  """
  search = Search(problem, capacity)
  if not is_possible(search.table):
    return lowest_floor(problem, capacity)
  try_fullest_first(search)
  return search.solution()


def try_fullest_first(search: Search) -> None:
  """Offers placements, fewer of large problems; see `is_possible`."""
  table = search.table
  if not is_possible(table):
    return
  num_decodes = _STEPS // max(table.num_buffers, 1)
  num_decodes = min(max(num_decodes, _MIN_DECODES), _MAX_DECODES)
  goal = search.goal_bytes // table.unit
  for offsets in itertools.islice(decodes(table, goal), num_decodes):
    search.offer(offsets, "fullest_first")
    if search.is_done:
      return


def decodes(table: Table, goal: int) -> Iterator[np.ndarray]:
  """Yields placements without end: by each rule, then slightly changed.

  Args:
    table: The problem.
    goal: Height to stay below, in units.
  """
  generator = np.random.default_rng(0)
  weights = {rule: np.ones(table.num_sections) for rule in RULES}
  factors = np.ones(table.num_buffers)
  while True:
    for rule in RULES:
      offsets = decode(
        table, goal, rule, factors=factors, weights=weights[rule]
      )
      yield offsets
      weights[rule] *= 1 + _BUMP * _standing_out(table, offsets, goal)
      shakes = generator.standard_normal(table.num_buffers)
      factors = np.exp(_SHAKE * shakes)


def _standing_out(table: Table, offsets: np.ndarray, goal: int) -> np.ndarray:
  """Returns what stands out, as float `[num_sections]`: 1 for the highest."""
  excess = offsets + table.highs - goal
  found = np.zeros(table.num_sections)
  highest = int(excess.max(initial=0))
  for i in np.flatnonzero(excess > 0).tolist():
    covered = slice(int(table.starts[i]), int(table.ends[i]))
    found[covered] = np.maximum(found[covered], excess[i] / highest)
  return found
