"""Tests of jaxmem.placement's placers and of the portfolio."""

import dataclasses
import functools
import pickle
import statistics

import placement_problems
from absl.testing import absltest, parameterized
from placement_problems import CAPACITY, instance, problem, random_problem

from benchmarks.synthetic import train_step
from jaxmem.experimental.place_by import place_by
from jaxmem.placement import (
  Buffer,
  Gap,
  InfeasiblePlacementError,
  Problem,
  Solution,
  Table,
  late_reuse,
  place,
  try_by_size,
  try_floors,
  try_xla_heap,
  validate,
)
from jaxmem.placement.cp_sat import descend
from jaxmem.placement.fit import Shelf
from jaxmem.placement.heaps import try_pyramid
from jaxmem.placement.large_first import large_first
from jaxmem.placement.lowest_floor import iterate

_BRIEFLY = {"max_deterministic_time": 0.01}


def _first_floor(search):
  try_floors(search, ["TWA"])


def _descend_briefly(search):
  descend(search, 0.01)


def _alone(*placers):
  return lambda problem: place_by(problem, *placers)


_XLA_HEAP = _alone(try_xla_heap)
_PLACERS = (
  _alone(try_floors),
  _alone(try_by_size),
  _alone(try_pyramid),
  _alone(iterate),
  large_first,
  _alone(_first_floor, _descend_briefly),
  functools.partial(place, **_BRIEFLY),
)


def _plain(given: Problem) -> Problem:
  """Drops gaps and fixed offsets."""
  return Problem(
    tuple(
      dataclasses.replace(b, gaps=(), offset_bytes=None) for b in given.buffers
    )
  )


class PlacerTest(parameterized.TestCase):
  @parameterized.product(placer=_PLACERS, seed=tuple(range(8)))
  def test_random_problems(self, placer, seed):
    given = random_problem(seed, num_buffers=20)
    solution = placer(given)
    validate(given, solution)
    self.assertEqual(solution, placer(given))

  @parameterized.parameters(*range(6))
  def test_xla_heap_on_random_problems(self, seed):
    given = _plain(random_problem(seed, num_buffers=20))
    validate(given, _XLA_HEAP(given))

  @parameterized.product(
    placer=(*_PLACERS, _XLA_HEAP),
    rows=(
      # One alone; one after another; two at once.
      (((7, 0, 1),), 7),
      (((7, 0, 1), (9, 1, 2)), 9),
      (((7, 0, 2), (9, 1, 2)), 16),
      # OLLA's own example: 25 on 23 or below, 27 on the 23's bytes.
      (((23, 0, 10), (25, 9, 13), (27, 12, 15)), 52),
    ),
  )
  def test_by_hand(self, placer, rows):
    given = problem(*rows[0])
    solution = placer(given)
    validate(given, solution)
    self.assertEqual(solution.height_bytes, rows[1])

  def test_xla_heap_cannot_fix_offsets(self):
    given = Problem(
      (Buffer(name="a", size_bytes=1, lower=0, upper=1, offset_bytes=3),)
    )
    with self.assertRaisesRegex(ValueError, "cannot fix offsets"):
      _XLA_HEAP(given)

  def test_lowest_floor_fills_like_tetris(self):
    # The tall one goes first (widest), then what meets nothing stays at 0, and
    # what meets both lies on the higher of them.
    given = problem((4, 0, 6), (2, 6, 8), (3, 5, 7))
    solution = place_by(given, try_floors)
    self.assertEqual(solution.offsets, (0, 0, 4))
    self.assertEqual(solution.status, "optimal")

  def test_greedy_takes_the_smallest_gap_or_the_lowest(self):
    # By size 9, 8, 7, 6, 5 stack up. At time 2 those of 8 and 6 are dead,
    # which leaves gaps of 8 bytes at 9 and of 6 at 24 for the last.
    rows = ((9, 0, 9), (8, 0, 2), (7, 0, 9), (6, 0, 2), (5, 0, 9), (4, 2, 9))
    best = place_by(problem(*rows), try_by_size)
    first = Shelf(Table(problem(*rows))).place(range(6), "first")
    self.assertEqual(best.offsets, (0, 9, 17, 24, 30, 24))
    self.assertEqual(first.tolist(), [0, 9, 17, 24, 30, 9])

  def test_pyramid_nests(self):
    # The longest at the bottom, then the longest inside it; c is not inside b.
    given = problem((5, 0, 10), (4, 2, 8), (3, 1, 7), (2, 3, 5))
    self.assertEqual(place_by(given, try_pyramid).offsets, (0, 5, 11, 9))

  @parameterized.parameters(*range(25))
  def test_optimal_on_small_problems(self, seed):
    given = _plain(random_problem(seed, num_buffers=6))
    solution = place(given)
    validate(given, solution)
    self.assertEqual(
      solution.height_bytes, placement_problems.least_height(given)
    )

  def test_a_proof_raises_the_bound(self):
    # Six bytes are live at once, but 4 fit neither below the 2 bytes at 3 nor
    # do they leave less than 9 above them.
    given = Problem(
      (
        Buffer(name="a", size_bytes=2, lower=0, upper=2, offset_bytes=3),
        Buffer(name="b", size_bytes=4, lower=1, upper=3),
      )
    )
    solution = place(given)
    validate(given, solution)
    self.assertEqual(solution.height_bytes, 9)
    self.assertEqual(solution.lower_bound_bytes, 9)
    self.assertEqual(solution.status, "optimal")


