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
from typing import NoReturn

from jaxmem_hlo import compiler_hook
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import cost, units
from jaxmem.errors import InfeasibleError, name_buffers
from jaxmem.graph import from_hlo
from jaxmem.options import Options
from jaxmem.planning.aim import LAST_VIEWS, VIEWS, Aim, View
from jaxmem.planning.decision import ModulePlan
from jaxmem.planning.ordered_module import Fit, OrderedModule
from jaxmem.planning.overlap import hide_copies
from jaxmem.planning.refine import refine
from jaxmem.planning.reorder import paused_collector, plan_module, verify_module
from jaxmem.rewrite import Edits, apply_edits

# Of the room: the first limit of live bytes. XLA packs most orders so tightly;
# whether a higher limit does is seen when a sketch is refined.
_FIRST = 0.99
# Likewise for an estimate, which had better be too low: temporaries that move
# into the memory of arguments may make up for it.
_ESTIMATED = 1.04
# A sketch that costs so much more than the cheapest is not followed any longer.
_NEARLY = 1.1
# A sketch on another order has to cost this part of the cheapest, where that
# costs more than this part of the step.
_CHEAPER = 0.99
_LITTLE = 0.001
# Shares of the room that are tried, too, in steps of so few instructions, if a
# plan costs so many times what a bound allows.
_LOWER = (0.97, 0.94)
_FEW_STEPS = 400
_UNLUCKY = 1.25
# A sketch for less room is followed if it costs less than this part more.
_PROMISING = 1.15
# The share of the smallest plan's bytes that the next sketch is asked for.
_SMALLER = 0.98
_NUM_NAMED = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitPlan:
  """What was decided for a module under a byte limit.

  Attributes:
    base: The order and the copies that the edits are made on.
    edits: What runs again and what moves to the host; ids of the module that
      `base` makes.
    order: Ids of the edited entry in execution order, where copies to and from
      the host were moved behind kernels; None where they were not.
    limit_bytes: Most bytes of the whole program.
    fixed_bytes: Bytes of arguments and outputs.
    planned_bytes: Predicted temporaries.
    lower_bound_bytes: No plan with edits of this kind, on any order that was
      tried, needs fewer temporaries.
    step_s: Estimated seconds of the step without edits.
    extra_s: Estimated seconds that the edits add.
    schedule_s: Estimated seconds of all that the planned schedule runs. It is
      less than `step_s` and `extra_s` together where originals are not needed
      any more, or copies were removed.
    first_s: Wall time until something fitted, planning the order and other
      limits included.
    seconds: Wall time of planning the module, likewise.
  """

  base: ModulePlan
  edits: Edits
  order: tuple[int, ...] | None
  limit_bytes: int
  fixed_bytes: int
  planned_bytes: int
  lower_bound_bytes: int
  step_s: float
  extra_s: float
  schedule_s: float
  first_s: float
  seconds: float

  @property
  def is_changed(self) -> bool:
    """Whether the plan differs from XLA's."""
    return self.base.is_changed or bool(self.edits) or self.order is not None

  def apply(self, module: Module) -> Module:
    """Returns the module that was planned, as planned."""
    changed = self.base.apply(module)
    if self.edits:
      changed = apply_edits(changed, self.edits, self.base.platform)
    if self.order is not None:
      changed = changed.with_schedules({changed.entry.id: self.order})
    return changed


