"""Searches for edits with which a module fits a room.

First there are sketches: plans that little time was spent on, on the planned
order and on XLA's own. Of these the best are refined.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence

from jaxmem import cost
from jaxmem.budget import Event
from jaxmem.options import Effort, Options
from jaxmem.planning.aim import LAST_VIEWS, VIEWS, Aim, View
from jaxmem.planning.decision import ModulePlan, PlannedModule
from jaxmem.planning.ordered_module import Fit, OrderedModule
from jaxmem.planning.promise import may_gain_by_less
from jaxmem.planning.refine import refine
from jaxmem.planning.reorder import in_given_order
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.fit


class EditSearch:
  """Searches for edits of one module, for any number of rooms.

  A room is the most bytes that temporaries may take.

  Args:
    planned: The module in its planned order.
    rates: Of the device.
    options: How hard to try, and whether values may go to the host.

  Attributes:
    first_at: When something first fitted, by room: as `time.perf_counter`.
  """

  def __init__(
    self, planned: OrderedModule, rates: cost.Rates, options: Options
  ):
    self._planned = planned
    self._rates = rates
    self._options = options
    self._sketched: dict[int, list[Fit]] = {}
    self._is_fast = options.effort == "fast"
    self._tries_given = False
    self.first_at: dict[int, float] = {}

  def bases(self) -> Iterator[OrderedModule]:
    """Yields the planned order at once, XLA's own when it is asked for."""
    yield self._planned
    self._tries_given = True
    if self._given is not None:
      yield self._given

  @functools.cached_property
  def _given(self) -> OrderedModule | None:
    """XLA's own order of the entry, if the planned one is another."""
    return self._ordered(in_given_order(self._planned.planned))

  @functools.cached_property
  def _unchanged(self) -> OrderedModule | None:
    """XLA's own order of all that is called, too, likewise."""
    planned = self._planned.planned
    return self._ordered(in_given_order(planned, keeps_callees=False))

  def _ordered(
    self, planned: PlannedModule[ModulePlan] | None
  ) -> OrderedModule | None:
    if planned is None:
      return None
    may_offload = self._options.offload
    return OrderedModule(
      planned, self._rates, may_offload, self._planned.seconds
    )

  def unedited(
    self, room: int, device: cost.Device, collective_s: float
  ) -> list[Fit]:
    """Returns the orders to run without edits, where the planned one fits.

    On a CPU what shares no memory runs side by side, which the cost model does
    not know, and orders for fewer bytes leave less of that: XLA's own order is
    kept, if it fits and to map what it takes more costs little. Not so where
    nothing is mapped: fewer bytes stay in caches then.

    Args:
      room: Most bytes of temporaries.
      device: The device planned for.
      collective_s: Of what is still to be hidden: XLA's own order may fit then.
    """
    if collective_s:
      return [base.unedited() for base in self.bases()]
    planned = self._planned
    own_bytes = planned.planned.decision.baseline_bytes
    fewer_bytes = planned.unedited().temp_bytes
    may_keep = own_bytes <= room and device.mapping_s(own_bytes) > 0.0
    if may_keep and not may_gain_by_less(
      planned, device, own_bytes, fewer_bytes
    ):
      planned = self._unchanged or planned
    return [planned.unedited()]

  def least_base(self) -> OrderedModule:
    """Returns the base whose edits may need the fewest bytes.

    With effort "fast", XLA's own order counts only where it was tried.
    """
    if self._is_fast and not self._tries_given:
      return self._planned
    return min(self.bases(), key=lambda base: base.bound.num_bytes)

  def sketch(self, room: int, useless_s: float, is_any: bool) -> Fit | None:
    """Returns the best sketch; None if there is none.

    Args:
      room: Most bytes of temporaries.
      useless_s: Edits that take no less are of no use. What was found for this
        room before serves all the same.
      is_any: Whether to search the views that are searched last.
    """
    if room not in self._sketched and useless_s > 0.0:
      found = self._all_sketches(room, useless_s, is_any)
      if found:
        self._sketched[room] = sorted(found, key=lambda f: f.extra_s)
    return self.sketched_before(room)

  def sketched_before(self, room: int) -> Fit | None:
    """Returns the best sketch for a room if one was found before."""
    found = self._sketched.get(room)
    return found[0] if found else None

  def refined(self, room: int) -> Fit:
    """Takes more time for the best of the sketches that were found.

    For others that are about as good, where steps are few: how few large values
    are packed is luck, which each sketch has anew. What is gathered for one
    serves the next on the same order.

    Args:
      room: See `sketch`.
    """
    return _refined(self._sketched[room], self._options.effort)

  def _all_sketches(
    self, room: int, useless_s: float, is_any: bool
  ) -> list[Fit]:
    """Sketches plans on every base, in further views if need be."""
    if not any(base.bound.num_bytes <= room for base in self.bases()):
      return []
    last_views = LAST_VIEWS if is_any else ()
    return (
      self._sketches(room, useless_s, VIEWS, with_link=False)
      or self._sketches(room, useless_s, last_views, with_link=False)
      or self._sketches(room, useless_s, VIEWS, with_link=True)
    )

  def _sketches(
    self, room: int, useless_s: float, views: Sequence[View], with_link: bool
  ) -> list[Fit]:
    """Returns what little time finds on each base."""
    found: list[Fit] = []
    for base in self.bases():
      is_hopeless = self._planned.is_far_off(room, with_link)
      if is_hopeless or (with_link and not base.has_link):
        continue
      if found and base is not self._planned:
        best = min(found, key=lambda f: f.extra_s)
        # What suits one order suits the other.
        views = [best.aim.view]
        if not _promises_more(base, best):
          continue
      for view in views:
        worse_s, start = useless_s, int(_TUNING.first_live_share * room)
        if found:
          best = min(found, key=lambda f: f.extra_s)
          worse_s = min(worse_s, _TUNING.dropped_sketch_ratio * best.extra_s)
          start = best.aim.live_limit_bytes
          if best.base is base and not best.edits.offloads:
            start = base.moved_limit(best, view)
        aim = Aim(
          view=view,
          room_bytes=room,
          live_limit_bytes=start,
          with_link=with_link,
        )
        sketch = base.sketch(aim, worse_s)
        if sketch is not None:
          self.first_at.setdefault(room, time.perf_counter())
          found.append(sketch)
          if self._is_fast:
            return found
    return found


