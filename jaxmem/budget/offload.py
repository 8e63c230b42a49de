"""Which values may go to the host and come back without anyone waiting.

Each direction of the link is one lane. A value leaves when it is made, in the
order in which values are made; it comes back as late as its next reader allows,
after what is due later. What cannot be on the host in between, or would make
the device wait, stays: a wait costs more than any recompute.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Profile, Transfer
from jaxmem.budget.tuning import TUNING
from jaxmem.rewrite import edits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OffloadRates:
  """What copies reach on the link to the host.

  Attributes:
    to_host_bytes_per_s: Out.
    from_host_bytes_per_s: In, at the same time.
  """

  to_host_bytes_per_s: float
  from_host_bytes_per_s: float

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if not getattr(self, field.name) > 0:
        raise ValueError(
          f"{field.name} must be positive, got {getattr(self, field.name)}."
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
  """A value that could be on the host between two of its readers.

  Attributes:
    value: The value.
    later: The step of the later reader.
    worth: Seconds per byte of making it again instead; inf if impossible.
  """

  value: int
  later: int
  worth: float


def candidates(
  problem: BudgetProblem, limit_bytes: int
) -> list[list[Candidate]]:
  """Returns gaps over which too much is live, ranked in two ways.

  By what making the value again costs: per byte, and altogether. What cannot
  be made again comes first in both.

  Args:
    problem: The problem.
    limit_bytes: The limit.
  """
  live = Profile(problem).memory.live
  is_over = np.concatenate([[0], live > limit_bytes]).cumsum()
  least_bytes = min(
    TUNING.least_moved_bytes, limit_bytes // TUNING.least_moved_limit_parts
  )
  found = []
  for value, stored in enumerate(problem.values):
    if stored.moves_as is None or stored.producer is None or stored.is_result:
      continue
    if stored.size_bytes < least_bytes:
      continue
    points = (stored.producer, *stored.uses)
    gaps = [
      (is_over[later] - is_over[earlier + 1], later)
      for earlier, later in itertools.pairwise(points)
    ]
    num_over, later = max(gaps, default=(0, 0))
    if num_over:
      worth = _worth(problem, value, later)
      found.append(Candidate(value, later, worth))
  size = problem.sizes
  return [
    sorted(found, key=lambda c: (-c.worth, c.value)),
    sorted(found, key=lambda c: (-c.worth * size[c.value], c.value)),
  ]


def _worth(problem: BudgetProblem, value: int, later: int) -> float:
  unit = problem.unit_of[value]
  if unit < 0 or later > problem.latest_run[unit]:
    return math.inf
  return problem.units[unit].seconds / problem.values[value].size_bytes


def schedule(
  problem: BudgetProblem,
  ranked: Sequence[Candidate],
  rates: OffloadRates,
  most: int,
) -> list[Transfer]:
  """Returns when values move; those that do not fit the lanes are left out.

  Args:
    problem: The problem. Its steps' seconds are the clock; recomputes only add
      to the time that copies have.
    ranked: What should move, the most important first.
    rates: The link.
    most: How many values may move.
  """
  starts = np.cumsum([0.0, *(s.seconds for s in problem.steps)])
  kept: list[Candidate] = []
  best: list[Transfer] = []
  for candidate in ranked:
    if len(kept) == most:
      break
    tried = _lay_out(problem, [*kept, candidate], rates, starts)
    if tried is not None:
      kept.append(candidate)
      best = tried
  return best


def _lay_out(
  problem: BudgetProblem,
  chosen: list[Candidate],
  rates: OffloadRates,
  starts: np.ndarray,
) -> list[Transfer] | None:
  """Fills both lanes; None if a copy would not be done in time."""
  clock = starts.tolist()
  store_done = {}
  free = 0.0
  made = [(problem.values[c.value].producer, c.value) for c in chosen]
  for step, value in sorted(made):
    assert step is not None
    begin = max(free, clock[step + 1])
    size_bytes = problem.values[value].size_bytes
    free = begin + size_bytes / rates.to_host_bytes_per_s
    store_done[value] = bisect.bisect_left(clock, free)
  transfers = []
  due = math.inf
  for candidate in sorted(chosen, key=lambda c: (-c.later, c.value)):
    stored = problem.values[candidate.value]
    end = min(due, clock[candidate.later])
    due = end - stored.size_bytes / rates.from_host_bytes_per_s
    fetch_start = bisect.bisect_right(clock, due) - 1
    over = stored.overwritten_at
    if fetch_start <= store_done[candidate.value] or fetch_start < 0:
      return None
    if over is not None and candidate.later > over:
      return None
    transfers.append(
      Transfer(
        value=candidate.value,
        store_done=store_done[candidate.value],
        fetch_start=fetch_start,
        fetch_done=candidate.later,
      )
    )
  return sorted(transfers)


def drop_needless(profile: Profile, limit_bytes: int) -> None:
  """Leaves on the device what need not go to the host, the smallest first.

  Args:
    profile: Is changed; it fits the limit, and will.
    limit_bytes: The limit.
  """
  sizes = profile.problem.sizes
  for value in sorted(profile.transfers, key=lambda v: (sizes[v], v)):
    transfer = profile.transfers[value]
    profile.unmove(value)
    if profile.peak_bytes > limit_bytes:
      profile.move(transfer)


def as_edits(
  problem: BudgetProblem, profile: Profile
) -> tuple[edits.Offload, ...]:
  """Names the copies of a plan by instruction ids."""
  found = []
  for _, transfer in sorted(profile.transfers.items()):
    named = problem.values[transfer.value].moves_as
    if named is None:
      raise ValueError(
        f"{problem.values[transfer.value].name!r} may not go to the host."
      )
    found.append(
      edits.Offload(
        value=named,
        store_done=problem.steps[transfer.store_done].instruction,
        fetch_start=problem.steps[transfer.fetch_start].instruction,
        fetch_done=problem.steps[transfer.fetch_done].instruction,
      )
    )
  return tuple(found)
