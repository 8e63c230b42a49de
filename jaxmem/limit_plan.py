"""Fits a scheduled module into a byte limit: order, copies, recompute, offload.

The order is planned first. Where that is not enough, values are recomputed or
moved to the host, on the planned order or on XLA's own, whichever costs less
time. The choice knows live bytes; what XLA's buffer assignment makes of them
is predicted for every edited module, and decides.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

from jaxmem_hlo import replay, transform
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import cost, liveness, units
from jaxmem.budget import lower_bound, offload
from jaxmem.budget.choose import RUNG, Choice, Chooser, Effort
from jaxmem.budget.edits import Edits
from jaxmem.budget.from_module import Sharing, Slots, from_module
from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.problem import BudgetProblem
from jaxmem.extract import CalleePeak, from_hlo
from jaxmem.module_plan import ModulePlan, plan_module
from jaxmem.options import Options
from jaxmem.plan import InfeasibleError, NeededBuffer, name_buffers
from jaxmem.rewrite import RecomputeRules, apply_edits, recomputable

# How far above the room the first limit of live bytes lies: temporaries that
# move into the memory of arguments may make up for it.
_ABOVE = 1.04
_MAX_SKETCHES = 12
# Sketches that cost so much more than the cheapest may still end up below it;
# so many of them are followed up, each with so many searches.
_NEARLY = 1.1
_NUM_REFINED = 2
_MAX_REFINEMENTS = 3
_NUM_NAMED = 8

# How donated memory counts, and what may share memory. The first two are nearer
# to what XLA does; the others sometimes find a plan that it packs more tightly.
_View = tuple[Slots, Sharing]
_VIEWS: tuple[_View, ...] = (("occupied", "heap"), ("free", "heap"))
_LAST_VIEWS: tuple[_View, ...] = (("occupied", "any"), ("free", "any"))
# The last are searched in steps of this factor, as luck is part of it.
_SMALL_STEP = 0.96


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitPlan:
  """What was decided for a module under a byte limit.

  Attributes:
    base: The order and the copies that the edits are made on.
    edits: What runs again and what moves to the host; ids of the module that
      `base` makes.
    limit_bytes: Most bytes of the whole program.
    fixed_bytes: Bytes of arguments and outputs.
    planned_bytes: Predicted temporaries.
    lower_bound_bytes: No plan with edits of this kind, on any order that was
      tried, needs fewer temporaries.
    step_s: Estimated seconds of the step without edits.
    extra_s: Estimated seconds that the edits add.
    seconds: Wall time of planning.
  """

  base: ModulePlan
  edits: Edits
  limit_bytes: int
  fixed_bytes: int
  planned_bytes: int
  lower_bound_bytes: int
  step_s: float
  extra_s: float
  seconds: float

  @property
  def is_changed(self) -> bool:
    """Whether the plan differs from XLA's."""
    return self.base.is_changed or bool(self.edits)

  def apply(self, module: Module) -> Module:
    """Returns the module that was planned, as planned."""
    changed = self.base.apply(module)
    if not self.edits:
      return changed
    return apply_edits(changed, self.edits, self.base.platform)


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
    self._start = time.perf_counter()
    self._name = transform.unmarked(module.name).removeprefix("jit_")
    self._options = options
    decided = plan_module(module, platform, options)
    self._bases = [
      _Base(module, d, rates, options.offload)
      for d in (decided, *_as_given(module, decided))
    ]

  @property
  def total_bytes(self) -> int:
    """Bytes of the whole program without edits."""
    base = self._bases[0]
    return base.fixed_bytes + base.unedited().temp_bytes

  @property
  def step_s(self) -> float:
    """Estimated seconds of a step without edits."""
    return self._bases[0].step_s

  def fit(self, limit_bytes: int) -> LimitPlan:
    """Finds the cheapest plan whose whole program fits a limit.

    Args:
      limit_bytes: Most bytes of arguments, outputs and temporaries.

    Raises:
      InfeasibleError: If no plan was found that fits.
    """
    best = self._bases[0].unedited()
    room = limit_bytes - best.base.fixed_bytes
    if best.temp_bytes > room:
      best = self._cheapest(room)
    if self._options.verify and best.edits:
      _verify(best)
    bound = self._least_base().bound.num_bytes
    return LimitPlan(
      base=best.base.decided,
      edits=best.edits,
      limit_bytes=limit_bytes,
      fixed_bytes=best.base.fixed_bytes,
      planned_bytes=best.temp_bytes,
      lower_bound_bytes=min(best.temp_bytes, bound),
      step_s=best.base.step_s,
      extra_s=best.extra_s,
      seconds=time.perf_counter() - self._start,
    )

  def smallest_bytes(self) -> int:
    """Returns the bytes of the smallest whole program that can be found."""
    best = self._smallest()
    return best.base.fixed_bytes + best.temp_bytes

  def _smallest(self) -> _Fit:
    found = [b.smallest(view) for b in self._bases for view in _VIEWS]
    return min(found, key=lambda f: (f.temp_bytes, f.extra_s))

  def _cheapest(self, room: int) -> _Fit:
    """Sketches a plan on every base, and takes more time for the best."""
    sketches = (
      self._sketches(room, _VIEWS, with_link=False)
      or self._sketches(room, _LAST_VIEWS, with_link=False)
      or self._sketches(room, _VIEWS, with_link=True)
    )
    if not sketches:
      best = self._smallest()
      if best.temp_bytes > room:
        _raise_infeasible(self._name, best, self._least_base(), room)
      return best
    best = sketches[0]
    effort = self._options.effort
    for sketch in sketches[:_NUM_REFINED]:
      if sketch.extra_s <= _NEARLY * best.extra_s:
        better = sketch.base.refine(sketch, effort, room)
        best = min(best, better, key=lambda f: f.extra_s)
    return best

  def _sketches(
    self, room: int, views: Sequence[_View], with_link: bool
  ) -> list[_Fit]:
    """Returns what little time finds on each base, the cheapest first."""
    found: list[_Fit] = []
    for base in self._bases:
      if with_link and not base.has_link:
        continue
      if found:
        # What suits one order suits the other.
        views = [min(found, key=lambda f: f.extra_s).view]
      for view in views:
        worse_s = _NEARLY * min([f.extra_s for f in found], default=math.inf)
        sketch = base.sketch(view, room, worse_s=worse_s, with_link=with_link)
        if sketch is not None:
          found.append(sketch)
    return sorted(found, key=lambda f: f.extra_s)

  def _least_base(self) -> _Base:
    """Returns the base whose edits may need the fewest bytes."""
    return min(self._bases, key=lambda base: base.bound.num_bytes)