class GapTest(absltest.TestCase):
  def test_a_buffer_fits_into_a_gap(self):
    given = Problem(
      (
        Buffer(name="a", size_bytes=8, lower=0, upper=9, gaps=(Gap(3, 6),)),
        Buffer(name="b", size_bytes=8, lower=3, upper=6),
      )
    )
    solution = place(given)
    self.assertEqual(solution.offsets, (0, 0))
    self.assertEqual(solution.status, "optimal")

  def test_or_beside_the_window_that_stays_taken(self):
    given = Problem(
      (
        Buffer(
          name="a", size_bytes=8, lower=0, upper=9, gaps=(Gap(3, 6, (0, 3)),)
        ),
        Buffer(name="b", size_bytes=5, lower=3, upper=6),
      )
    )
    solution = place(given)
    validate(given, solution)
    self.assertEqual(solution.height_bytes, 8)
    self.assertEqual(solution.offsets, (0, 3))


class EdgeTest(parameterized.TestCase):
  @parameterized.product(
    placer=_PLACERS,
    rows=(
      # (problem, height): no bytes, all of the time a gap, huge numbers.
      (problem((0, 0, 1), (0, 0, 2)), 0),
      (
        Problem(
          (Buffer(name="a", size_bytes=5, lower=0, upper=4, gaps=(Gap(0, 4),)),)
        ),
        5,
      ),
      (problem((1 << 61, 0, 2), ((1 << 61) + 1, 1, 3)), (1 << 62) + 1),
      (problem((3, -(1 << 62), 1 << 62), (4, 0, 1)), 7),
    ),
  )
  def test_every_placer(self, placer, rows):
    solution = placer(rows[0])
    validate(rows[0], solution)
    self.assertEqual(solution.height_bytes, rows[1])


class AlignmentTest(absltest.TestCase):
  def test_the_bound_counts_what_alignment_wastes(self):
    # 70 and 10 at multiples of 64: 70 on top of 10 ends at 134, which is best.
    given = problem((70, 0, 1), (10, 0, 1), alignment_bytes=64)
    solution = place(given)
    validate(given, solution)
    self.assertEqual(solution.height_bytes, 134)
    self.assertEqual(solution.status, "optimal")

  def test_mixed_alignments(self):
    given = Problem(
      (
        Buffer(name="a", size_bytes=6, lower=0, upper=1, alignment_bytes=4),
        Buffer(name="b", size_bytes=9, lower=0, upper=1, alignment_bytes=6),
      )
    )
    solution = place(given)
    validate(given, solution)
    # b at 6 on a, 15; or a at 12 on b, 18.
    self.assertEqual(solution.offsets, (0, 6))


class PlaceTest(parameterized.TestCase):
  @parameterized.parameters("A", "B", "C", "E", "F")
  def test_minimalloc_instances(self, name):
    given = instance(name)
    solution = place(given, CAPACITY)
    validate(given, solution, CAPACITY)

  def test_train_step_of_ten_thousand_buffers(self):
    given = train_step(10_000, seed=0)
    solution = place(given)
    validate(given, solution)
    self.assertEqual(solution.status, "optimal")
    self.assertStartsWith(solution.method, "lowest_floor")

  def test_hints_are_a_candidate(self):
    given = instance("A")
    placed = place(given, CAPACITY)
    hinted = Problem(
      tuple(
        dataclasses.replace(b, hint_bytes=o)
        for b, o in zip(given.buffers, placed.offsets, strict=True)
      )
    )
    solution = place(hinted, CAPACITY)
    self.assertEqual(solution.offsets, placed.offsets)
    self.assertEqual(solution.method, "hints")

  def test_wrong_hints_are_ignored(self):
    given = problem((4, 0, 2), (4, 1, 2), hint_bytes=0)
    solution = place(given)
    validate(given, solution)
    self.assertEqual(solution.height_bytes, 8)

  def test_the_search_stops_at_the_capacity(self):
    given = instance("A")
    solution = place(given, 2 * CAPACITY)
    self.assertEqual(solution.method, "lowest_floor TWA")
    self.assertEqual(solution.status, "feasible")

  def test_out_of_work_is_a_status(self):
    given = instance("D")
    solution = place(given, CAPACITY, max_deterministic_time=0)
    validate(given, solution)
    self.assertFalse(solution.fits(CAPACITY))

  def test_negative_capacity(self):
    with self.assertRaisesRegex(ValueError, "must not be negative, got -1"):
      place(problem((1, 0, 1)), -1)


