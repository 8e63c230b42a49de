"""Gaps of a plan: where a value waits for its next reader."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxmem.budget.live_bytes import Excess
from jaxmem.budget.profile import Profile


class Gap(NamedTuple):
  """A value, and the keys of two readers between which it need not be kept.

  Attributes:
    value: The value.
    start: The key of the earlier reader, or of a producer.
    end: The key of the reader that comes next.
  """

  value: int
  start: int
  end: int


class Gaps:
  """Gaps of a plan, remembered until their values change.

  Args:
    profile: The plan.
    excess: Of that plan, over the limit.

  Attributes:
    refused: Gaps, and groups of them, that did not help when they were closed.
  """

  def __init__(self, profile: Profile, excess: Excess):
    self._profile = profile
    self._line = profile.line
    self._excess = excess
    self.refused: set[object] = set()
    self._found: dict[int, list[Gap]] = {}

  def wanted(self, value: int) -> Iterator[Gap]:
    """Yields the gaps of a value over which too much is live."""
    for gap in self.of_value(value):
      if self.is_over(gap) and gap not in self.refused:
        yield gap

  def of_value(self, value: int) -> list[Gap]:
    """Returns all gaps of a value that no run closes already."""
    found = self._found.get(value)
    if found is None:
      found = self._found[value] = [*self._find(value)]
    return found

  def is_over(self, gap: Gap) -> bool:
    """Whether too much is live in a gap."""
    span = self._profile.memory.between(gap.start, gap.end)
    return self._excess.between(*span) > 0

  def forget(self, values: Iterable[int]) -> None:
    """Has to be called when readers or producers of values have changed."""
    for value in values:
      self._found.pop(value, None)

  def _find(self, value: int) -> Iterator[Gap]:
    profile, line = self._profile, self._line
    unit = profile.problem.unit_of[value]
    producers = profile.producers(value)
    made = frozenset(producers)
    keys = sorted([*profile.uses[value], *producers])
    for start, end in itertools.pairwise(keys):
      before = line.step_at(end)
      # Runs before the step of the later reader or the one after the earlier
      # one would free nothing.
      if (
        before > line.step_at(start) + 1
        and end not in made
        and not profile.has(unit, before)
      ):
        yield Gap(value, start, end)