def _as_given(module: Module, decided: ModulePlan) -> Iterator[ModulePlan]:
  """Yields the plan that removes the same copies and keeps XLA's order."""
  orders = dict(decided.orders)
  if orders.pop(module.entry.id, None) is None:
    return
  changed = module.with_bitcasts(decided.removed_copies).with_schedules(orders)
  model = AssignmentModel(changed, decided.platform)
  entry = from_hlo(model, changed.entry)
  # Without a copy, whoever reads its operand may have to run earlier.
  if entry.is_repaired:
    nodes = range(entry.graph.num_nodes)
    orders[module.entry.id] = tuple(entry.schedule(nodes))
  yield dataclasses.replace(decided, orders=orders)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fit:
  """Edits of a base, and what they lead to.

  Attributes:
    base: The base.
    view: In the light of which they were chosen.
    with_link: Whether values might go to the host.
    live_limit: The limit of live bytes that they were chosen for.
    edits: The edits.
    temp_bytes: Predicted temporaries.
    extra_s: Estimated seconds that they add.
  """

  base: _Base
  view: _View
  with_link: bool
  live_limit: int
  edits: Edits
  temp_bytes: int
  extra_s: float


class _Base:
  """One version of the module that edits can be made on."""

  def __init__(
    self,
    module: Module,
    decided: ModulePlan,
    rates: cost.Rates,
    may_offload: bool,
  ):
    self.decided = decided
    self._link = _link(rates) if may_offload else None
    self.module = decided.apply(module)
    self._model = AssignmentModel(self.module, decided.platform)
    assignment = self._model.assign()
    self._temp_bytes = assignment.temp_bytes
    self.fixed_bytes = assignment.program_bytes - assignment.temp_bytes
    costs = cost.instruction_costs(self.module, rates)
    self._seconds = {key: c.seconds for key, c in costs.items()}
    self._entry = from_hlo(
      self._model, self.module.entry, _callee_peaks(self._model)
    )
    self._problems: dict[_View, BudgetProblem] = {}
    self._choosers: dict[tuple[_View, Effort, bool], Chooser] = {}
    self.step_s = sum(
      self._seconds.get(i.id, 0.0) for i in self._entry.instructions
    )

  @functools.cached_property
  def _rules(self) -> RecomputeRules:
    return recomputable(self.module, self._model.analysis)

  def problem(self, view: _View) -> BudgetProblem:
    """The choice to be made, in the light of a view."""
    if view not in self._problems:
      nodes = range(self._entry.graph.num_nodes)
      self._problems[view] = from_module(
        self._model, self._entry, nodes, self._seconds, *view
      )
    return self._problems[view]

  @functools.cached_property
  def bound(self) -> lower_bound.ByteBound:
    """Bytes of temporaries that no edits go below."""
    problem = self.problem(("free", "any"))
    found = lower_bound.unavoidable_bytes(problem, with_host=self.has_link)
    num_bytes = max(0, found.num_bytes - problem.slot_bytes)
    return dataclasses.replace(found, num_bytes=num_bytes)

  def needed(self, values: Sequence[int]) -> Iterator[NeededBuffer]:
    """Describes values."""
    for value in values:
      buffer = self._entry.graph.buffers[value]
      yield NeededBuffer(
        name=buffer.name, size_bytes=buffer.size_bytes, source=buffer.source
      )

  def unedited(self) -> _Fit:
    return _Fit(
      base=self,
      view=_VIEWS[0],
      with_link=False,
      live_limit=self._temp_bytes,
      edits=Edits(),
      temp_bytes=self._temp_bytes,
      extra_s=0.0,
    )

  def edited(self, edits: Edits) -> Module:
    platform = self.decided.platform
    return apply_edits(self.module, edits, platform, self._rules)

  def price(self, edits: Edits) -> int:
    """Predicts the temporaries of the edited module."""
    if not edits:
      return self._temp_bytes
    platform = self.decided.platform
    model = AssignmentModel(self.edited(edits), platform, self._model)
    return model.temp_bytes()

  def sketch(
    self, view: _View, room: int, *, worse_s: float, with_link: bool
  ) -> _Fit | None:
    """Lowers the limit of live bytes until predicted temporaries fit.

    Args:
      view: In the light of which to choose.
      room: Most bytes of temporaries.
      worse_s: Seconds that make a fit useless.
      with_link: Whether values may go to the host, if there is a link.

    Returns:
      The first fit, or None if there is none or it is useless.
    """
    chooser = self._chooser(view, "fast", with_link)
    live_limit = int(room * _ABOVE)
    for _ in range(_MAX_SKETCHES):
      choice = chooser.sketch(live_limit)
      if choice.extra_s >= worse_s or choice.peak_bytes > max(room, live_limit):
        return None
      fit = self._fit(view, with_link, live_limit, choice)
      if fit.temp_bytes <= room:
        return fit
      if view in _LAST_VIEWS:
        live_limit = int(live_limit * _SMALL_STEP)
      elif choice.peak_bytes > live_limit:
        return None
      else:
        live_limit = _lowered(fit, choice, room)
    return None

  def refine(self, sketch: _Fit, effort: Effort, room: int) -> _Fit:
    """Searches for a cheaper plan about the live bytes of a sketch.

    Args:
      sketch: A fit.
      effort: Of each search. Only "fast" leaves values where the sketch has
        them, on the device or the host.
      room: Most bytes of temporaries.

    Returns:
      The cheapest fit that was found; the sketch if there is none cheaper.
    """
    with_link = sketch.with_link or effort != "fast"
    chooser = self._chooser(sketch.view, effort, with_link)
    best, live_limit = sketch, sketch.live_limit
    for _ in range(_MAX_REFINEMENTS):
      choice = chooser.search(live_limit)
      if choice is None or choice.extra_s >= best.extra_s:
        break
      fit = self._fit(sketch.view, with_link, live_limit, choice)
      if fit.temp_bytes > room:
        if best is not sketch:
          break
        live_limit = _lowered(fit, choice, room)
        continue
      best = fit
      unused = room - fit.temp_bytes
      if unused < (1 - RUNG) * room:
        break
      live_limit += unused
    return best

  def _fit(
    self, view: _View, with_link: bool, live_limit: int, choice: Choice
  ) -> _Fit:
    return _Fit(
      base=self,
      view=view,
      with_link=with_link,
      live_limit=live_limit,
      edits=choice.edits,
      temp_bytes=self.price(choice.edits),
      extra_s=choice.extra_s,
    )

  def smallest(self, view: _View) -> _Fit:
    """Returns the smallest program that can be found."""
    profile = self._chooser(view, "fast", True).smallest()
    problem = self.problem(view)
    edits = Edits(
      recomputes=problem.as_edits(profile.events),
      offloads=offload.as_edits(problem, profile),
    )
    return _Fit(
      base=self,
      view=view,
      with_link=True,
      live_limit=profile.peak_bytes - problem.slot_bytes,
      edits=edits,
      temp_bytes=self.price(edits),
      extra_s=profile.seconds,
    )

  @property
  def has_link(self) -> bool:
    """Whether values may go to the host."""
    return self._link is not None

  def _chooser(self, view: _View, effort: Effort, with_link: bool) -> Chooser:
    key = view, effort, with_link
    if key not in self._choosers:
      link = self._link if with_link else None
      self._choosers[key] = Chooser(self.problem(view), effort, link)
    return self._choosers[key]


