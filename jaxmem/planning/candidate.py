"""One order of a module, and edits of it that fit a number of bytes.

The choice knows live bytes. What XLA's buffer assignment makes of them is
predicted for every edited module, and the limit of live bytes is moved until
that fits.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
from collections.abc import Iterator, Sequence

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import cost
from jaxmem.budget import (
  RUNG,
  BudgetProblem,
  Choice,
  Chooser,
  Effort,
  Event,
  OffloadRates,
  Start,
  lower_bound,
  offload,
)
from jaxmem.cost import has_transfers
from jaxmem.errors import NeededBuffer
from jaxmem.graph import CalleePeak, Sharing, from_hlo, liveness
from jaxmem.planning.budget_problem import Slots, from_module
from jaxmem.planning.decision import ModulePlan, PlannedModule
from jaxmem.rewrite import Edits, RecomputeRules, apply_edits, recomputable

_MAX_SKETCHES = 10
# So many edited modules are left for the collector at a time.
_COLLECTED = 4
# Of the limit of live bytes: by how much it is lowered at first, at least and
# at most; each time that is doubled.
_STEPS = (0.005, 0.04)

# How donated memory counts, and what may share memory.
View = tuple[Slots, Sharing]
# These are nearer to what XLA does.
VIEWS: tuple[View, ...] = (("occupied", "heap"), ("free", "heap"))
# These sometimes find a plan that it packs more tightly. They are searched in
# steps of a fixed factor, as luck is part of it.
LAST_VIEWS: tuple[View, ...] = (("occupied", "any"), ("free", "any"))
_SMALL_STEP = 0.96
# A choice that misses by more than this part is not looked for in a view in
# which another that does takes as many bytes.
_MISSED = 1.01
# No prediction is below what is live in this one.
_LEAST_VIEW: View = ("free", "any")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
  """Edits of a base, and what they lead to.

  Attributes:
    base: The base.
    view: In the light of which they were chosen.
    with_link: Whether values might go to the host.
    live_limit: The limit of live bytes that they were chosen for.
    live_bytes: What is live with them, in that view.
    edits: The edits.
    events: What runs again, as (unit, step before which it runs).
    temp_bytes: Predicted temporaries.
    extra_s: Estimated seconds that they add.
  """

  base: Base
  view: View
  with_link: bool
  live_limit: int
  live_bytes: int
  edits: Edits
  events: tuple[Event, ...]
  temp_bytes: int
  extra_s: float


class Base:
  """One version of the module that edits can be made on."""

  def __init__(
    self,
    planned: PlannedModule[ModulePlan],
    rates: cost.Rates,
    may_offload: bool,
  ):
    self.planned = planned
    self.decided = planned.decision
    self.module = planned.module
    # Where the step copies of its own accord, the link is busy.
    may_use_link = may_offload and not has_transfers(self.module)
    self._link = _link(rates) if may_use_link else None
    self._model = planned.model
    assignment = self._model.assign()
    self._temp_bytes = assignment.temp_bytes
    self.fixed_bytes = assignment.program_bytes - assignment.temp_bytes
    self._launch_s = rates.launch_s
    costs = cost.instruction_costs(self.module, rates)
    self._seconds = {key: c.seconds for key, c in costs.items()}
    self._entry = from_hlo(
      self._model,
      self.module.entry,
      _callee_peaks(self._model),
      sharing="any",
    )
    self._problems: dict[View, BudgetProblem] = {}
    self._starts: dict[View, Start] = {}
    self._prices: dict[Edits, int] = {}
    self._choosers: dict[tuple[View, Effort, bool], Chooser] = {}
    # By room, the lowest choices that searches made which did not fit.
    self._misses: dict[int, list[Choice]] = {}
    self.step_s = sum(
      self._seconds.get(i.id, 0.0) for i in self._entry.instructions
    )

  @functools.cached_property
  def _rules(self) -> RecomputeRules:
    return recomputable(self.module, self._model.analysis)

  def problem(self, view: View) -> BudgetProblem:
    """The choice to be made, in the light of a view."""
    if view not in self._problems:
      nodes = range(self._entry.graph.num_nodes)
      self._problems[view] = from_module(
        self._model,
        self._entry,
        nodes,
        self._seconds,
        *view,
        self._rules,
        2 * self._launch_s,
      )
    return self._problems[view]

  @functools.cached_property
  def bound(self) -> lower_bound.ByteBound:
    """Bytes of temporaries that no edits go below."""
    problem = self.problem(_LEAST_VIEW)
    found = lower_bound.unavoidable_bytes(problem, with_host=self.has_link)
    num_bytes = max(0, found.num_bytes - problem.slot_bytes)
    return dataclasses.replace(found, num_bytes=num_bytes)

  def least_seconds(self, room: int) -> float:
    """Bounds the seconds that recomputes for a number of temporaries add."""
    problem = self.problem(_LEAST_VIEW)
    return lower_bound.seconds(problem, room + problem.slot_bytes)

  def needed(self, values: Sequence[int]) -> Iterator[NeededBuffer]:
    """Describes values."""
    for value in values:
      buffer = self._entry.graph.buffers[value]
      yield NeededBuffer(
        name=buffer.name, size_bytes=buffer.size_bytes, source=buffer.source
      )

  def unedited(self) -> Fit:
    """Returns the program as it is."""
    return Fit(
      base=self,
      view=VIEWS[0],
      with_link=False,
      live_limit=self._temp_bytes,
      live_bytes=self._temp_bytes,
      edits=Edits(),
      events=(),
      temp_bytes=self._temp_bytes,
      extra_s=0.0,
    )

  def edited(self, edits: Edits) -> Module:
    """Returns the module with edits."""
    if not edits:
      return self.module
    platform = self.decided.platform
    return apply_edits(self.module, edits, platform, self._rules)

  def price(self, edits: Edits) -> int:
    """Predicts the temporaries of the edited module."""
    if not edits:
      return self._temp_bytes
    if edits not in self._prices:
      platform = self.decided.platform
      model = AssignmentModel(self.edited(edits), platform, self._model)
      self._prices[edits] = model.temp_bytes()
      del model
      if len(self._prices) % _COLLECTED == 0:
        # While one plans, the collector is paused; modules are cycles.
        gc.collect(0)
    return self._prices[edits]

  def estimate(self, view: View, live_limit: int) -> float:
    """Estimates the seconds that edits for a limit of live bytes add.

    Args:
      view: In the light of which to choose.
      live_limit: The limit.

    Returns:
      Seconds of the first choice of a sketch; infinity if it does not fit.
    """
    choice = self.chooser(view, "fast", False).sketch(live_limit)
    return choice.extra_s if choice.peak_bytes <= live_limit else math.inf

  def sketch(
    self,
    view: View,
    room: int,
    live_limit: int,
    worse_s: float,
    with_link: bool,
  ) -> Fit | None:
    """Lowers the limit of live bytes until predicted temporaries fit.

    Args:
      view: In the light of which to choose.
      room: Most bytes of temporaries.
      live_limit: Where to begin.
      worse_s: Seconds that make a fit useless.
      with_link: Whether values may go to the host, if there is a link.

    Returns:
      The first fit, or None if there is none or it is useless.
    """
    if not with_link and self._is_missed(view, room):
      return None
    chooser = self.chooser(view, "fast", with_link)
    for attempt in range(_MAX_SKETCHES):
      choice = chooser.sketch(live_limit)
      if choice.extra_s >= worse_s:
        return None
      if choice.peak_bytes > max(room, live_limit):
        if not with_link:
          self._misses.setdefault(room, []).append(choice)
        return None
      fit = self.fit(view, with_link, live_limit, choice, room)
      if fit.temp_bytes <= room:
        return fit
      if view in LAST_VIEWS:
        live_limit = int(live_limit * _SMALL_STEP)
      elif choice.peak_bytes > live_limit:
        return None
      else:
        # What is packed badly may shrink by much or by nothing.
        least, most = (live_limit * s * 2**attempt for s in _STEPS)
        lower = lowered(fit, room)
        lower = max(lower, live_limit - int(most))
        live_limit = max(0, min(lower, live_limit - int(least)))
    return None

  def _is_missed(self, view: View, room: int) -> bool:
    """Whether a search in a view will hardly get lower than an earlier one."""
    return any(
      self._live_bytes(choice, view) >= max(choice.peak_bytes, _MISSED * room)
      for choice in self._misses.get(room, ())
    )

  def moved_limit(self, fit: Fit, view: View, room: int) -> int:
    """Returns where to begin in another view, given a fit in one.

    With that limit of live bytes the edits of the fit still come into question,
    and if XLA packs others as it does these, they fit as well.

    Args:
      fit: A fit without moves to the host.
      view: The other view.
      room: Most bytes of temporaries.
    """
    return self._live_bytes(fit, view) + room - fit.temp_bytes

  def _live_bytes(self, choice: Fit | Choice, view: View) -> int:
    """Returns the live bytes of a choice in the light of any view."""
    if view not in self._starts:
      self._starts[view] = Start(self.problem(view))
    profile = self._starts[view].profile()
    for event in choice.events:
      profile.add(*event)
    return profile.peak_bytes - profile.problem.slot_bytes

  def fit(
    self,
    view: View,
    with_link: bool,
    live_limit: int,
    choice: Choice,
    room: int,
  ) -> Fit:
    """Finds out what a choice leads to.

    Args:
      view: In the light of which it was made.
      with_link: Whether values might go to the host.
      live_limit: What it was made for.
      choice: The choice.
      room: Most bytes of temporaries. More than that are not predicted exactly
        where they are sure to be more.
    """
    temp_bytes = 0
    if not choice.edits.offloads:
      temp_bytes = self._live_bytes(choice, _LEAST_VIEW)
    if temp_bytes <= room:
      temp_bytes = self.price(choice.edits)
    return Fit(
      base=self,
      view=view,
      with_link=with_link,
      live_limit=live_limit,
      live_bytes=choice.peak_bytes,
      edits=choice.edits,
      events=choice.events,
      temp_bytes=temp_bytes,
      extra_s=choice.extra_s,
    )

  def smallest(self, view: View) -> Fit:
    """Returns the smallest program that can be found."""
    profile = self.chooser(view, "fast", True).smallest()
    problem = self.problem(view)
    edits = Edits(
      recomputes=problem.as_edits(profile.events),
      offloads=offload.as_edits(problem, profile),
    )
    return Fit(
      base=self,
      view=view,
      with_link=True,
      live_limit=profile.peak_bytes - problem.slot_bytes,
      live_bytes=profile.peak_bytes - problem.slot_bytes,
      edits=edits,
      events=profile.events,
      temp_bytes=self.price(edits),
      extra_s=profile.seconds,
    )

  @property
  def num_steps(self) -> int:
    """Length of the order."""
    return self._entry.graph.num_nodes

  @property
  def has_link(self) -> bool:
    """Whether values may go to the host."""
    return self._link is not None

  def chooser(self, view: View, effort: Effort, with_link: bool) -> Chooser:
    """Chooses in the light of a view, and remembers what it found."""
    key = view, effort, with_link
    if key not in self._choosers:
      link = self._link if with_link else None
      self._choosers[key] = Chooser(self.problem(view), effort, link)
    return self._choosers[key]


def lowered(fit: Fit, room: int) -> int:
  """Returns a lower limit of live bytes after a choice that does not fit."""
  lower = int(min(fit.live_limit, fit.live_bytes) * RUNG)
  return max(0, min(fit.live_limit - (fit.temp_bytes - room), lower))


def _link(rates: cost.Rates) -> OffloadRates | None:
  """Returns the rates of the link to the host, if the device has one."""
  if not rates.to_host_bytes_per_s or not rates.from_host_bytes_per_s:
    return None
  return OffloadRates(
    to_host_bytes_per_s=rates.link_efficiency * rates.to_host_bytes_per_s,
    from_host_bytes_per_s=rates.link_efficiency * rates.from_host_bytes_per_s,
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
