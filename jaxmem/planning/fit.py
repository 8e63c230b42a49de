"""Fits a scheduled module into a byte limit: order, copies, recompute, offload.

The order is planned first. Where that is not enough, values are recomputed or
moved to the host, on the planned order or on XLA's own, whichever costs less
time. The choice knows live bytes; what XLA's buffer assignment makes of them
is predicted for every edited module, and decides.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import cost, units
from jaxmem.budget import Event
from jaxmem.errors import InfeasibleError, name_buffers
from jaxmem.options import Options
from jaxmem.planning.aim import LAST_VIEWS, VIEWS, Aim, View
from jaxmem.planning.collector import paused_collector
from jaxmem.planning.decision import LimitPlan, PlannedModule
from jaxmem.planning.ordered_module import Fit, OrderedModule
from jaxmem.planning.overlap import hide_transfers
from jaxmem.planning.promise import Promise, promise
from jaxmem.planning.refine import refine
from jaxmem.planning.reorder import (
  in_given_order,
  plan_module,
  verify_module,
)
from jaxmem.planning.smallest import find_smallest
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.fit
# How many of the buffers that are needed at once an error names.
_NUM_NAMED = 8


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
    timer = cost.ScheduleTimer(module, device.rates)
    self.own = timer.time(module)
    with self._timed():
      planned = plan_module(
        module,
        device,
        options,
        hides_transfers=False,
        proves=options.effort == "prove",
      )
      seconds = None if planned.decision.removed_copies else timer.seconds
      self._planned = OrderedModule(
        planned, device.rates, options.offload, seconds
      )

  @functools.cached_property
  def _given(self) -> OrderedModule | None:
    """XLA's own order, if the planned one is another."""
    planned = in_given_order(self._planned.planned)
    if planned is None:
      return None
    return OrderedModule(
      planned,
      self._device.rates,
      self._options.offload,
      self._planned.seconds,
    )

  def _bases(self) -> Iterator[OrderedModule]:
    """Yields the planned order at once, XLA's own when it is asked for."""
    yield self._planned
    if self._given is not None:
      yield self._given

  @property
  def fixed_bytes(self) -> int:
    """Bytes of arguments and outputs."""
    return self._planned.fixed_bytes

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
    return self._planned.fixed_bytes + self._least_base().bound.num_bytes

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
        _raise_infeasible(self._name, best, self._least_base(), room)
    return self._plan(best, room, limit_bytes)

  def find(
    self, limit_bytes: int, worse_s: float = math.inf
  ) -> PlannedModule[LimitPlan] | None:
    """Returns what `fit` does, but None where only the smallest plan might fit.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.
      worse_s: Seconds of a step that make a plan useless: None as well where
        sketches do not promise less.
    """
    aimed = room = limit_bytes - self.fixed_bytes
    if self._device.mapping_s(room):
      aimed = self.promise(limit_bytes).room_bytes
    found = self._find(aimed, limit_bytes, worse_s)
    if found is None and aimed < room:
      found = self._find(room, limit_bytes, worse_s)
    return found

  def _find(
    self, room: int, limit_bytes: int, worse_s: float
  ) -> PlannedModule[LimitPlan] | None:
    """Finds what fits a room: at most what a limit leaves for temporaries."""
    best, best_s, waiting_s = None, math.inf, math.inf
    shares = (1.0,)
    if self.own.collective_s:
      # What is hidden, sketches do not know.
      shares, worse_s = _TUNING.hiding_room_shares, math.inf
    for share in shares:
      with self._timed():
        fits = self._fits(room, share, waiting_s, worse_s)
      for fit in fits:
        found = self._plan(fit, room, limit_bytes)
        seconds = found.decision.schedule_s
        if found.planned_bytes <= room and seconds < best_s:
          best, best_s = found, seconds
          waiting_s = seconds - found.decision.extra_s - self._hidden_s
    return best

  @functools.cached_property
  def _hidden_s(self) -> float:
    """Seconds of a step without edits that has room to hide transfers in."""
    module = self._planned.planned.module
    hidden = hide_transfers(module, self._device, self.xla_bytes)
    return hidden.seconds if hidden else self._planned.step_s

  def _fits(
    self, room: int, share: float, waiting_s: float, worse_s: float
  ) -> list[Fit]:
    """Returns what fits a share of the room: the rest is to hide transfers in.

    XLA's own order need not fit: with transfers hidden, it may.

    Args:
      room: Most bytes of temporaries.
      share: The share.
      waiting_s: Seconds that the best plan so far might wait less.
      worse_s: See `find`.
    """
    lower = int(share * room)
    bases = self._bases() if self.own.collective_s else (self._planned,)
    if self._planned.unedited().temp_bytes <= lower:
      # With all of the room, these were tried.
      return [base.unedited() for base in bases] if share == 1.0 else []
    if share < 1.0:
      sizes = (room, lower)
      some_s, more_s = (self._planned.estimate(VIEWS[0], s) for s in sizes)
      if not more_s - some_s < waiting_s:
        return []
    found = self._cheapest(lower, worse_s)
    return [] if found is None else [found]

  @contextlib.contextmanager
  def _timed(self) -> Iterator[None]:
    self._start_s = time.perf_counter() - self._spent_s
    try:
      with paused_collector():
        yield
    finally:
      self._spent_s = self._elapsed_s()

  def _elapsed_s(self) -> float:
    return time.perf_counter() - self._start_s

  def _plan(
    self, best: Fit, room: int, limit_bytes: int
  ) -> PlannedModule[LimitPlan]:
    with self._timed():
      base = best.base
      self._first_s.setdefault(room, self._elapsed_s())
      module = base.edited(best.edits)
      order, planned_bytes = None, best.temp_bytes
      hidden = hide_transfers(module, self._device, room)
      if hidden is not None:
        order, planned_bytes = hidden.order, hidden.temp_bytes
        module = hidden.module
      if self._options.verify and (best.edits or hidden):
        verify_module(AssignmentModel(module, self._device.platform))
      bound = self._least_base().bound.num_bytes
      rates = self._device.rates
      schedule_s = cost.step_time(module, rates).seconds
      schedule_s += self._device.mapping_s(planned_bytes)
    decision = LimitPlan(
      base=base.planned.decision,
      edits=best.edits,
      order=order,
      limit_bytes=limit_bytes,
      fixed_bytes=base.fixed_bytes,
      planned_bytes=planned_bytes,
      lower_bound_bytes=min(planned_bytes, bound),
      step_s=self.step_s if self.own.collective_s else base.step_s,
      extra_s=best.extra_s,
      schedule_s=schedule_s,
      first_s=self._first_s[room],
      seconds=self._spent_s,
    )
    return PlannedModule(
      given=base.planned.given, module=module, decision=decision
    )

  def time(self, planned: PlannedModule[LimitPlan]) -> cost.StepTime:
    """Estimates what the schedule of a plan takes."""
    return cost.step_time(planned.module, self._device.rates)

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
      found = find_smallest([*self._bases()], room)
      self._smallest_found[useful_bytes] = found
    return self._smallest_found[useful_bytes]

  def _cheapest(self, room: int, worse_s: float) -> Fit | None:
    """Finds a plan; None if sketches do not promise less than some seconds."""
    useless_s = (worse_s - self.step_s) / _TUNING.sketched_share
    sketches = self._all_sketches(room, useless_s)
    if min((f.extra_s for f in sketches), default=math.inf) >= useless_s:
      return None
    if self._options.effort == "fast":
      return min(sketches, key=lambda f: f.extra_s)
    return self._refined(sketches)

  def _all_sketches(self, room: int, useless_s: float) -> list[Fit]:
    """Sketches plans on every base, in further views if need be.

    Args:
      room: Most bytes of temporaries.
      useless_s: Edits that take no less are of no use.
    """
    if not self._may_fit(room):
      return []
    return (
      self._sketches(room, useless_s, VIEWS, with_link=False)
      or self._sketches(room, useless_s, LAST_VIEWS, with_link=False)
      or self._sketches(room, useless_s, VIEWS, with_link=True)
    )

  def _refined(self, sketches: Sequence[Fit]) -> Fit:
    """Takes more time for the best of some sketches.

    For others that are about as good, where steps are few: how few large values
    are packed is luck, which each sketch has anew. What is gathered for one
    serves the next on the same order.
    """
    ranked = sorted(sketches, key=lambda f: f.extra_s)
    if ranked[0].base.num_steps > _TUNING.few_steps:
      ranked = ranked[:1]
    events: dict[OrderedModule, set[Event]] = {}
    for sketch in sketches:
      events.setdefault(sketch.base, set()).update(sketch.events)
    found: list[Fit] = []
    for sketch in ranked:
      if sketch.extra_s > _TUNING.refined_sketch_ratio * ranked[0].extra_s:
        break
      known = events[sketch.base]
      is_first = all(f.base is not sketch.base for f in found)
      refined = refine(
        sketch, self._options.effort, sorted(known), gathers=is_first
      )
      known.update(refined.events)
      found.append(refined.fit)
    return min(found, key=lambda f: f.extra_s)

  def _sketches(
    self, room: int, useless_s: float, views: Sequence[View], with_link: bool
  ) -> list[Fit]:
    """Returns what little time finds on each base."""
    found: list[Fit] = []
    for base in self._bases():
      is_hopeless = not with_link and self._planned.is_far_off(room)
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
          self._first_s.setdefault(room, self._elapsed_s())
          found.append(sketch)
    return found

  def _may_fit(self, room: int) -> bool:
    """Whether the bounds of bytes allow so few temporaries."""
    return any(base.bound.num_bytes <= room for base in self._bases())

  def _least_base(self) -> OrderedModule:
    """Returns the base whose edits may need the fewest bytes."""
    return min(self._bases(), key=lambda base: base.bound.num_bytes)


