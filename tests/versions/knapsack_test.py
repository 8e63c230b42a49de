"""Tests of versions.knapsack."""

import itertools
import random

from absl.testing import absltest, parameterized
from drop_problems import saving

from jaxmem.versions.knapsack import Drop, DropProblem, Need, Work, choose


def all_choices(problem: DropProblem) -> list[tuple[int, float]]:
  """Returns saved bytes and seconds of every possible choice."""
  num_drops = len(problem.drops)
  numbers = [*range(num_drops), *(num_drops + w for w in problem.named_works)]
  every = (
    saving(problem, chosen)
    for size in range(len(numbers) + 1)
    for chosen in itertools.combinations(numbers, size)
  )
  return [found for found in every if found is not None]


def random_problem(seed: int) -> DropProblem:
  """A chain of equations, some of whose values are stacked, or could be."""
  rng = random.Random(seed)
  num_eqns = rng.randint(2, 9)
  stacked = rng.sample(range(num_eqns), rng.randint(1, min(num_eqns, 6)))
  works = [Work(rng.randint(0, 5) * 1e-6, 0) for _ in range(num_eqns)]
  works.append(Work(0.0, rng.randint(0, 30)))  # Stacks the carry.
  further: dict[int, tuple[int, ...]] = {}
  for eqn in range(num_eqns):
    if eqn not in stacked and rng.random() < 0.4:
      further[eqn] = (len(works),)
      seconds = rng.randint(0, 2) * 1e-6
      works.append(Work(seconds, rng.randint(1, 20), f"[{eqn}]"))
  forbidden = {i for i in range(num_eqns) if rng.random() < 0.1}
  drop_of = {eqn: drop for drop, eqn in enumerate(stacked)}
  needs = []
  for drop, eqn in enumerate(stacked):
    again = () if eqn in forbidden else (eqn,)
    needs.append(Need(True, drop, (drop,), again))
  for eqn in range(num_eqns):
    for operand in rng.sample(range(-1, eqn), min(eqn, rng.randint(1, 2))):
      if operand < 0:
        needs.append(Need(False, eqn, (), (num_eqns,)))
        continue
      stays = (drop_of[operand],) if operand in drop_of else ()
      again = () if operand in forbidden else (operand,)
      served = again + further.get(operand, ())
      needs.append(Need(False, eqn, stays, served))
  sizes = [rng.randint(1, 40) for _ in stacked]
  relief_s = [rng.randint(0, 3) * 1e-6 if seed % 2 else 0.0 for _ in stacked]
  drops = tuple(map(Drop, sizes, relief_s))
  return DropProblem(drops, tuple(works), tuple(needs))


class ChooseTest(parameterized.TestCase):
  def test_shared_work_counts_once(self):
    # Two residuals of 10 bytes that share 4 s beat one of 20 bytes for 5 s.
    problem = DropProblem(
      drops=(Drop(10), Drop(10), Drop(20)),
      works=(Work(4.0, 0), Work(5.0, 0)),
      needs=(
        Need(True, 0, (0,), (0,)),
        Need(True, 1, (1,), (0,)),
        Need(True, 2, (2,), (1,)),
      ),
    )
    self.assertEqual(choose(problem, 20), (0, 1))
    self.assertEqual(saving(problem, (0, 1)), (20, 4.0))

  def test_reads_a_neighbour_that_stays(self):
    # Residual 1 costs 1 s from residual 0, which costs 9 s itself.
    problem = DropProblem(
      drops=(Drop(8), Drop(8)),
      works=(Work(9.0, 0), Work(1.0, 0)),
      needs=(
        Need(True, 0, (0,), (0,)),
        Need(True, 1, (1,), (1,)),
        Need(False, 1, (0,), (0,)),
      ),
    )
    self.assertEqual(choose(problem, 8), (1,))
    self.assertEqual(saving(problem, (1,)), (8, 1.0))
    self.assertEqual(choose(problem, None), (0, 1))
    self.assertEqual(saving(problem, (0, 1)), (16, 10.0))

  def test_one_stack_takes_the_place_of_two(self):
    # Both are made of one value, which takes 9 s, or as many bytes as one.
    problem = DropProblem(
      drops=(Drop(8, name="a"), Drop(8, name="b")),
      works=(Work(1.0), Work(1.0), Work(9.0), Work(2.0, 8, "product")),
      needs=(
        Need(True, 0, (0,), (0,)),
        Need(True, 1, (1,), (1,)),
        Need(False, 0, (), (2, 3)),
        Need(False, 1, (), (2, 3)),
      ),
    )
    self.assertEqual(choose(problem, 8), (0, 1, 5))
    self.assertEqual(problem.names((0, 1, 5)), (("a", "b"), ("product",)))
    self.assertEqual(saving(problem, (0, 1, 5)), (8, 4.0))
    self.assertEqual(choose(problem, 9), (0, 1))
    self.assertEqual(saving(problem, (0, 1)), (16, 11.0))

  def test_all_goes_for_which_no_product_runs_again(self):
    # The first is made of the second, or of a product that could be stacked;
    # the second is the result of one; the third is not worth its work.
    problem = DropProblem(
      drops=(Drop(8, name="a"), Drop(8, is_product=True), Drop(8), Drop(8)),
      works=(
        Work(1.0),
        Work(0.5, is_product=True),
        Work(2.0, 16, "product"),
        Work(0.25, is_product=True),
        Work(9.0),
      ),
      needs=(
        Need(True, 0, (0,), (0,)),
        Need(False, 0, (), (1, 2)),
        Need(True, 1, (1,), (3,)),
        Need(True, 2, (2,), (4,)),
        Need(True, 3, (3,), (3,)),
      ),
    )
    relieved = problem._replace(
      drops=tuple(d._replace(relief_s=1e-3) for d in problem.drops)
    )
    self.assertEqual(choose(relieved.keeping_products(), 0, is_free=True), ())
    # What none of them takes in all iterations is relief enough.
    works = tuple(w._replace(seconds=w.seconds / 1e3) for w in problem.works)
    light = problem._replace(works=works).keeping_products()
    # To stack the product takes as many bytes as both save, and no more.
    self.assertEqual(choose(light, 0, is_free=True), (0, 2, 6))
    self.assertEqual(choose(light, 0), ())

  def test_what_saves_less_than_it_takes_stays(self):
    problem = DropProblem(
      drops=(Drop(8),), works=(Work(0.0, 9),), needs=(Need(True, 0, (), (0,)),)
    )
    self.assertEqual(choose(problem, None), ())
    self.assertEqual(choose(problem, 1), ())

  @parameterized.parameters(0, -5)
  def test_nothing_to_save(self, save_bytes):
    problem = DropProblem(drops=(Drop(8),), works=(), needs=())
    self.assertEqual(choose(problem, save_bytes), ())

  @parameterized.parameters(range(30))
  def test_equals_brute_force(self, seed):
    problem = random_problem(seed)
    every = all_choices(problem)
    most = max(saved for saved, _ in every)
    for target in (1, most // 2, most, most + 10, None):
      wanted = most if target is None else min(target, most)
      cheapest = min(
        (seconds for saved, seconds in every if saved >= wanted), default=0.0
      )
      chosen = choose(problem, target)
      found = saving(problem, chosen)
      assert found is not None
      self.assertAlmostEqual(problem.seconds(chosen), found[1], places=12)
      expected = cheapest if most > 0 and wanted > 0 else 0.0
      self.assertAlmostEqual(found[1], expected, places=12)
      if most > 0 and wanted > 0:
        self.assertGreaterEqual(found[0], wanted)


if __name__ == "__main__":
  absltest.main()
