"""Steps over eight devices give the bits that they give under jax.jit."""

import functools
from typing import Any

import pytest
import sharded_runs
import sharded_steps
from absl.testing import absltest, parameterized

_NAMES = tuple(sharded_steps.STEPS)
# Those that are run where there is little time, and the others.
_QUICK_NAMES = ("fsdp", "pipeline", "mixture_of_experts")
_OTHER_NAMES = tuple(name for name in _NAMES if name not in _QUICK_NAMES)


@functools.cache
def _rows(
  names: tuple[str, ...], size: str, shares: tuple[float, ...]
) -> dict[str, dict[str, Any]]:
  """Runs steps in one process; returns the rows of each, by its name."""
  (rows,) = sharded_runs.run(names, size, shares=shares, timeout_s=540)
  return {row["name"]: row for row in rows}


def _small(names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
  return _rows(names, "SMALL", (0.8, 0.9))


class ParityTest(parameterized.TestCase):
  @parameterized.parameters(*_QUICK_NAMES)
  def test_small(self, name):
    sharded_runs.check(self, _small(_QUICK_NAMES)[name])

  @parameterized.parameters(*_OTHER_NAMES)
  @pytest.mark.slow
  def test_small_of_the_others(self, name):
    sharded_runs.check(self, _small(_OTHER_NAMES)[name])

  @parameterized.parameters(*_NAMES)
  @pytest.mark.slow
  def test_large(self, name):
    sharded_runs.check(self, _rows(_NAMES, "LARGE", (0.6, 0.8))[name])


class PlansTest(absltest.TestCase):
  """Parity says nothing where nothing is planned."""

  def test_orders_change(self):
    for name, row in _small(_QUICK_NAMES).items():
      with self.subTest(name):
        own = row["own"]["schedule"]
        self.assertNotEqual(row["planned"]["schedule"], own)
        self.assertNotEqual(row["limited"]["schedule"], own)
        # XLA's own order is known for what it is.
        self.assertEqual(row["unplanned"]["schedule"], own)

  @pytest.mark.slow
  def test_most_take_less_and_still_less_under_a_limit(self):
    rows = [*_small(_QUICK_NAMES).values(), *_small(_OTHER_NAMES).values()]
    least = len(rows) // 2 + 1
    for more, less in (("own", "planned"), ("planned", "limited")):
      smaller = [
        row["name"]
        for row in rows
        if row[less]["total_bytes"] < row[more]["total_bytes"]
      ]
      self.assertGreaterEqual(len(smaller), least, (less, smaller))


if __name__ == "__main__":
  absltest.main()
