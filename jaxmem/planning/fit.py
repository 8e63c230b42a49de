"""Fits a scheduled module into a byte limit: order, copies, recompute, offload.

The order is planned first. Where that is not enough, values are recomputed or
moved to the host, on the planned order or on XLA's own, whichever costs less
time. The choice knows live bytes; what XLA's buffer assignment makes of them
is predicted for every edited module, and decides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence

from jaxmem_hlo.module import Module

from jaxmem import cost
from jaxmem.options import Options
from jaxmem.planning.aim import ANYTHING, VIEWS, Wanted
from jaxmem.planning.collector import paused_collector
from jaxmem.planning.decision import EditBound, LimitPlan, PlannedModule
from jaxmem.planning.edit_search import EditSearch
from jaxmem.planning.infeasible import raise_infeasible
from jaxmem.planning.inner_orders import without_needless
from jaxmem.planning.ordered_module import Fit, OrderedModule
from jaxmem.planning.overlap import hide_transfers
from jaxmem.planning.own_order import with_own_order
from jaxmem.planning.promise import Promise, may_gain_by_less, promise
from jaxmem.planning.reorder import plan_module, verify_module
from jaxmem.planning.smallest import find_smallest
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.fit


class LimitPlanner:
  """Plans one module for any number of limits.

  Args:
    module: A scheduled module.
    device: The device planned for.
    options: How hard to try.

  Attributes:
    own: What XLA's own schedule takes.
  """

  def __init__(self, module: Module, device: cost.Device, options: Options):
    self._spent_s = 0.0
    # When something fitted, by room.
    self._first_s: dict[int, float] = {}
    # The smallest plans, by what is of use.
    self._smallest_found: dict[int | None, Fit] = {}
    self._name = module.name.removeprefix("jit_")
    self._options = options
    self._device = device
    self._timer = cost.ScheduleTimer(module, device.rates)
    self.own = self._timer.time(module)
    with self._timed():
      planned = plan_module(
        module,
        device,
        options,
        is_final=False,
        proves=options.effort == "prove",
      )
      timer = cost.ScheduleTimer(planned.module, device.rates, self._timer)
      self._planned = OrderedModule(
        planned, device.rates, options.offload, timer.seconds
      )
      self._search = EditSearch(self._planned, device.rates, options)

  @property
  def fixed_bytes(self) -> int:
    """Bytes of arguments and outputs."""
    return self._planned.fixed_bytes

  @property
  def moved_bytes(self) -> float:
    """Bytes that edits may move to the host and back within a step."""
    return self._planned.moved_bytes(self.step_s)

  @property
  def hides(self) -> bool:
    """Whether kernels hide collectives or copies, which only plans know."""
    return bool(self.own.collective_s or self.own.waiting_s)

  @property
  def total_bytes(self) -> int:
    """Bytes of the whole program without edits."""
    base = self._planned
    return base.fixed_bytes + base.unedited().temp_bytes

  @property
  def xla_bytes(self) -> int:
    """Bytes of the whole program by XLA's own plan, as predicted."""
    base = self._planned
    return base.fixed_bytes + base.planned.decision.baseline_bytes

  @property
  def least_bytes(self) -> int:
    """Bytes of the whole program that no edits go below."""
    return self._planned.fixed_bytes + self._least_temp_bytes

  @property
  def _least_temp_bytes(self) -> int:
    return self._search.least_base().bound.num_bytes

  def _least_temp_bytes_of(self, best: Fit) -> int:
    """Returns temporaries that no edits go below of orders that were tried.

    Where the planned order needs none, edits of XLA's own are not tried, unless
    that hides more.
    """
    is_first = best.base is self._planned and not self.own.collective_s
    if is_first and not best.edits:
      return best.base.bound.num_bytes
    return self._least_temp_bytes

  @property
  def step_s(self) -> float:
    """Estimated seconds of a step without edits.

    By XLA's own schedule if it exchanges anything, so that what is exchanged
    counts, but for what can be hidden.
    """
    return self.own.seconds if self.own.collective_s else self._planned.step_s

  def promise(self, limit_bytes: int) -> Promise:
    """Says in little time what it costs to fit a limit.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.
    """
    room = limit_bytes - self.fixed_bytes
    with self._timed():
      return promise(self._planned, self._device, room)

  def may_gain_by_less(self) -> bool:
    """Whether what needs fewer temporaries may be faster without edits."""
    temp_bytes = self.total_bytes - self.fixed_bytes
    return may_gain_by_less(self._planned, self._device, temp_bytes)

  def kept_room(self, limit_bytes: int, scope: str) -> int:
    """Returns the bytes that are left for what need not be made again.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.
      scope: See `kept_room`.
    """
    spare_bytes = limit_bytes - self.total_bytes
    return self._planned.kept_room(scope, spare_bytes)

  def fit(
    self, limit_bytes: int, useful_bytes: int | None = None
  ) -> PlannedModule[LimitPlan]:
    """Finds the cheapest plan whose whole program fits a limit.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.
      useful_bytes: See `smallest_bytes`; not below the limit.

    Raises:
      InfeasibleError: If no plan was found that fits.
    """
    found = self.find(limit_bytes)
    if found is not None:
      return found
    room = limit_bytes - self._planned.fixed_bytes
    with self._timed():
      best = self._smallest(useful_bytes)
      if best.temp_bytes > room:
        raise_infeasible(self._name, best, self._search.least_base(), room)
    return self._plan(best, room, limit_bytes)

  def find(
    self, limit_bytes: int, wanted: Wanted = ANYTHING
  ) -> PlannedModule[LimitPlan] | None:
    """Returns what `fit` does, but None where only the smallest plan might fit.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.
      wanted: None as well where no such plan is found.
    """
    found: list[PlannedModule[LimitPlan]] = []
    rooms = self._rooms(limit_bytes)
    for room in rooms:
      # What was found for another room already is no worse than this.
      others_s = [self._known_s(other) for other in rooms if other != room]
      worse_s = min([wanted.worse_s, *others_s])
      better = dataclasses.replace(wanted, worse_s=worse_s)
      planned = self._find(room, limit_bytes, better)
      if planned is not None:
        found.append(planned)
        if not self._fits_unedited(limit_bytes):
          break
    return min(found, key=lambda f: f.decision.schedule_s, default=None)

  def _fits_unedited(self, limit_bytes: int) -> bool:
    return self.total_bytes <= limit_bytes

  def sketched_s(
    self, limit_bytes: int, wanted: Wanted = ANYTHING
  ) -> float | None:
    """Returns what the schedule of a plan takes at most, in little time.

    Where kernels hide something, only `find` knows; see `hides`.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.
      wanted: See `find`.

    Returns:
      Seconds by the best sketch, which `find` refines; None if there is none.
    """
    seconds: list[float] = []
    for room in self._rooms(limit_bytes):
      with self._timed():
        if self._planned.unedited().temp_bytes <= room:
          sketch = self._search.unedited(room, self._device, 0.0)[0]
        else:
          sketch = self._sketch(room, wanted)
      if sketch is not None:
        seconds.append(self._sketch_s(sketch))
        if not self._fits_unedited(limit_bytes):
          break
    return min(seconds, default=None)

  def _known_s(self, room: int) -> float:
    """Returns what a schedule takes at most that was found for a room."""
    unedited = self._planned.unedited()
    if unedited.temp_bytes <= room:
      return self._sketch_s(unedited)
    sketch = self._search.sketched_before(room)
    return self._sketch_s(sketch) if sketch else math.inf

  def _sketch_s(self, sketch: Fit) -> float:
    mapping_s = self._device.mapping_s(sketch.temp_bytes)
    return self.step_s + sketch.extra_s + mapping_s

  def _rooms(self, limit_bytes: int) -> Sequence[int]:
    """Returns the rooms that plans are made for, until one fits.

    Where no edits are needed, all of them: what was promised of less need not
    be kept.
    """
    rooms = [limit_bytes - self.fixed_bytes]
    if self._device.mapping_s(rooms[0]):
      rooms.insert(0, self.promise(limit_bytes).room_bytes)
    return (*dict.fromkeys(rooms),)

  def _find(
    self, room: int, limit_bytes: int, wanted: Wanted
  ) -> PlannedModule[LimitPlan] | None:
    """Finds what fits a room: at most what a limit leaves for temporaries."""
    best, best_s, waiting_s = None, math.inf, math.inf
    shares = (1.0,)
    if self.own.collective_s:
      # What is hidden, sketches do not know.
      shares = _TUNING.hiding_room_shares
      wanted = dataclasses.replace(wanted, worse_s=math.inf)
    for share in shares:
      with self._timed():
        fits = self._fits(room, share, waiting_s, wanted)
      for fit in fits:
        found = self._plan(fit, room, limit_bytes)
        seconds = found.decision.schedule_s
        if found.planned_bytes <= room and seconds < best_s:
          best, best_s = found, seconds
          if len(shares) > 1:
            waiting_s = seconds - found.decision.extra_s - self._hidden_s
    return best

  @functools.cached_property
  def _hidden_s(self) -> float:
    """Seconds of a step without edits that has room to hide transfers in."""
    module = self._planned.planned.module
    hidden = hide_transfers(module, self._device, self.xla_bytes)
    return hidden.seconds if hidden else self._planned.step_s

  def _fits(
    self, room: int, share: float, waiting_s: float, wanted: Wanted
  ) -> list[Fit]:
    """Returns what fits a share of the room: the rest is to hide transfers in.

    XLA's own order need not fit: with transfers hidden, it may.

    Args:
      room: Most bytes of temporaries.
      share: The share.
      waiting_s: Seconds that the best plan so far might wait less.
      wanted: See `find`.
    """
    lower = int(share * room)
    if self._planned.unedited().temp_bytes <= lower:
      # With all of the room, these were tried.
      if share < 1.0:
        return []
      return self._search.unedited(room, self._device, self.own.collective_s)
    if share < 1.0:
      sizes = (room, lower)
      some_s, more_s = (self._planned.estimate(VIEWS[0], s) for s in sizes)
      if not more_s - some_s < waiting_s:
        return []
    found = self._sketch(lower, wanted)
    if found is not None and self._options.effort != "fast":
      found = self._search.refined(lower)
    return [] if found is None else [found]

  def _sketch(self, room: int, wanted: Wanted) -> Fit | None:
    """Returns the best sketch for a room, None if it is not wanted."""
    edits_s = wanted.worse_s - self.step_s - self._device.mapping_s(room)
    useless_s = edits_s / _TUNING.sketched_share
    found = self._search.sketch(room, useless_s, wanted.is_any)
    if found is None or found.extra_s >= useless_s:
      return None
    self._first_s.setdefault(room, self._search.first_at[room] - self._start_s)
    return found

  @contextlib.contextmanager
  def _timed(self) -> Iterator[None]:
    self._start_s = time.perf_counter() - self._spent_s
    try:
      with paused_collector():
        yield
    finally:
      self._spent_s = time.perf_counter() - self._start_s

  def _plan(
    self, best: Fit, room: int, limit_bytes: int
  ) -> PlannedModule[LimitPlan]:
    with self._timed():
      base = best.base
      self._first_s.setdefault(room, time.perf_counter() - self._start_s)
      module = base.edited(best.edits)
      order, planned_bytes = None, best.temp_bytes
      hidden = hide_transfers(module, self._device, room)
      if hidden is not None:
        order, planned_bytes = hidden.order, hidden.temp_bytes
        module = hidden.module
      schedule_s = self._time(module).seconds
      schedule_s += self._device.mapping_s(planned_bytes)
      least_schedule_s = None
      if self._options.effort == "prove" and not self.own.collective_s:
        least_schedule_s = self.least_schedule_s(limit_bytes, schedule_s)
    decision = LimitPlan(
      base=base.planned.decision,
      edits=best.edits,
      order=order,
      limit_bytes=limit_bytes,
      fixed_bytes=base.fixed_bytes,
      planned_bytes=planned_bytes,
      bound=EditBound(
        temp_bytes=min(planned_bytes, self._least_temp_bytes_of(best)),
        schedule_s=least_schedule_s,
      ),
      step_s=self.step_s if self.own.collective_s else base.step_s,
      extra_s=best.extra_s,
      schedule_s=schedule_s,
      first_s=self._first_s[room],
      seconds=self._spent_s,
    )
    given = base.planned.given
    with self._timed():
      planned = without_needless(
        PlannedModule(given=given, module=module, decision=decision)
      )
      if self._options.verify and (best.edits or hidden):
        verify_module(planned.model)
    return self._with_seconds(planned)

  def _with_seconds(
    self, planned: PlannedModule[LimitPlan]
  ) -> PlannedModule[LimitPlan]:
    decision = dataclasses.replace(planned.decision, seconds=self._spent_s)
    return dataclasses.replace(planned, decision=decision)

  def finished(
    self, planned: PlannedModule[LimitPlan]
  ) -> PlannedModule[LimitPlan]:
    """Returns a plan in which XLA's order is kept where another saves nothing.

    This takes about as long as a sketch, and changes no estimate: only what is
    going to run is worth it.

    Args:
      planned: What `find` or `fit` returned.

    Raises:
      FaultyAssignmentError: If `options.verify` is set and a read would see
        something else than it should.
    """
    with self._timed():
      found = with_own_order(planned)
      if self._options.verify and found is not planned:
        verify_module(found.model)
    return self._with_seconds(found)

  def least_schedule_s(self, limit_bytes: int, most_s: float) -> float:
    """Returns seconds that no schedule that edits make fit a limit is below.

    On the orders that were tried, mapping its temporaries included.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.
      most_s: Schedules that take longer are not looked at; the most that is
        returned.
    """
    room = limit_bytes - self.fixed_bytes
    mapping_s = self._device.mapping_s(self._least_temp_bytes)

    def least_s(base: OrderedModule) -> float:
      left_s = max(0.0, most_s - mapping_s - base.step_s)
      return base.step_s + base.least_extra_s(room, left_s) + mapping_s

    return min(most_s, *map(least_s, self._search.bases()))

  def time(self, planned: PlannedModule[LimitPlan]) -> cost.StepTime:
    """Estimates what the schedule of a plan takes."""
    return self._time(planned.module)

  def _time(self, module: Module) -> cost.StepTime:
    """Estimates what a module takes that was made from the one planned."""
    return cost.step_time(module, self._device.rates, self._timer)

  def smallest_bytes(self, useful_bytes: int | None = None) -> int:
    """Returns the bytes of the smallest whole program that can be found.

    Args:
      useful_bytes: Larger programs are of no use: what is found above that need
        not be the smallest.
    """
    with self._timed():
      best = self._smallest(useful_bytes)
    return best.base.fixed_bytes + best.temp_bytes

  def _smallest(self, useful_bytes: int | None) -> Fit:
    """Returns the smallest plan that is found; see `smallest_bytes`."""
    if useful_bytes not in self._smallest_found:
      room = None
      if useful_bytes is not None:
        room = max(0, useful_bytes - self._planned.fixed_bytes)
      found = find_smallest([*self._search.bases()], room)
      self._smallest_found[useful_bytes] = found
    return self._smallest_found[useful_bytes]
