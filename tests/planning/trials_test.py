"""Orders of called computations are tried together."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from jaxmem.planning.trials import Trials


class _Model:
  """Bytes that each order adds to those of the module, below zero or above."""

  def __init__(self, added: Sequence[int], num_bytes: int = 100):
    self._added = added
    self._num_bytes = num_bytes
    self.num_trials = 0

  def temp_bytes(self, orders: Mapping[int, Any], limit_bytes: int) -> int:
    self.num_trials += 1
    total = self._num_bytes + sum(self._added[callee] for callee in orders)
    # Above the limit any number above it may be told.
    return total if total <= limit_bytes else limit_bytes + 1


def _trials(
  added: Sequence[int], most_bytes: int, *, keeps_savings: bool
) -> tuple[list[int], int]:
  """Tries an order for each callee; returns those adopted, and the trials."""
  model = _Model(added)
  trials = Trials(cast(Any, model), most_bytes, keeps_savings=keeps_savings)
  trials.adopt({callee: (callee,) for callee in range(len(added))})
  for callee, ids in trials.adopted.items():
    assert ids == (callee,)
  return sorted(trials.adopted), model.num_trials


def test_what_is_no_worse_together_takes_one_trial():
  found = _trials([0, -5] * 500, 100, keeps_savings=True)
  assert found == ([*range(1000)], 1)


def test_what_takes_more_is_found_by_halves():
  # All; 0 to 3; 4 to 7; then 4 and 5, and 6 and 7 with one of each.
  found = _trials([-1, 0, 0, 0, 0, 0, 9, 0], 100, keeps_savings=True)
  assert found == ([0, 1, 2, 3, 4, 5, 7], 7)


@pytest.mark.parametrize(
  ("keeps_savings", "adopted"), [(True, [0]), (False, [0, 1])]
)
def test_savings_are_kept_or_may_be_spent(keeps_savings, adopted):
  # Together they take 3 more than there is, by halves 5 less and then 4 more.
  found, _ = _trials([-5, 4, 4], 100, keeps_savings=keeps_savings)
  assert found == adopted


def test_trials_end_however_many_callees_there_are():
  found, num_trials = _trials([1] * 1000, 100, keeps_savings=True)
  assert not found
  assert num_trials <= 16