def smallest_program_bytes(planners: Iterable[LimitPlanner]) -> int:
  """Returns the bytes of the smallest whole program of several modules."""
  smallest: int | None = None
  for planner in planners:
    found = planner.smallest_bytes(smallest)
    smallest = found if smallest is None else min(smallest, found)
  assert smallest is not None
  return smallest


def _promises_more(base: OrderedModule, best: Fit) -> bool:
  """Whether a base's plan for as many live bytes is cheaper than a sketch."""
  if best.extra_s < _TUNING.negligible_step_share * base.step_s:
    return False
  estimate_s = base.estimate(best.aim.view, best.aim.live_limit_bytes)
  return estimate_s < _TUNING.other_order_ratio * best.extra_s


def _raise_infeasible(
  name: str, best: Fit, least: OrderedModule, room: int
) -> NoReturn:
  base, bound = best.base, least.bound
  smallest = base.fixed_bytes + best.temp_bytes
  lowest = base.fixed_bytes + min(bound.num_bytes, best.temp_bytes)
  fixed = units.format_bytes(base.fixed_bytes)
  buffers = tuple(least.needed(bound.values[:_NUM_NAMED])) if room > 0 else ()
  why = (
    f"of which arguments and outputs are {fixed}, and no edits of these orders"
    f" take less than {units.format_bytes(lowest)}. Needed at once, whatever is"
    f" chosen: {name_buffers(buffers)}. Donate arguments, shrink the batch, or"
    " compute the largest in parts."
  )
  if room <= 0:
    why = (
      f"and its arguments and outputs alone take {fixed}, which no plan"
      " changes. Donate arguments, or make them smaller."
    )
  raise InfeasibleError(
    f"No plan of {name} fits memory_limit"
    f" {units.format_bytes(base.fixed_bytes + room)}: the smallest found takes"
    f" {units.format_bytes(smallest)} ({smallest} bytes), {why}",
    smallest_bytes=smallest,
    lower_bound_bytes=lowest,
    buffers=buffers,
  )
