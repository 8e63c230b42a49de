"""Tests of what places large buffers before small ones."""

import random

from absl.testing import absltest

from jaxmem.placement import Buffer, Problem, Solution, decision, validate
from jaxmem.placement.large_first import large_first
from jaxmem.placement.table import Table

_MIB = 1 << 20


def _problem(seed: int, num_large: int, num_small: int) -> Problem:
  """Large buffers of some MiB, and small ones of some bytes, intermixed."""
  rng = random.Random(seed)
  buffers = []
  for number in range(num_large + num_small):
    lower = rng.randrange(40)
    is_large = number < num_large
    buffers.append(
      Buffer(
        name=str(number),
        size_bytes=rng.randint(1, 20) * (_MIB if is_large else 1),
        lower=lower,
        upper=lower + rng.randint(1, 12),
      )
    )
  rng.shuffle(buffers)
  return Problem(tuple(buffers))


class LargeFirstTest(absltest.TestCase):
  def test_is_valid_and_close_to_the_bound(self):
    num_optimal = 0
    for seed in range(20):
      given = _problem(seed, num_large=40, num_small=100)
      solution = large_first(given)
      validate(given, solution)
      num_optimal += solution.status == "optimal"
      self.assertLess(solution.height_bytes, 1.1 * solution.lower_bound_bytes)
      self.assertEqual(solution, large_first(given))
    self.assertGreater(num_optimal, 5)

  def test_what_lives_throughout_lies_below(self):
    rows = (("a", 6, 0, 9), ("b", 5, 0, 4), ("c", 5, 4, 9), ("d", 2, 0, 9))
    given = Problem(
      tuple(
        Buffer(name=name, size_bytes=size * _MIB, lower=lower, upper=upper)
        for name, size, lower, upper in rows
      )
    )
    solution = large_first(given)
    validate(given, solution)
    self.assertEqual(solution.height_bytes, 13 * _MIB)


class DecideTest(absltest.TestCase):
  def test_small_buffers_join_after_large_ones(self):
    num_placed = 0
    for seed in range(10):
      given = _problem(seed, num_large=60, num_small=60)
      table = Table(given)
      # Room for the padding between large and small ones.
      height = table.max_live_bytes + table.max_live_bytes // 50
      answer = decision.decide(table, height, 0.02)
      if answer.offsets is None:
        continue
      num_placed += 1
      offsets = tuple((answer.offsets * table.unit).tolist())
      sizes = [b.size_bytes for b in given.buffers]
      top = max(o + s for o, s in zip(offsets, sizes, strict=True))
      self.assertLessEqual(top, height)
      validate(
        given,
        Solution(
          offsets=offsets,
          height_bytes=top,
          lower_bound_bytes=0,
          method="decide",
        ),
      )
    self.assertGreater(num_placed, 5)

  def test_too_low_a_height_is_refuted_by_the_large_ones(self):
    # Three of 4 MiB, two of which are always live with a third of 3: 11 MiB.
    # At 10 MiB there is no placement, whatever becomes of the small ones.
    rows = [(f"x{i}", 4 * _MIB, 0, 9) for i in range(2)]
    rows += [("y", 3 * _MIB, 2, 5)]
    rows += [(f"s{i}", 1, i % 9, i % 9 + 1) for i in range(70)]
    given = Problem(
      tuple(
        Buffer(name=name, size_bytes=size, lower=lower, upper=upper)
        for name, size, lower, upper in rows
      )
    )
    answer = decision.decide(Table(given), 10 * _MIB, 0.1)
    self.assertEqual(answer.status, "infeasible")


if __name__ == "__main__":
  absltest.main()
