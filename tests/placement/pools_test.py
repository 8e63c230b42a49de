"""Tests of pools of limited capacity."""

import contextlib
import dataclasses
import io
import itertools
import pathlib
import tempfile

from absl.testing import absltest, parameterized
from placement_problems import least_height, problem, random_problem

from jaxmem import cli
from jaxmem.graph import ValidationError
from jaxmem.placement import (
  Buffer,
  Gap,
  Place,
  PoolSolution,
  Problem,
  fill_pools,
  from_csv,
  place,
  places_from_csv,
  to_csv,
  validate_pools,
)


def _costly(rows) -> Problem:
  """Makes a problem of rows (size, lower, upper, cost)."""
  return Problem(
    tuple(
      Buffer(
        name=f"b{i}", size_bytes=size, lower=lower, upper=upper, outside_cost=c
      )
      for i, (size, lower, upper, c) in enumerate(rows)
    )
  )


def _free(seed: int, num_buffers: int) -> Problem:
  """Draws buffers without offsets; some are aligned, some have gaps."""
  return Problem(
    tuple(
      dataclasses.replace(
        b, offset_bytes=None, outside_cost=None if i % 3 else 7 * i
      )
      for i, b in enumerate(random_problem(seed, num_buffers).buffers)
    )
  )


def _least_cost(given: Problem, capacities: tuple[int, ...]) -> int:
  """Tries all assignments, and all placements of each; without gaps."""
  pools = range(len(capacities) + 1)
  least = sum(b.outside_cost or 0 for b in given.buffers)
  fits: dict[tuple[int, ...], int] = {(): 0}
  for choice in itertools.product(pools, repeat=len(given.buffers)):
    cost = sum(
      b.outside_cost or 0
      for b, pool in zip(given.buffers, choice, strict=True)
      if not pool
    )
    if cost >= least:
      continue
    for pool, capacity in enumerate(capacities, 1):
      inside = tuple(i for i, p in enumerate(choice) if p == pool)
      if inside not in fits:
        part = Problem(tuple(given.buffers[i] for i in inside))
        fits[inside] = least_height(part)
      if fits[inside] > capacity:
        break
    else:
      least = cost
  return least


class FillPoolsTest(parameterized.TestCase):
  @parameterized.parameters(*range(10))
  def test_random_problems(self, seed):
    given = _free(seed, num_buffers=25)
    for capacities in ([150], [80, 64], [0]):
      solution = fill_pools(given, capacities, max_deterministic_time=0.02)
      validate_pools(given, capacities, solution)
      greedy = fill_pools(given, capacities, max_deterministic_time=0)
      self.assertLessEqual(solution.cost, greedy.cost)
      again = fill_pools(given, capacities, max_deterministic_time=0.02)
      self.assertEqual(solution, again)

  @parameterized.product(seed=tuple(range(8)), capacities=((12,), (7, 6)))
  def test_equals_brute_force(self, seed, capacities):
    rows = [
      (1 + (b.size_bytes + i) % 7, b.lower, b.upper, 1 + b.size_bytes % 11)
      for i, b in enumerate(random_problem(seed, 5).buffers)
    ]
    given = _costly(rows)
    solution = fill_pools(given, capacities)
    validate_pools(given, capacities, solution)
    self.assertEqual(solution.status, "optimal")
    self.assertEqual(solution.cost, _least_cost(given, capacities))

  def test_greedy_takes_the_dense_one_and_cp_sat_the_better_two(self):
    # By cost, and by cost for each byte, b0 is first; then neither other fits.
    given = _costly([(6, 0, 4, 13), (5, 0, 4, 10), (5, 0, 4, 10)])
    greedy = fill_pools(given, [10], max_deterministic_time=0)
    self.assertEqual((greedy.cost, greedy.method), (20, "greedy"))
    solution = fill_pools(given, [10])
    validate_pools(given, [10], solution)
    self.assertEqual((solution.cost, solution.lower_bound), (13, 13))
    self.assertIsNone(solution.places[0])

  def test_bytes_fit_but_no_placement_does(self):
    # Of a's 8 bytes, which fill the pool, 3 to 5 stay taken while b lives: 6
    # bytes at once, but b's 4 fit neither below nor above.
    a = Buffer(
      name="a",
      size_bytes=8,
      lower=0,
      upper=6,
      gaps=(Gap(2, 4, (3, 5)),),
      outside_cost=5,
    )
    b = Buffer(name="b", size_bytes=4, lower=2, upper=4, outside_cost=2)
    given = Problem((a, b))
    solution = fill_pools(given, [8])
    validate_pools(given, [8], solution)
    self.assertEqual(solution.places, (Place(0, 0), None))
    self.assertEqual(solution.status, "optimal")

  def test_costs_are_bytes_by_default(self):
    given = problem((4, 0, 2), (6, 0, 2))
    solution = fill_pools(given, [6])
    self.assertEqual(solution.places, (None, Place(0, 0)))
    self.assertEqual(solution.cost, 4)

  def test_alignment_wastes_room(self):
    given = problem((3, 0, 1), (3, 0, 1), alignment_bytes=4)
    self.assertEqual(fill_pools(given, [7]).cost, 0)
    self.assertEqual(fill_pools(given, [6]).cost, 3)

  @parameterized.parameters(
    ([], "at least one pool"),
    ([4, -1], "not be negative, got -1"),
  )
  def test_wrong_capacities(self, capacities, message):
    with self.assertRaisesRegex(ValueError, message):
      fill_pools(problem((1, 0, 1)), capacities)

  def test_wrong_buffers(self):
    fixed = Buffer(name="a", size_bytes=1, lower=0, upper=1, offset_bytes=0)
    with self.assertRaisesRegex(ValueError, "cannot fix offsets, as 'a' has"):
      fill_pools(Problem((fixed,)), [4])
    with self.assertRaisesRegex(ValueError, "cost must not be negative"):
      _costly([(1, 0, 1, -1)])
    with self.assertRaisesRegex(ValueError, "costs together must be below"):
      fill_pools(_costly([(1, 0, 1, 1 << 53)]), [4])


class ValidatePoolsTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"places": (Place(0, 0),)}, "3 buffers, 1 places"),
    ({"places": (Place(2, 0), Place(1, 0), None)}, "'b0' is in pool 2 of 2"),
    ({"places": (Place(1, 0), Place(1, 2), None)}, "pool 1: 'b0' and 'b1' sh"),
    ({"places": (Place(0, 1), Place(1, 0), None)}, "pool 0: the height 5 is"),
    ({"places": (Place(0, -1), Place(1, 0), None)}, "pool 0: 'b0' is at -1"),
    ({"cost": 8}, "the cost is 9, not 8"),
  )
  def test_each_fault_is_named(self, changes, message):
    given = problem((4, 0, 2), (4, 0, 2), (9, 0, 2))
    valid = PoolSolution(
      places=(Place(0, 0), Place(1, 0), None),
      cost=9,
      lower_bound=0,
      method="by hand",
    )
    validate_pools(given, [4, 8], valid)
    with self.assertRaisesRegex(ValidationError, message):
      validate_pools(given, [4, 8], dataclasses.replace(valid, **changes))

  def test_bounds_do_not_exceed_costs(self):
    with self.assertRaisesRegex(ValueError, "must not exceed cost, got 2"):
      PoolSolution(places=(None,), cost=1, lower_bound=2, method="by hand")


class FilesTest(parameterized.TestCase):
  def test_costs_are_read_and_written(self):
    given = _costly([(6, 0, 4, 13), (5, 0, 4, None)])
    self.assertEqual(from_csv(to_csv(given)), given)

  @parameterized.parameters(*range(4))
  def test_what_is_in_pools_is_read_again(self, seed):
    given = _free(seed, num_buffers=15)
    third = sum(b.size_bytes for b in given.buffers) // 3
    solution = fill_pools(given, [third, third // 2], max_deterministic_time=0)
    pools = {spot and spot.pool for spot in solution.places}
    self.assertEqual(pools, {None, 0, 1})
    text = to_csv(given, solution)
    self.assertEqual(from_csv(text), given)
    self.assertEqual(places_from_csv(text), solution.places)

  def test_offsets_in_pools_are_not_those_of_an_arena(self):
    # Both lie at 0, each in its own pool.
    given = problem((4, 0, 2), (4, 0, 2))
    text = to_csv(given, fill_pools(given, [4, 4]))
    self.assertEqual(places_from_csv(text), (Place(0, 0), Place(1, 0)))
    self.assertEqual(place(from_csv(text)).height_bytes, 8)

  @parameterized.parameters(
    ("id,lower,upper,size,pool\na,0,1,2,1\n", "line 2: .*both be given"),
    ("id,lower,upper,size,pool,offset\na,0,1,2,,3\n", "line 2: .*both be"),
    ("id,lower,upper,size,pool,offset\na,0,1,2,x,3\n", "pool must be an int"),
    ("id,lower,upper,size,pool,offset\na,0,1,2,-1,3\n", "not be negative"),
    ("id,lower,upper,size,pool,offset\na,0,1,2,0,-3\n", "not be negative"),
  )
  def test_wrong_places(self, text, message):
    for read in (from_csv, places_from_csv):
      with self.assertRaisesRegex(ValueError, message):
        read(text)

  def test_places_need_pools(self):
    with self.assertRaisesRegex(ValueError, "column 'pool' is missing"):
      places_from_csv("id,lower,upper,size,offset\na,0,1,2,3\n")

  def test_command(self):
    given = _costly([(6, 0, 4, 13), (5, 0, 4, 10), (5, 0, 4, 10)])
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (folder / "in.csv").write_text(to_csv(given), encoding="utf-8")
    arguments = ["place", str(folder / "in.csv"), "--pools", "10"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      code = cli.main([*arguments, "--output", str(folder / "out.csv")])
    self.assertEqual(code, 0)
    self.assertStartsWith(
      out.getvalue(), "2 of 3 buffers in pools, the others cost 13, optimal"
    )
    lines = (folder / "out.csv").read_text(encoding="utf-8").splitlines()
    self.assertEqual(lines[0], "id,lower,upper,size,pool,offset,cost")
    self.assertEqual(lines[1], "b0,0,4,6,,,13")
    # What was written is read again, as the problem that it was.
    again = ["place", str(folder / "out.csv"), "--pools", "10"]
    with contextlib.redirect_stdout(io.StringIO()):
      code = cli.main([*again, "--output", str(folder / "again.csv")])
    self.assertEqual(code, 0)
    self.assertEqual(
      (folder / "again.csv").read_text(encoding="utf-8").splitlines(), lines
    )
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      self.assertEqual(cli.main([*arguments, "--capacity", "3"]), 2)
    self.assertIn("exclude each other", err.getvalue())


if __name__ == "__main__":
  absltest.main()
