"""The fullest-first decoder: where most is still to come, a buffer is next.

The lowest-floor decoder fills the arena evenly; whether the fullest section
ends up without waste is left to its order. Here the section with the most bytes
to place picks, of its buffers that can lie lowest, one that is safe: in none of
its sections does it leave so much room below that what is to come cannot end
below the goal. Between safe ones a rule decides, such as the longest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np

from jaxmem.placement.search import PlacementSearch
from jaxmem.placement.table import Table

Rule = Literal["remaining", "width", "start", "centre", "end", "area"]
RULES: tuple[Rule, ...] = get_args(Rule)

# Buffers placed in all decodes together, about half a second, and the number of
# decodes that this allows.
_MAX_PLACED = 4000
_MIN_DECODES, _MAX_DECODES = 2, 12
# Of the repetitions: the standard deviation by which a rule is shaken, and by
# how much sections count for more in which buffers stood out.
_SHAKE = 0.02
_SECTION_BOOST = 0.003


def decode(
  table: Table,
  goal: int,
  rule: Rule = "remaining",
  factors: np.ndarray | float = 1.0,
  weights: np.ndarray | float = 1.0,
) -> np.ndarray:
  """Places all buffers.

  Args:
    table: The problem; `is_plain`.
    goal: Height to stay below, in units.
    rule: What a section prefers: the buffer that lives longest from there on or
      at all, begins first, is central to the section, ends last, or is largest
      in space and time.
    factors: `[num_buffers]`, multiply what the rule compares.
    weights: `[num_sections]`, multiply what is still to be placed.

  Returns:
    Offsets, int64 `[num_buffers]`, in units.
  """
  # Between equal ones the largest is next, or the longest.
  key = table.ends - table.starts if rule == "centre" else table.highs
  order = np.argsort(-key, kind="stable")
  starts, ends = table.starts[order], table.ends[order]
  rows = np.stack([order, starts, ends, table.highs[order]], axis=1).tolist()
  factors = np.broadcast_to(factors, len(order))[order]
  prefer = _preference(rule, starts, ends, table.highs[order], factors)
  weights = np.broadcast_to(weights, table.num_sections)
  floors = np.zeros(len(order), np.int64)
  skyline = np.zeros(table.num_sections, np.int64)
  rest = table.live.copy()
  urgency = rest * weights
  # One past the last section, or -1 once placed.
  open_ends = ends.copy()
  offsets = np.zeros(len(order), np.int64)
  for _ in rows:
    section = int(urgency.argmax())
    here = ((starts <= section) & (open_ends > section)).nonzero()[0]
    lowest = floors[here]
    floor = int(lowest.min())
    here = here[lowest == floor]
    skyline[section] = floor
    if len(here) > 1:
      low, high = int(starts[here].min()), int(ends[here].max())
      # What is to come must lie above `floor` where one of these covers it.
      lifted = rest[low:high] + (floor - goal)
      excess = np.where(skyline[low:high] < floor, np.maximum(lifted, 0), 0)
      if excess.any():
        covered = starts[here] - low, ends[here] - low
        here = here[_are_safest(*covered, section - low, excess)]
    i = int(here[prefer(here, section).argmax()])
    buffer, start, end, size = rows[i]
    offsets[buffer], top = floor, floor + size
    open_ends[i] = -1
    skyline[start:end] = top
    rest[start:end] -= size
    urgency[start:end] = rest[start:end] * weights[start:end]
    floors[(starts < end) & (open_ends > start) & (floors < top)] = top
  return offsets


def _preference(
  rule: Rule,
  starts: np.ndarray,
  ends: np.ndarray,
  sizes: np.ndarray,
  factors: np.ndarray,
) -> Callable[[np.ndarray, int], np.ndarray]:
  """Returns what a rule compares of some buffers in a section."""
  if rule == "remaining":
    return lambda here, section: (ends[here] - section) * factors[here]
  if rule == "centre":
    return lambda here, section: (
      np.minimum(ends[here] - section, section - starts[here]) * factors[here]
    )
  widths = ends - starts
  area = widths * sizes.astype(float)
  keys = {"width": widths, "start": -starts, "end": ends, "area": area}
  compared = keys[rule] * factors
  return lambda here, section: compared[here]


def _are_safest(
  starts: np.ndarray, ends: np.ndarray, section: int, excess: np.ndarray
) -> np.ndarray:
  """Returns which buffers lift what is to come least above the goal.

  All are live in `section`. `excess` is how far above the goal the rest of a
  section ends if one of them covers it.
  """
  before = np.maximum.accumulate(excess[section::-1])
  after = np.maximum.accumulate(excess[section:])
  worst = np.maximum(before[section - starts], after[ends - 1 - section])
  return worst == worst.min()


def try_fullest_first(search: PlacementSearch) -> None:
  """Decodes by each rule, and some times more with small changes.

  Leaves problems that are not `is_plain` to others.
  """
  table = search.table
  if not table.is_plain:
    return
  num_decodes = _MAX_PLACED // max(table.num_buffers, 1)
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
      offsets = decode(table, goal, rule, factors, weights[rule])
      yield offsets
      weights[rule] *= 1 + _SECTION_BOOST * _standing_out(table, offsets, goal)
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
