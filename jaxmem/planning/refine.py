"""Searches for a cheaper plan about the live bytes of one that fits.

Plans for a little more live bytes cost less, and may fit: XLA packs some more
tightly than others. Every limit of live bytes that is tried tells between which
limits a cheaper plan may still lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxmem.budget import Effort, Event
from jaxmem.planning.candidate import Fit, lowered

# Where searches begin: a plan of other edits may be packed more tightly.
_HIGHER = 1.03
# How far below a sketch searches go as long as they find nothing.
_LOWER = 0.94
# How many limits are tried, the more the less time each takes.
_FEWEST_TRIES, _MOST_TRIES = 4, 8
_STEPS_TRIED = 3600
# Likewise for greedy runs, as a multiple of what is usual.
_MOST_RUNS = 4
_STEPS_RUN = 2000
# Of the room: by how much more or less than others a plan may be packed.
_LUCK = 0.005
# What saves no more than this part of what the edits cost is not looked for.
_HARDLY = 0.002
# Of the limit: limits that are closer to each other than that are not tried.
_CLOSE = 0.001


def refine(
  sketch: Fit, effort: Effort, room: int, also: Sequence[Event] = ()
) -> Fit:
  """Searches for a cheaper plan about the live bytes of a sketch.

  Args:
    sketch: A fit.
    effort: Of each search. Only "fast" leaves values where the sketch has them,
      on the device or the host.
    room: Most bytes of temporaries.
    also: What may run again besides what is gathered.

  Returns:
    The cheapest fit that was found; the sketch if there is none cheaper.
  """
  return _Search(sketch, effort, room, also).run()


class _Tried(NamedTuple):
  """A limit of live bytes, and the cheapest plan for it."""

  live_limit: int
  live_bytes: int
  extra_s: float


class _Search:
  def __init__(
    self, sketch: Fit, effort: Effort, room: int, also: Sequence[Event]
  ):
    self._sketch = self._best = sketch
    self._room = room
    self._with_link = sketch.with_link or effort != "fast"
    self._chooser = sketch.base.chooser(sketch.view, effort, self._with_link)
    num_steps = max(1, self._chooser.problem.num_steps)
    self._num_tries = _between(
      _FEWEST_TRIES, _STEPS_TRIED // num_steps, _MOST_TRIES
    )
    # Where the edits of the sketch come into question.
    self._lowest = max(sketch.live_limit, sketch.live_bytes)
    self._pool = self._chooser.gather(
      self._lowest, _between(1, _STEPS_RUN // num_steps, _MOST_RUNS), also
    )
    self._least_offset = sketch.temp_bytes - sketch.live_bytes
    self._tried: list[_Tried] = []

  def run(self) -> Fit:
    """Tries one limit after the other."""
    limit: int | None = int(_HIGHER * self._lowest)
    if self._num_tries == _MOST_TRIES:
      # Few large values may be packed well at one limit, and badly below.
      limit = max(limit, self._room)
    for number in range(1, _MOST_TRIES + 1):
      limit = self._try(limit)
      # While nothing was found, there may be something a little lower.
      is_enough = number >= self._num_tries and self._best is not self._sketch
      if is_enough or limit in (None, *(t.live_limit for t in self._tried)):
        break
    return self._best

  def _try(self, live_limit: int) -> int | None:
    """Searches at a limit; returns the next."""
    choice = self._chooser.search(live_limit, self._pool)
    if choice is None:
      self._tried.append(_Tried(live_limit, live_limit, math.inf))
    else:
      self._tried.append(_Tried(live_limit, choice.peak_bytes, choice.extra_s))
    if choice is not None and choice.extra_s < self._best.extra_s:
      fit = self._sketch.base.fit(
        self._sketch.view, self._with_link, live_limit, choice, self._room
      )
      self._least_offset = min(
        self._least_offset, fit.temp_bytes - fit.live_bytes
      )
      if fit.temp_bytes <= self._room:
        self._best = fit
      elif self._best is self._sketch:
        lower = lowered(fit, self._room)
        if live_limit > self._lowest:
          return max(lower, self._lowest)
        if lower > _LOWER * self._lowest:
          return lower
    elif len(self._tried) == 1:
      return None
    return self._next_limit()

  def _next_limit(self) -> int | None:
    """Returns a limit above the best plan's where a cheaper one may fit."""
    best = self._best
    above = sorted(t for t in self._tried if t.live_limit > best.live_limit)
    if not above:
      slack = self._room - best.temp_bytes
      return best.live_limit + slack if slack else None
    highest = (1 + _LUCK) * self._room - self._least_offset
    lower = best.live_limit
    for upper in above:
      # With fewer bytes than that the plan would be another one.
      width = upper.live_bytes - lower
      middle = lower + width // 2
      if (
        upper.extra_s < (1 - _HARDLY) * best.extra_s
        and width > _CLOSE * upper.live_limit
        and middle <= highest
      ):
        return middle
      lower = upper.live_limit
    return None


def _between(low: int, value: int, high: int) -> int:
  return max(low, min(value, high))
