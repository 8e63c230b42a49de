"""One order of a module, and edits of it that fit a number of bytes.

The choice knows live bytes. What XLA's buffer assignment makes of them is
predicted for every edited module, and the limit of live bytes is moved until
that fits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from jaxmem_hlo.module import Module

from jaxmem import cost
from jaxmem.budget import (
  BudgetProblem,
  Choice,
  Chooser,
  Event,
  OffloadRates,
  Start,
  Transfer,
  least_seconds,
  lower_bound,
)
from jaxmem.cost import has_transfers
from jaxmem.errors import NeededBuffer
from jaxmem.graph import callee_peaks, from_hlo
from jaxmem.options import Effort
from jaxmem.planning.aim import LAST_VIEWS, LOWEST_VIEW, VIEWS, Aim, View
from jaxmem.planning.budget_problem import from_module
from jaxmem.planning.candidate_tuning import TUNING
from jaxmem.planning.decision import ModulePlan, PlannedModule
from jaxmem.planning.edit_predictor import EditPredictor
from jaxmem.planning.kept_room import kept_room
from jaxmem.rewrite import Edits

_TUNING = TUNING.sketch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
  """Edits of an ordered module, and what they lead to.

  Attributes:
    base: The ordered module.
    aim: What they were chosen for.
    edits: The edits.
    events: What runs again, as (unit, step before which it runs).
    live_bytes: What is live with them, in the aim's view.
    temp_bytes: Predicted temporaries.
    extra_s: Estimated seconds that they add.
  """

  base: OrderedModule
  aim: Aim
  edits: Edits
  events: tuple[Event, ...]
  live_bytes: int
  temp_bytes: int
  extra_s: float

  def lower_limit(self) -> int:
    """Returns a lower limit of live bytes, if this does not fit the room."""
    limit = self.aim.live_limit_bytes
    lower = int(min(limit, self.live_bytes) * _TUNING.least_lowering)
    return max(0, min(limit - (self.temp_bytes - self.aim.room_bytes), lower))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Vain:
  """A search for a sketch that found none.

  Attributes:
    aim: What it was made for.
    worse_s: Seconds that would have made a fit useless.
    last: The last choice that it looked at.
  """

  aim: Aim
  worse_s: float
  last: Choice


class OrderedModule:
  """One order of a module that edits can be made on.

  Args:
    planned: The module in that order.
    rates: Of the device.
    may_offload: Whether edits may move values to the host.
    seconds: Of its instructions, as `cost.instruction_seconds` says.

  Attributes:
    planned: The module in that order.
    seconds: Of its instructions.
    fixed_bytes: Bytes of arguments and outputs.
    step_s: Estimated seconds of the step without edits.
  """

  def __init__(
    self,
    planned: PlannedModule[ModulePlan],
    rates: cost.Rates,
    may_offload: bool,
    seconds: Mapping[int, float],
  ):
    self.planned = planned
    module = planned.module
    # If the step itself copies to or from the host, the link is busy.
    may_use_link = may_offload and not has_transfers(module)
    self._link = _link(rates) if may_use_link else None
    self._move_s = 2 * rates.launch_s
    self._predictor = EditPredictor(planned.model)
    self.fixed_bytes = self._predictor.fixed_bytes
    self.seconds = seconds
    model = self._predictor.model
    self._entry = from_hlo(
      model,
      module.entry,
      functools.partial(callee_peaks, model),
      sharing="any",
    )
    self.step_s = sum(
      self.seconds.get(i.id, 0.0) for i in self._entry.instructions
    )
    self._starts: dict[View, Start] = {}
    self._choosers: dict[tuple[Start, Effort, bool], Chooser] = {}
    # For each room, with the link or without, the least live bytes of searches
    # that did not get down to it.
    self._misses: dict[tuple[int, bool], int] = {}
    # For the same, the last search that found nothing.
    self._vain: dict[tuple[int, bool], _Vain] = {}

  @property
  def num_steps(self) -> int:
    """Length of the order."""
    return self._entry.graph.num_nodes

  @property
  def has_link(self) -> bool:
    """Whether values may go to the host."""
    return self._link is not None

  def moved_bytes(self, seconds: float) -> float:
    """Returns bytes that go to the host and come back within some time.

    Args:
      seconds: The time.
    """
    if self._link is None:
      return 0.0
    rates = self._link.to_host_bytes_per_s, self._link.from_host_bytes_per_s
    return min(rates) * seconds

  def kept_room(self, scope: str, spare_bytes: int) -> int:
    """Returns the bytes there is room for until they are made again.

    Args:
      scope: See `kept_room`.
      spare_bytes: Likewise.
    """
    return kept_room(self._entry, scope, spare_bytes)

  # Views.

  def problem(self, view: View) -> BudgetProblem:
    """Returns the choice to be made, in the light of a view."""
    return self._start(view).problem

  def _start(self, view: View) -> Start:
    if view not in self._starts:
      rules = self._predictor.rules
      slots, sharing = view
      problem = from_module(
        rules, self._entry, self.seconds, slots, sharing, self._move_s
      )
      # Views often see the same; then what is found in one holds in both.
      alike = (s for s in self._starts.values() if s.problem == problem)
      self._starts[view] = next(alike, None) or Start(problem)
    return self._starts[view]

  def chooser(self, view: View, effort: Effort, with_link: bool) -> Chooser:
    """Chooses in the light of a view, and remembers what it found."""
    start = self._start(view)
    key = start, effort, with_link
    if key not in self._choosers:
      link = self._link if with_link else None
      self._choosers[key] = Chooser(start, effort, link)
    return self._choosers[key]

  def forget_searches(self) -> None:
    """Lets what is found next depend on nothing that was searched before.

    Closures that are remembered take a run no work, so that it gets further.
    """
    fresh = {start: Start(start.problem) for start in self._starts.values()}
    self._starts = {view: fresh[s] for view, s in self._starts.items()}
    self._choosers.clear()
    self._misses.clear()
    self._vain.clear()

  def _live_bytes(
    self,
    events: Sequence[Event],
    view: View,
    transfers: Sequence[Transfer] = (),
  ) -> int:
    """Returns the live bytes with some edits in the light of any view."""
    profile = self._start(view).profile()
    for transfer in transfers:
      profile.move(transfer)
    for event in events:
      profile.add(*event)
    return profile.peak_bytes - profile.problem.slot_bytes

  # Bounds.

  @functools.cached_property
  def bound(self) -> lower_bound.ByteBound:
    """Bytes of temporaries that no edits go below."""
    problem = self.problem(LOWEST_VIEW)
    found = lower_bound.unavoidable_bytes(problem, with_host=self.has_link)
    num_bytes = max(0, found.num_bytes - problem.slot_bytes)
    return dataclasses.replace(found, num_bytes=num_bytes)

  def least_extra_s(self, room_bytes: int, most_s: float) -> float:
    """Returns seconds that all edits for a room add; at most `most_s`.

    Args:
      room_bytes: Most bytes of temporaries.
      most_s: See `least_seconds`.
    """
    problem = self.problem(LOWEST_VIEW)
    limit = room_bytes + problem.slot_bytes
    return least_seconds(problem, limit, self._link, most_s)

  def needed(self, values: Sequence[int]) -> Iterator[NeededBuffer]:
    """Describes values."""
    for value in values:
      buffer = self._entry.graph.buffers[value]
      yield NeededBuffer(
        name=buffer.name, size_bytes=buffer.size_bytes, source=buffer.source
      )

  # Edits.

  def edited(self, edits: Edits) -> Module:
    """Returns the module with edits."""
    return self._predictor.edited(edits)

  def unedited(self) -> Fit:
    """Returns the program as it is."""
    temp_bytes = self._predictor.temp_bytes
    return Fit(
      base=self,
      aim=_exact_aim(VIEWS[0], temp_bytes, with_link=False),
      edits=Edits(),
      events=(),
      live_bytes=temp_bytes,
      temp_bytes=temp_bytes,
      extra_s=0.0,
    )

  def smallest(self, view: View, useful_bytes: int | None = None) -> Fit:
    """Returns the smallest program that can be found.

    Args:
      view: In the light of which to choose.
      useful_bytes: More temporaries are of no use; see `Chooser.smallest`.
    """
    choice = self.chooser(view, "fast", True).smallest(useful_bytes)
    aim = _exact_aim(view, choice.peak_bytes, with_link=True)
    return self._fit(aim, choice, self._predictor.predict(choice.edits))

  def estimate(
    self, view: View, live_bytes: int, useless_s: float = math.inf
  ) -> float:
    """Estimates the seconds that edits for a limit of live bytes add.

    Args:
      view: In the light of which to choose.
      live_bytes: The limit.
      useless_s: Edits that take no less need not be found.

    Returns:
      Seconds; infinity if no edits were found that fit.
    """
    return self.chooser(view, "fast", False).estimate(live_bytes, useless_s)

  def sketch(self, aim: Aim, worse_s: float) -> Fit | None:
    """Lowers the limit of live bytes until predicted temporaries fit.

    Args:
      aim: What to choose for; its limit of live bytes is where to begin.
      worse_s: Seconds that make a fit useless.

    Returns:
      The first fit, or None if there is none or it is useless.
    """
    if self.is_far_off(aim.room_bytes, aim.with_link):
      return None
    if self._is_in_vain(aim, worse_s):
      return None
    fit, last = self._sketch(aim, worse_s)
    if fit is None:
      key = aim.room_bytes, aim.with_link
      self._vain[key] = _Vain(aim=aim, worse_s=worse_s, last=last)
    return fit

  def _is_in_vain(self, aim: Aim, worse_s: float) -> bool:
    """Whether a search ended in vain that saw what this one would see.

    Views differ in memory that often has nothing to do with the peak.
    """
    vain = self._vain.get((aim.room_bytes, aim.with_link))
    if vain is None or worse_s > vain.worse_s:
      return False
    (slots, sharing), limit = vain.aim.view, vain.aim.live_limit_bytes
    if sharing != aim.view[1] or limit != aim.live_limit_bytes:
      return False
    if slots == aim.view[0]:
      return True
    last = vain.last
    seen_bytes = self._live_bytes(last.events, aim.view, last.transfers)
    least_bytes = (1 - _TUNING.alike_share) * last.peak_bytes
    return least_bytes <= seen_bytes

  def _sketch(self, aim: Aim, worse_s: float) -> tuple[Fit | None, Choice]:
    """Returns what `sketch` does, and the last choice that was looked at."""
    chooser = self.chooser(aim.view, "fast", aim.with_link)
    # Where fewer bytes are counted than XLA will take, plans for limits that
    # cannot be kept may be packed more tightly, and fit.
    num_missed = 0
    most_missed = _TUNING.most_missed if aim.view in LAST_VIEWS else 0
    for attempt in range(_TUNING.most_limits):
      limit = aim.live_limit_bytes
      choice = chooser.sketch(limit)
      if choice.extra_s >= worse_s:
        break
      if choice.peak_bytes > max(aim.room_bytes, limit):
        self._remember_miss(aim, choice)
        break
      fit = self.fit(aim, choice)
      if fit.temp_bytes <= aim.room_bytes:
        return fit, choice
      num_missed += choice.peak_bytes > limit
      if num_missed > most_missed:
        break
      aim = dataclasses.replace(aim, live_limit_bytes=_next_limit(fit, attempt))
    return None, choice

  def _remember_miss(self, aim: Aim, choice: Choice) -> None:
    key = aim.room_bytes, aim.with_link
    missed = self._live_bytes(choice.events, LOWEST_VIEW, choice.transfers)
    self._misses[key] = min(self._misses.get(key, missed), missed)

  def is_far_off(self, room_bytes: int, with_link: bool) -> bool:
    """Whether searches for a room ended so far above it that none will do.

    Args:
      room_bytes: Most bytes of temporaries.
      with_link: Whether values could go to the host.
    """
    missed = self._misses.get((room_bytes, with_link), 0)
    return missed > _TUNING.sure_miss * room_bytes

  def moved_limit(self, fit: Fit, view: View) -> int:
    """Returns where to begin in another view, given a fit in one.

    With that limit of live bytes the edits of the fit still come into question,
    and if XLA packs others as it does these, they fit the same room as well.

    Args:
      fit: A fit without moves to the host.
      view: The other view.
    """
    slack = fit.aim.room_bytes - fit.temp_bytes
    return self._live_bytes(fit.events, view) + slack

  def fit(self, aim: Aim, choice: Choice) -> Fit:
    """Finds out what a choice leads to.

    Args:
      aim: What it was made for. Temporaries above its room are not predicted
        exactly where they are sure to be more.
      choice: The choice.
    """
    temp_bytes = 0
    if not choice.edits.offloads:
      temp_bytes = self._live_bytes(choice.events, LOWEST_VIEW)
    if temp_bytes <= aim.room_bytes:
      temp_bytes = self._predictor.predict(choice.edits)
    return self._fit(aim, choice, temp_bytes)

  def _fit(self, aim: Aim, choice: Choice, temp_bytes: int) -> Fit:
    return Fit(
      base=self,
      aim=aim,
      edits=choice.edits,
      events=choice.events,
      live_bytes=choice.peak_bytes,
      temp_bytes=temp_bytes,
      extra_s=choice.extra_s,
    )


def _exact_aim(view: View, num_bytes: int, with_link: bool) -> Aim:
  """Returns the aim of what takes a number of bytes and is not told to."""
  return Aim(
    view=view,
    room_bytes=num_bytes,
    live_limit_bytes=num_bytes,
    with_link=with_link,
  )


def _next_limit(fit: Fit, attempt: int) -> int:
  """Returns a lower limit of live bytes after a sketch that does not fit."""
  limit = fit.aim.live_limit_bytes
  # A plan that is packed badly may shrink by much or by nothing.
  least, most = (limit * s * 2**attempt for s in _TUNING.first_lowering)
  lower = max(fit.lower_limit(), limit - int(most))
  return max(0, min(lower, limit - int(least)))


def _link(rates: cost.Rates) -> OffloadRates | None:
  """Returns the rates of the link to the host, if the device has one."""
  if not rates.to_host_bytes_per_s or not rates.from_host_bytes_per_s:
    return None
  return OffloadRates(
    to_host_bytes_per_s=rates.efficiency.link * rates.to_host_bytes_per_s,
    from_host_bytes_per_s=rates.efficiency.link * rates.from_host_bytes_per_s,
  )