class LimitPlanner:
  """Plans one module for any number of limits.

  Args:
    module: A scheduled module.
    platform: "cpu" or "cuda".
    options: How hard to try.
    rates: Of the device that estimates are made for.
  """

  def __init__(
    self, module: Module, platform: str, options: Options, rates: cost.Rates
  ):
    self._spent_s = 0.0
    # When something fitted, by room.
    self._first_s: dict[int, float] = {}
    self._name = compiler_hook.unmarked(module.name).removeprefix("jit_")
    self._options = options
    self._module = module
    self._rates = rates
    with self._timed():
      decided = plan_module(module, platform, options)
      self._planned = OrderedModule(module, decided, rates, options.offload)

  @functools.cached_property
  def _given(self) -> OrderedModule | None:
    """XLA's own order, if the planned one is another."""
    decided = _as_given(self._module, self._planned.decided)
    if decided is None:
      return None
    return OrderedModule(
      self._module, decided, self._rates, self._options.offload
    )

  def _bases(self) -> Iterator[OrderedModule]:
    """Yields the planned order at once, XLA's own when it is asked for."""
    yield self._planned
    if self._given is not None:
      yield self._given

  @property
  def total_bytes(self) -> int:
    """Bytes of the whole program without edits."""
    base = self._planned
    return base.fixed_bytes + base.unedited().temp_bytes

  @property
  def step_s(self) -> float:
    """Estimated seconds of a step without edits."""
    return self._planned.step_s

  def estimate(self, limit_bytes: int) -> float:
    """Estimates in little time what it costs to fit a limit.

    The edits of a first sketch are priced as if temporaries took no more than
    what is live.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.

    Returns:
      Seconds that edits add; infinity if the sketch does not fit.
    """
    base = self._planned
    room = limit_bytes - base.fixed_bytes
    if base.unedited().temp_bytes <= room:
      return 0.0
    with self._timed():
      return base.estimate(VIEWS[0], int(_ESTIMATED * room))

  def fit(self, limit_bytes: int) -> LimitPlan:
    """Finds the cheapest plan whose whole program fits a limit.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.

    Raises:
      InfeasibleError: If no plan was found that fits.
    """
    found = self.find(limit_bytes)
    if found is not None:
      return found
    room = limit_bytes - self._planned.fixed_bytes
    with self._timed():
      best = self._smallest()
      if best.temp_bytes > room:
        _raise_infeasible(self._name, best, self._least_base(), room)
    return self._plan(best, limit_bytes)

  def find(self, limit_bytes: int) -> LimitPlan | None:
    """Returns what `fit` does, but None where only the smallest plan might fit.

    To look for that takes longest.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.
    """
    best: Fit | None = self._planned.unedited()
    room = limit_bytes - self._planned.fixed_bytes
    with self._timed():
      if best.temp_bytes > room:
        best = self._cheapest(room)
    return None if best is None else self._plan(best, limit_bytes)

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

  def _plan(self, best: Fit, limit_bytes: int) -> LimitPlan:
    with self._timed():
      base = best.base
      edited = base.edited(best.edits)
      order, planned_bytes = None, best.temp_bytes
      room = limit_bytes - base.fixed_bytes
      self._first_s.setdefault(room, self._elapsed_s())
      platform = base.decided.platform
      hidden = hide_copies(edited, platform, self._rates, room)
      if hidden is not None:
        order, planned_bytes = hidden.order, hidden.temp_bytes
        edited = edited.with_schedules({edited.entry.id: order})
      if self._options.verify and (best.edits or hidden):
        verify_module(edited, platform)
      bound = self._least_base().bound.num_bytes
      schedule_s = cost.schedule_seconds(edited, self._rates)
    return LimitPlan(
      base=base.decided,
      edits=best.edits,
      order=order,
      limit_bytes=limit_bytes,
      fixed_bytes=base.fixed_bytes,
      planned_bytes=planned_bytes,
      lower_bound_bytes=min(planned_bytes, bound),
      step_s=base.step_s,
      extra_s=best.extra_s,
      schedule_s=schedule_s,
      first_s=self._first_s[room],
      seconds=self._spent_s,
    )

  def smallest_bytes(self) -> int:
    """Returns the bytes of the smallest whole program that can be found."""
    with self._timed():
      best = self._smallest()
    return best.base.fixed_bytes + best.temp_bytes

  def _smallest(self) -> Fit:
    """Returns the smallest plan that is found.

    The one with the fewest live bytes need not be it where few large values
    are packed: there, plans for less and less room are sketched.
    """
    found = [b.smallest(view) for b in self._bases() for view in VIEWS]
    best = min(found, key=_size)
    best = min(best, *(best.base.smallest(v) for v in LAST_VIEWS), key=_size)
    while best.temp_bytes and best.base.num_steps <= _FEW_STEPS:
      sketches = self._all_sketches(int(_SMALLER * best.temp_bytes))
      if not sketches:
        break
      best = min(sketches, key=_size)
    return best

  def _cheapest(self, room: int) -> Fit | None:
    """Finds a plan, and perhaps a cheaper one for less room.

    How tightly XLA packs few large values is luck: with a little less room
    another plan may do, which costs less. Many values even that out.
    """
    sketches = self._all_sketches(room)
    if not sketches:
      return None
    best = self._refined(sketches)
    for share in _LOWER:
      if not self._is_unlucky(best, room):
        break
      lower = int(share * room)
      sketches = self._all_sketches(lower)
      least_s = min((f.extra_s for f in sketches), default=math.inf)
      if least_s < _PROMISING * best.extra_s:
        found = self._refined(sketches)
        best = min(best, found, key=lambda f: f.extra_s)
    return best

  def _is_unlucky(self, fit: Fit, room: int) -> bool:
    """Whether packing seems to make a plan of few values dear."""
    base = fit.base
    return (
      base.num_steps <= _FEW_STEPS
      and fit.extra_s > _UNLUCKY * base.least_seconds(room)
    )

  def _all_sketches(self, room: int) -> list[Fit]:
    """Sketches plans on every base, in further views if need be."""
    if not self._may_fit(room):
      return []
    return (
      self._sketches(room, VIEWS, with_link=False)
      or self._sketches(room, LAST_VIEWS, with_link=False)
      or self._sketches(room, VIEWS, with_link=True)
    )

  def _refined(self, sketches: Sequence[Fit]) -> Fit:
    """Takes more time for the best of some sketches.

    For all of them, where steps are few: how few large values are packed is
    luck, which each sketch has anew.
    """
    ranked = sorted(sketches, key=lambda f: f.extra_s)
    if ranked[0].base.num_steps > _FEW_STEPS:
      ranked = ranked[:1]
    found = []
    for sketch in ranked:
      also = {e for f in sketches if f.base is sketch.base for e in f.events}
      found.append(refine(sketch, self._options.effort, sorted(also)))
    return min(found, key=lambda f: f.extra_s)

  def _sketches(
    self, room: int, views: Sequence[View], with_link: bool
  ) -> list[Fit]:
    """Returns what little time finds on each base."""
    found: list[Fit] = []
    for base in self._bases():
      if with_link and not base.has_link:
        continue
      if found and base is not self._planned:
        best = min(found, key=lambda f: f.extra_s)
        # What suits one order suits the other.
        views = [best.aim.view]
        if not _promises_more(base, best):
          continue
      for view in views:
        worse_s, start = math.inf, int(_FIRST * room)
        if found:
          best = min(found, key=lambda f: f.extra_s)
          worse_s = _NEARLY * best.extra_s
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


