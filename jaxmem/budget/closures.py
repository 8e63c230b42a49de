"""What else must run, or be kept, for a unit to run again somewhere.

Inputs that are dead by then are either made again as well, recursively, or kept
longer, whichever takes less.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxmem.budget.profile import Event, Profile
from jaxmem.budget.tuning import TUNING

_TUNING = TUNING.greedy

# The height of a closure that the depth cut short is more than any depth.
_CUT = 1 << 30

# A value that is kept longer: (value, from key, to key).
Extension = tuple[int, int, int]


class Closure(NamedTuple):
  """What a run needs; nobody changes it.

  Attributes:
    events: Those that must happen, inputs first, the run itself last. A dict
      keeps their order.
    extensions: Inputs that are kept longer.
    height: How many runs in it feed each other at most.
    is_possible: Whether the unit may run there.
  """

  events: dict[Event, None]
  extensions: dict[Extension, None]
  height: int
  is_possible: bool = True


_REFUSED = Closure({}, {}, 0, False)
_THERE_ALREADY = Closure({}, {}, 0)


class Closures:
  """Closures on one profile, remembered until it changes.

  Args:
    profile: The profile; whoever changes it calls `forget`.
    known: Closures on another profile with the same events and transfers. They
      are shared until either changes.

  Attributes:
    work: How many closures were looked into, those within others included, and
      how many inputs these have.
  """

  def __init__(self, profile: Profile, known: Closures | None = None):
    self._profile = profile
    self._runs = profile.runs
    self._run_key = profile.line.run_key
    problem = profile.problem
    self._units = problem.units
    self._latest_run = problem.latest_run
    self._sizes = problem.sizes
    self._unit_of = problem.unit_of
    self._moving = {problem.unit_of[value] for value in profile.transfers}
    self.work = 0
    # By the keys of the runs, and by these and the depth.
    self._whole: dict[int, Closure] = {} if known is None else known._whole
    self._cut: dict[tuple[int, int], Closure] = (
      {} if known is None else known._cut
    )

  def forget(self) -> None:
    """Has to be called when the profile has changed."""
    self._whole, self._cut = {}, {}

  def find(self, unit: int, before: int, depth: int) -> Closure | None:
    """Returns what must happen for a unit to run before a step.

    Args:
      unit: The unit.
      before: The step.
      depth: How many runs may feed each other besides.

    Returns:
      The closure; an empty one if the plan holds the event already. None if the
      unit may not run there.
    """
    found = self._remembered(unit, before, depth)
    return found if found.is_possible else None

  def _remembered(self, unit: int, before: int, depth: int) -> Closure:
    """Returns what a run needs, from memory where it was found before.

    Units feed each other in many ways. What the depth does not cut short is
    followed once, whatever the depth.
    """
    key = self._run_key(unit, before)
    whole = self._whole.get(key)
    if whole is not None and whole.height <= depth:
      return whole
    found = self._cut.get((key, depth))
    if found is None:
      found = self._find(unit, before, depth, key)
      if found.height <= depth:
        self._whole[key] = found
      else:
        self._cut[key, depth] = found
    return found

  def _find(self, unit: int, before: int, depth: int, key: int) -> Closure:
    made = self._units[unit]
    self.work += 1 + len(made.inputs)
    if not made.step < before <= self._latest_run[unit] or unit in self._moving:
      return _REFUSED
    if before in self._runs[unit]:
      return _THERE_ALREADY
    events: dict[Event, None] = {}
    extensions: dict[Extension, None] = {}
    height = 0
    for value in made.inputs:
      last = self._last_read(value, key)
      if last is None:
        continue
      source = self._unit_of[value]
      if source >= 0 and depth <= 0:
        height = _CUT
      elif source >= 0:
        found = self._remembered(source, before, depth - 1)
        if found.height >= height:
          height = found.height + 1
        if found.is_possible and self._is_made_again(value, found, extensions):
          events.update(found.events)
          extensions.update(found.extensions)
          continue
      extensions[value, last, key] = None
    events[unit, before] = None
    return Closure(events, extensions, height)

  def _is_made_again(
    self, value: int, closure: Closure, extensions: dict[Extension, None]
  ) -> bool:
    """Whether an input's closure keeps little besides what is kept anyway."""
    kept = 0
    for extension in closure.extensions:
      if extension not in extensions:
        kept += self._sizes[extension[0]]
    return kept < _TUNING.again_over_kept * self._sizes[value]

  def _last_read(self, value: int, key: int) -> int | None:
    """The end of the version that a reader would see; None if it is alive.

    A version that the reader's own step reads is alive: it is read a moment
    later.
    """
    end = -1
    for start, last in self._profile.intervals[value]:
      if start >= key:
        break
      end = last
    if end >= key:
      return None
    if end < 0:
      # The original was dropped: it has to be written again.
      end = self._profile.producers(value)[0]
    return end