def _promises_more(base: OrderedModule, best: Fit) -> bool:
  """Whether a base's plan for as many live bytes is cheaper than a sketch."""
  if best.extra_s < _TUNING.negligible_step_share * base.step_s:
    return False
  estimate_s = base.estimate(best.aim.view, best.aim.live_limit_bytes)
  return estimate_s < _TUNING.other_order_ratio * best.extra_s


def _refined(ranked: Sequence[Fit], effort: Effort) -> Fit:
  """Returns the cheapest of what sketches are refined to.

  Args:
    ranked: The sketches, the best first.
    effort: Of the search.
  """
  events: dict[OrderedModule, set[Event]] = {}
  for sketch in ranked:
    events.setdefault(sketch.base, set()).update(sketch.events)
  is_short = ranked[0].base.num_steps <= _TUNING.few_steps
  ranked = ranked[: _TUNING.most_refined_sketches if is_short else 1]
  found: list[Fit] = []
  for sketch in ranked:
    if sketch.extra_s > _TUNING.refined_sketch_ratio * ranked[0].extra_s:
      break
    known = events[sketch.base]
    is_first = all(f.base is not sketch.base for f in found)
    refined = refine(sketch, effort, sorted(known), gathers=is_first)
    known.update(refined.events)
    found.append(refined.fit)
  return min(found, key=lambda f: f.extra_s)
