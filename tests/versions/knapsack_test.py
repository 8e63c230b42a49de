"""Tests of versions.knapsack."""

import itertools
import random

from absl.testing import absltest, parameterized

from jaxmem.versions.knapsack import DropProblem, Need, Work, choose


def closure(problem: DropProblem, drops: frozenset[int]) -> set[int] | None:
  """Returns the work that drops take, or None if they are impossible."""
  works: set[int] = set()
  while True:
    added = set(works)
    for need in problem.needs:
      active = need.trigger in (drops if need.is_drop else works)
      if active and all(stay in drops for stay in need.stays):
        if need.work is None:
          return None
        added.add(need.work)
    if added == works:
      return works
    works = added


def all_choices(problem: DropProblem) -> list[tuple[int, float]]:
  """Returns saved bytes and seconds of every possible set of drops."""
  found = []
  numbers = range(len(problem.saved_bytes))
  for size in range(len(numbers) + 1):
    for drops in itertools.combinations(numbers, size):
      works = closure(problem, frozenset(drops))
      if works is not None:
        saved = sum(problem.saved_bytes[drop] for drop in drops)
        saved -= sum(problem.works[work].size_bytes for work in works)
        seconds = sum(problem.works[work].seconds for work in works)
        seconds -= sum(problem.relief[drop] for drop in drops)
        found.append((saved, seconds))
  return found


def random_problem(seed: int) -> DropProblem:
  """A chain of equations, some of whose values are stacked."""
  rng = random.Random(seed)
  num_eqns = rng.randint(2, 9)
  stacked = rng.sample(range(num_eqns), rng.randint(1, min(num_eqns, 6)))
  works = [Work(rng.randint(0, 5) * 1e-6, 0) for _ in range(num_eqns)]
  works.append(Work(0.0, rng.randint(0, 30)))  # Stacks the carry.
  forbidden = {i for i in range(num_eqns) if rng.random() < 0.1}
  drop_of = {eqn: drop for drop, eqn in enumerate(stacked)}
  needs = []
  for drop, eqn in enumerate(stacked):
    work = None if eqn in forbidden else eqn
    needs.append(Need(True, drop, (drop,), work))
  for eqn in range(num_eqns):
    for operand in rng.sample(range(-1, eqn), min(eqn, rng.randint(1, 2))):
      if operand < 0:
        needs.append(Need(False, eqn, (), num_eqns))
        continue
      stays = (drop_of[operand],) if operand in drop_of else ()
      work = None if operand in forbidden else operand
      needs.append(Need(False, eqn, stays, work))
  saved_bytes = tuple(rng.randint(1, 40) for _ in stacked)
  relief_s = tuple(rng.randint(0, 3) * 1e-6 for _ in stacked)
  return DropProblem(
    saved_bytes=saved_bytes,
    works=tuple(works),
    needs=tuple(needs),
    relief_s=relief_s if seed % 2 else (),
  )


class ChooseTest(parameterized.TestCase):
  def test_shared_work_counts_once(self):
    # Two residuals of 10 bytes that share 4 s beat one of 20 bytes for 5 s.
    problem = DropProblem(
      saved_bytes=(10, 10, 20),
      works=(Work(4.0, 0), Work(5.0, 0)),
      needs=(
        Need(True, 0, (0,), 0),
        Need(True, 1, (1,), 0),
        Need(True, 2, (2,), 1),
      ),
    )
    choice = choose(problem, 20)
    self.assertEqual(choice.drops, (0, 1))
    self.assertEqual((choice.saved_bytes, choice.seconds), (20, 4.0))
    self.assertTrue(choice.is_optimal)

  def test_reads_a_neighbour_that_stays(self):
    # Residual 1 costs 1 s from residual 0, which costs 9 s itself.
    problem = DropProblem(
      saved_bytes=(8, 8),
      works=(Work(9.0, 0), Work(1.0, 0)),
      needs=(
        Need(True, 0, (0,), 0),
        Need(True, 1, (1,), 1),
        Need(False, 1, (0,), 0),
      ),
    )
    self.assertEqual(choose(problem, 8).drops, (1,))
    self.assertEqual(choose(problem, 8).seconds, 1.0)
    self.assertEqual(choose(problem, None).drops, (0, 1))
    self.assertEqual(choose(problem, None).seconds, 10.0)

  def test_what_saves_less_than_it_takes_stays(self):
    problem = DropProblem(
      saved_bytes=(8,), works=(Work(0.0, 9),), needs=(Need(True, 0, (), 0),)
    )
    self.assertEqual(choose(problem, None).drops, ())
    self.assertEqual(choose(problem, 1).drops, ())

  @parameterized.parameters(0, -5)
  def test_nothing_to_save(self, save_bytes):
    problem = DropProblem(saved_bytes=(8,), works=(), needs=())
    self.assertEqual(choose(problem, save_bytes).drops, ())

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
      choice = choose(problem, target)
      self.assertTrue(choice.is_optimal)
      expected = cheapest if most > 0 and wanted > 0 else 0.0
      self.assertAlmostEqual(choice.seconds, expected, places=12)
      if most > 0 and wanted > 0:
        self.assertGreaterEqual(choice.saved_bytes, wanted)
      self.assertIsNotNone(closure(problem, frozenset(choice.drops)))


if __name__ == "__main__":
  absltest.main()