def _lowered(fit: _Fit, choice: Choice, room: int) -> int:
  """Returns a lower limit of live bytes for a choice that does not fit."""
  lower = int(min(fit.live_limit, choice.peak_bytes) * RUNG)
  return max(0, min(fit.live_limit - (fit.temp_bytes - room), lower))


def _link(rates: cost.Rates) -> OffloadRates | None:
  """Returns the rates of the link to the host, if the device has one."""
  if not rates.to_host_bytes_per_s or not rates.from_host_bytes_per_s:
    return None
  return OffloadRates(
    to_host_bytes_per_s=rates.to_host_bytes_per_s,
    from_host_bytes_per_s=rates.from_host_bytes_per_s,
  )


def _callee_peaks(model: AssignmentModel) -> dict[int, CalleePeak]:
  """What each called computation needs, in the order that it has."""
  peaks: dict[int, CalleePeak] = {}
  sequential = {c.id for c in model.analysis.dataflow.computations}
  for computation in model.module.computations:
    if computation.id in sequential and computation is not model.module.entry:
      inner = from_hlo(model, computation, peaks)
      peak = liveness.peak_bytes(inner.graph, range(inner.graph.num_nodes))
      extra_bytes = max(0, peak - inner.owned_bytes)
      peaks[computation.id] = CalleePeak(extra_bytes, extra_bytes)
  return peaks


def _verify(fit: _Fit) -> None:
  """Replays an edited module against its predicted assignment."""
  platform = fit.base.decided.platform
  edited = fit.base.edited(fit.edits)
  assignment = AssignmentModel(edited, platform).assign()
  report = replay.check_assignment(edited, assignment.to_proto(), platform)
  report.raise_if_faulty()


def _raise_infeasible(
  name: str, best: _Fit, least: _Base, room: int
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