def _as_given(module: Module, decided: ModulePlan) -> ModulePlan | None:
  """Returns the plan that removes the same copies and keeps XLA's order.

  None if the plan keeps that order itself.
  """
  orders = dict(decided.orders)
  if orders.pop(module.entry.id, None) is None:
    return None
  changed = module.with_bitcasts(decided.removed_copies).with_schedules(orders)
  model = AssignmentModel(changed, decided.platform)
  entry = from_hlo(model, changed.entry)
  # Without a copy, whoever reads its operand may have to run earlier.
  if entry.is_repaired:
    nodes = range(entry.graph.num_nodes)
    orders[module.entry.id] = tuple(entry.schedule(nodes))
  return dataclasses.replace(decided, orders=orders)


def _size(fit: Fit) -> tuple[int, float]:
  return fit.temp_bytes, fit.extra_s


def _promises_more(base: OrderedModule, best: Fit) -> bool:
  """Whether a base's plan for as many live bytes is cheaper than a sketch."""
  if best.extra_s < _LITTLE * base.step_s:
    return False
  estimate_s = base.estimate(best.aim.view, best.aim.live_limit_bytes)
  return estimate_s < _CHEAPER * best.extra_s


def _raise_infeasible(
  name: str, best: Fit, least: OrderedModule, room: int
) -> NoReturn:
  base, bound = best.base, least.bound
  smallest = base.fixed_bytes + best.temp_bytes
  lowest = base.fixed_bytes + min(bound.num_bytes, best.temp_bytes)
  buffers = tuple(least.needed(bound.values[:_NUM_NAMED]))
  raise InfeasibleError(
    f"No plan of {name} fits memory_limit"
    f" {units.format_bytes(base.fixed_bytes + room)}: the smallest found takes"
    f" {units.format_bytes(smallest)} ({smallest} bytes), of which arguments"
    f" and outputs are {units.format_bytes(base.fixed_bytes)}, and no edits of"
    f" these orders take less than {units.format_bytes(lowest)}. Needed at"
    f" once, whatever is chosen: {name_buffers(buffers)}. Donate arguments,"
    " shrink the batch, or compute the largest in parts.",
    smallest_bytes=smallest,
    lower_bound_bytes=lowest,
    buffers=buffers,
  )