class InfeasibleTest(absltest.TestCase):
  def _error(self, given, capacity) -> InfeasiblePlacementError:
    with self.assertRaises(InfeasiblePlacementError) as caught:
      place(given, capacity)
    return caught.exception

  def test_a_buffer_above_the_capacity(self):
    error = self._error(problem((4, 0, 1), (9, 1, 2)), 8)
    self.assertEqual(error.conflict, ("b1",))
    self.assertEqual(error.lower_bound_bytes, 9)

  def test_the_error_passes_from_process_to_process(self):
    error = self._error(problem((4, 0, 1), (9, 1, 2)), 8)
    passed = pickle.loads(pickle.dumps(error))
    self.assertEqual(str(passed), str(error))
    self.assertEqual(vars(passed), vars(error))

  def test_too_much_at_once(self):
    # 4 + 5 + 6 > 12 without the 2; any two of the three fit.
    error = self._error(
      problem((4, 0, 9), (2, 0, 9), (5, 0, 4), (6, 3, 9), (12, 9, 10)), 12
    )
    self.assertEqual(error.conflict, ("b0", "b2", "b3"))
    self.assertTrue(error.is_irreducible)
    self.assertEqual(error.lower_bound_bytes, 17)

  def test_fixed_buffers_that_overlap(self):
    given = Problem(
      (
        Buffer(name="a", size_bytes=4, lower=0, upper=2, offset_bytes=0),
        Buffer(name="b", size_bytes=4, lower=1, upper=2, offset_bytes=2),
        Buffer(name="c", size_bytes=4, lower=1, upper=2),
      )
    )
    self.assertEqual(self._error(given, 99).conflict, ("a", "b"))
    self.assertEqual(self._error(given, None).conflict, ("a", "b"))

  def test_a_fixed_buffer_above_the_capacity(self):
    given = Problem(
      (Buffer(name="a", size_bytes=4, lower=0, upper=2, offset_bytes=8),)
    )
    self.assertIn("4 bytes at 8", str(self._error(given, 10)))

  def test_proven_by_search(self):
    # Between the fixed ones there are 3 bytes below and 3 above, and 6 bytes
    # are live at most. The 4 does not fit; the other buffer is not to blame.
    given = Problem(
      (
        Buffer(name="a", size_bytes=2, lower=0, upper=2, offset_bytes=3),
        Buffer(name="b", size_bytes=4, lower=1, upper=3),
        Buffer(name="c", size_bytes=1, lower=5, upper=6),
      )
    )
    error = self._error(given, 8)
    self.assertEqual(error.conflict, ("a", "b"))
    self.assertTrue(error.is_irreducible)
    self.assertIn("proven by search", str(error))


class LateReuseTest(parameterized.TestCase):
  def test_by_hand(self):
    # One after the other at the bottom, until four bytes are live at once.
    given = problem((2, 0, 1), (2, 1, 2), (2, 2, 3), (4, 3, 4))
    solution = place(given)
    self.assertEqual(solution.offsets, (0, 0, 0, 0))
    late = late_reuse(given, solution)
    validate(given, late)
    self.assertEqual(late.height_bytes, 4)
    first, second, third, _ = late.offsets
    self.assertNotEqual(first, second)
    self.assertNotEqual(second, third)

  def test_no_room(self):
    given = problem((4, 0, 1), (4, 1, 2), (4, 2, 3))
    solution = place(given)
    self.assertEqual(late_reuse(given, solution).offsets, solution.offsets)
    late = late_reuse(given, solution, capacity=8)
    validate(given, late)
    self.assertIn(late.offsets, ((0, 4, 0), (4, 0, 4)))

  @parameterized.parameters(*range(12))
  def test_random_problems(self, seed):
    given = random_problem(seed, num_buffers=30)
    solution = place(given, max_deterministic_time=0.01)
    late = late_reuse(given, solution)
    validate(given, late)
    self.assertLessEqual(late.height_bytes, solution.height_bytes)
    self.assertEqual(late, late_reuse(given, solution))

  def test_of_a_train_step(self):
    given = train_step(500, seed=1)
    solution = place(given)
    late = late_reuse(given, solution)
    validate(given, late)
    self.assertGreater(
      _median_wait(given, late), 4 * _median_wait(given, solution)
    )


def _median_wait(given: Problem, solution: Solution) -> float:
  """Median time from when bytes are free until somebody takes them over."""
  waits = []
  placed = list(zip(given.buffers, solution.offsets, strict=True))
  for buffer, offset in placed:
    earlier = [
      buffer.lower - other.upper
      for other, start in placed
      if other.upper <= buffer.lower
      and start < offset + buffer.size_bytes
      and offset < start + other.size_bytes
    ]
    waits += [min(earlier)] if earlier else []
  return statistics.median(waits)


if __name__ == "__main__":
  absltest.main()
