"""Finds the smallest plan of a module on any of its orders."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from jaxmem.planning.aim import LAST_VIEWS, VIEWS
from jaxmem.planning.ordered_module import Fit, OrderedModule
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.fit


def find_smallest(
  bases: Sequence[OrderedModule], useful_bytes: int | None
) -> Fit:
  """Finds the smallest plan.

  Where many values are packed, views hardly differ, and XLA's order does not
  take less than the planned one. Where few large ones are, either may, and the
  plan with the fewest live bytes need not be the smallest: plans for less and
  less room are sketched.

  It is the same whatever was planned before, so that the bytes that an error
  names are a limit that can be kept.

  Args:
    bases: The planned order, and XLA's own if that is another.
    useful_bytes: Temporaries of which more are of no use: a plan that takes
      more need not be the smallest. None if any may be.
  """
  for base in bases:
    base.forget_searches()
  best = bases[0].smallest(VIEWS[0], useful_bytes)
  if best.base.num_steps > _TUNING.few_steps:
    return best
  for base in bases[1:]:
    best = min(best, base.smallest(VIEWS[0], best.temp_bytes), key=_size)
  if useful_bytes is not None and best.temp_bytes > useful_bytes:
    return best
  last = best.base.smallest(LAST_VIEWS[0], useful_bytes)
  best = min(best, last, key=_size)
  while best.temp_bytes and (smaller := _shrunk(best)):
    best = smaller
  return best


def _shrunk(fit: Fit) -> Fit | None:
  """Sketches a plan like another, for a little less room.

  In the view in which that was found, or else in one that counts fewer bytes:
  limits that cannot be kept may lead to plans there that are packed more
  tightly.
  """
  room = int(_TUNING.shrinking_share * fit.temp_bytes)
  for view in dict.fromkeys((fit.aim.view, LAST_VIEWS[0])):
    aim = dataclasses.replace(
      fit.aim,
      view=view,
      room_bytes=room,
      live_limit_bytes=int(_TUNING.first_live_share * room),
    )
    smaller = fit.base.sketch(aim, math.inf)
    if smaller is not None:
      return smaller
  return None


def _size(fit: Fit) -> tuple[int, float]:
  return fit.temp_bytes, fit.extra_s
