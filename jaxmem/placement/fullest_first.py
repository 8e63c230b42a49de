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
from typing import Literal

import numpy as np

from jaxmem.placement.search import PlacementSearch
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
# What is compared of buffers, given by their indices, in a section.
_Preference = Callable[[np.ndarray, int], np.ndarray]

# Buffers placed in all decodes together, about half a second, and the number of
# decodes that this allows.
_MAX_PLACED = 4000
_MIN_DECODES, _MAX_DECODES = 2, 12
# Of the repetitions: the standard deviation by which a rule is shaken, and by
# how much sections count for more in which buffers stood out.
_SHAKE = 0.02
_SECTION_BOOST = 0.003


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
  # Between equal ones the largest is next, or the longest.
  widths = table.ends - table.starts
  key = widths if rule == "centre" else table.highs
  order = np.argsort(-key, kind="stable")
  starts, ends = table.starts[order], table.ends[order]
  sizes = table.highs[order]
  factor = np.ones(len(order)) if factors is None else factors[order]
  weight = np.ones(table.num_sections) if weights is None else weights
  offsets = np.zeros(table.num_buffers, np.int64)
  offsets[order] = _place_in_turn(
    (starts, ends, sizes),
    table.live,
    goal,
    weight,
    _preference(rule, starts, ends, sizes, factor),
  )
  return offsets


def _place_in_turn(
  buffers: tuple[np.ndarray, np.ndarray, np.ndarray],
  live: np.ndarray,
  goal: int,
  weight: np.ndarray,
  preference: _Preference,
) -> np.ndarray:
  """Returns the offsets of buffers given by starts, ends and sizes."""
  starts, ends, _ = buffers
  rows = list(zip(*(column.tolist() for column in buffers), strict=True))
  floors = np.zeros(len(rows), np.int64)
  skyline = np.zeros(len(live), np.int64)
  rest = live.copy()
  urgency = rest * weight
  # One past the last section, or -1 once placed.
  open_ends = ends.copy()
  placed = np.zeros(len(rows), np.int64)
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
    i = int(here[preference(here, section).argmax()])
    start, end, size = rows[i]
    placed[i], top = floor, floor + size
    open_ends[i] = -1
    skyline[start:end] = top
    rest[start:end] -= size
    urgency[start:end] = rest[start:end] * weight[start:end]
    floors[(starts < end) & (open_ends > start) & (floors < top)] = top
  return placed


def _preference(
  rule: Rule,
  starts: np.ndarray,
  ends: np.ndarray,
  sizes: np.ndarray,
  factor: np.ndarray,
) -> _Preference:
  """Returns what a rule compares of some buffers in a section."""
  if rule == "remaining":
    return lambda here, section: (ends[here] - section) * factor[here]
  if rule == "centre":
    return lambda here, section: (
      np.minimum(ends[here] - section, section - starts[here]) * factor[here]
    )
  keys = {
    "width": ends - starts,
    "start": -starts,
    "end": ends,
    "area": (ends - starts) * sizes.astype(float),
  }[rule]
  keys = keys * factor
  return lambda here, section: keys[here]


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


def try_fullest_first(search: PlacementSearch) -> None:
  """Decodes by each rule, and some times more with small changes.

  Leaves problems that are not `is_possible` to others.
  """
  table = search.table
  if not is_possible(table):
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
      offsets = decode(
        table, goal, rule, factors=factors, weights=weights[rule]
      )
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
