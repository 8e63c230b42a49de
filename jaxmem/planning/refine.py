"""Searches for a cheaper plan about the live bytes of one that fits.

Plans for a little more live bytes cost less, and may fit: XLA packs some more
tightly than others. Every limit of live bytes that is tried tells between which
limits a cheaper plan may still lie.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxmem.budget import Event
from jaxmem.options import Effort
from jaxmem.planning.candidate_tuning import TUNING
from jaxmem.planning.ordered_module import Fit

_TUNING = TUNING.refine


class Refined(NamedTuple):
  """What came of a search.

  Attributes:
    fit: The cheapest fit that was found; the sketch if there is none cheaper.
    events: All that could have run again.
  """

  fit: Fit
  events: tuple[Event, ...]


def refine(
  sketch: Fit,
  effort: Effort,
  also: Sequence[Event] = (),
  *,
  gathers: bool = True,
) -> Refined:
  """Searches for a cheaper plan about the live bytes of a sketch.

  Args:
    sketch: A fit; the plan has to fit the same room.
    effort: Of each search. Values may go to the host even where the sketch
      leaves all of them on the device.
    also: What may run again besides what is gathered.
    gathers: Whether to gather as much as the length of the order allows; not
      needed where a search on the same order has.
  """
  search = _Search(sketch, effort, also, gathers)
  return Refined(search.run(), search.events)


class _Tried(NamedTuple):
  """A limit of live bytes, and the cheapest plan for it."""

  live_limit: int
  live_bytes: int
  extra_s: float


class _Search:
  def __init__(
    self, sketch: Fit, effort: Effort, also: Sequence[Event], gathers: bool
  ):
    self._sketch = self._best = sketch
    self._aim = dataclasses.replace(sketch.aim, with_link=True)
    self._chooser = sketch.base.chooser(sketch.aim.view, effort, with_link=True)
    # From this limit on the edits of the sketch come into question.
    self._lowest = max(sketch.aim.live_limit_bytes, sketch.live_bytes)
    is_short = sketch.base.num_steps <= _TUNING.few_steps
    scale = _TUNING.greedy_scale if gathers and is_short else 1
    self._pool = self._chooser.gather(self._lowest, scale, also)
    self._least_offset = sketch.temp_bytes - sketch.live_bytes
    self._tried: list[_Tried] = []

  @property
  def events(self) -> tuple[Event, ...]:
    """All that may run again."""
    return self._pool.events

  def run(self) -> Fit:
    """Tries one limit after the other."""
    slack = self._aim.room_bytes - self._sketch.temp_bytes
    limit: int | None = self._lowest + slack
    for _ in range(_TUNING.num_limits):
      limit = self._try(limit)
      if limit in (None, *(t.live_limit for t in self._tried)):
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
      aim = dataclasses.replace(self._aim, live_limit_bytes=live_limit)
      fit = self._sketch.base.fit(aim, choice)
      self._least_offset = min(
        self._least_offset, fit.temp_bytes - fit.live_bytes
      )
      if fit.temp_bytes <= aim.room_bytes:
        self._best = fit
      elif self._best is self._sketch:
        lower = fit.lower_limit()
        if live_limit > self._lowest:
          return max(lower, self._lowest)
        if lower > _TUNING.lowest * self._lowest:
          return lower
    elif len(self._tried) == 1:
      return None
    return self._next_limit()

  def _next_limit(self) -> int | None:
    """Returns a limit above the best plan's where a cheaper one may fit."""
    best = self._best
    lower, room_bytes = best.aim.live_limit_bytes, best.aim.room_bytes
    above = sorted(t for t in self._tried if t.live_limit > lower)
    if not above:
      slack = room_bytes - best.temp_bytes
      is_much = slack > _TUNING.least_distance * room_bytes
      return lower + slack if is_much else None
    least_s = max(
      _TUNING.least_saving * best.extra_s,
      _TUNING.least_step_share * best.base.step_s,
    )
    highest = (1 + _TUNING.packing_luck) * room_bytes - self._least_offset
    for upper in above:
      # The plan above fits all limits down to the bytes that are live with it.
      width = upper.live_bytes - lower
      middle = lower + width // 2
      if (
        best.extra_s - upper.extra_s > least_s
        and width > _TUNING.least_distance * upper.live_limit
        and middle <= highest
      ):
        return middle
      lower = upper.live_limit
    return None
