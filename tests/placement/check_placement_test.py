"""The checker of placements names each fault that is put into one."""

import dataclasses

from absl.testing import absltest, parameterized
from placement_problems import random_problem

from jaxmem.graph import ValidationError
from jaxmem.placement import (
  Buffer,
  Gap,
  Problem,
  Solution,
  place,
  validate,
)

_PROBLEM = Problem(
  (
    Buffer(name="a", size_bytes=8, lower=0, upper=9, gaps=(Gap(3, 6, (0, 4)),)),
    Buffer(name="b", size_bytes=4, lower=3, upper=6, alignment_bytes=4),
    Buffer(name="c", size_bytes=4, lower=6, upper=7, offset_bytes=8),
  )
)
_VALID = Solution(
  offsets=(0, 4, 8),
  height_bytes=12,
  lower_bound_bytes=12,
  method="by hand",
)


class ValidateTest(parameterized.TestCase):
  def _check(self, **changes):
    capacity = changes.pop("capacity", None)
    validate(_PROBLEM, dataclasses.replace(_VALID, **changes), capacity)

  def test_valid(self):
    self._check()
    self._check(capacity=12)

  @parameterized.parameters(
    ({"offsets": (0, 4)}, "3 buffers, 2 offsets"),
    ({"offsets": (0, -4, 8)}, "'b' is at -4, which is negative"),
    ({"offsets": (0, 6, 8)}, "'b' is at 6, not a multiple of 4"),
    ({"offsets": (0, 4, 12)}, "'c' is at 12, but fixed at 8"),
    ({"offsets": (0, 0, 8)}, "'a' and 'b' share bytes"),
    ({"offsets": (4, 8, 8)}, "'a' and 'c' share bytes"),
    ({"height_bytes": 13}, "the height is 12, not 13"),
    ({"lower_bound_bytes": 13}, "the lower bound is above the height, 12"),
    ({"capacity": 11}, "the height 12 is above the capacity 11"),
  )
  def test_each_fault_is_named(self, changes, message):
    with self.assertRaisesRegex(ValidationError, message):
      self._check(**changes)

  @parameterized.parameters(*range(10))
  def test_moving_a_buffer_onto_its_neighbour(self, seed):
    given = random_problem(seed, num_buffers=12)
    plain = Problem(
      tuple(
        dataclasses.replace(
          b, gaps=(), offset_bytes=None, alignment_bytes=1, size_bytes=1 + i
        )
        for i, b in enumerate(given.buffers)
      )
    )
    solution = place(plain, max_deterministic_time=0)
    validate(plain, solution)
    pairs = [
      (i, j)
      for i, a in enumerate(plain.buffers)
      for j, b in enumerate(plain.buffers)
      if i < j and a.lower < b.upper and b.lower < a.upper
    ]
    self.assertNotEmpty(pairs)
    for i, j in pairs:
      offsets = list(solution.offsets)
      offsets[i] = offsets[j]
      names = f"'b{i}' and 'b{j}' share bytes"
      with self.assertRaisesRegex(ValidationError, names):
        validate(plain, dataclasses.replace(solution, offsets=tuple(offsets)))


class SolutionTest(absltest.TestCase):
  def test_optimal_is_said_with_proof_only(self):
    self.assertEqual(_VALID.status, "optimal")
    lower = dataclasses.replace(_VALID, lower_bound_bytes=11)
    self.assertEqual(lower.status, "feasible")


if __name__ == "__main__":
  absltest.main()
