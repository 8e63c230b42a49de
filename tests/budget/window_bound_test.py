"""Seconds that no plan goes below: hand-made cases, and against optima."""

import itertools
import math
import random

import budget_problems
import numpy as np
from absl.testing import absltest, parameterized

from jaxmem.budget import exact, lower_bound, window_bound
from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit
from jaxmem.budget.profile import Profile
from jaxmem.rewrite.edits import Value


def _best_plan(problem, limit):
  """The cheapest of all plans; None if none fits."""
  events = [
    (unit, before)
    for unit, before in budget_problems.every_event(problem)
    if before <= problem.latest_run[unit]
  ]
  result = exact.choose_from_pool(problem, limit, events, 10.0)
  assert result.status in ("optimal", "infeasible")
  return result.profile


def _optimum(problem, limit):
  """Seconds of the cheapest of all plans; inf if none fits."""
  plan = _best_plan(problem, limit)
  return math.inf if plan is None else plan.seconds


def _limits(problem, count):
  """Limits between what the fullest step needs, or less, and the peak."""
  peak = Profile(problem).peak_bytes
  low = lower_bound.unavoidable_bytes(problem).num_bytes
  source = random.Random(peak)
  return [source.randint(max(1, low - 1), peak) for _ in range(count)]


def _two_outputs(is_split):
  """Two values of 10 bytes, made together; 20 others come in between.

  They are read by steps 3 and 4. Made apart a run costs 2 seconds each, made
  together 3.
  """
  values = (
    StoredValue(name="a", size_bytes=10, producer=0, uses=(3,)),
    StoredValue(name="b", size_bytes=10, producer=0, uses=(4,)),
    StoredValue(name="c", size_bytes=20, producer=1, uses=(2,)),
  )
  groups = [(0,), (1,)] if is_split else [(0, 1)]
  units = tuple(
    Unit(
      step=0,
      outputs=group,
      inputs=(),
      seconds=2.0 if is_split else 3.0,
      value=Value(instruction=100, output=number if is_split else None),
    )
    for number, group in enumerate(groups)
  )
  steps = tuple(Step(instruction=100 + s, name=f"s{s}") for s in range(5))
  return BudgetProblem(steps=steps, values=values, units=units)


def _no_room_for_a_run():
  """While v is made again, from i, which goes at step 4, t has to be away."""
  values = (
    StoredValue(
      name="i", size_bytes=20, producer=0, uses=(1, 3), overwritten_at=4
    ),
    StoredValue(name="w", size_bytes=10, producer=0, uses=(6,)),
    StoredValue(name="v", size_bytes=10, producer=1, uses=(5,)),
    StoredValue(name="t", size_bytes=10, producer=2, uses=(4, 6)),
  )
  units = (
    Unit(
      step=1, outputs=(2,), inputs=(0,), seconds=1.0, value=Value(instruction=1)
    ),
    Unit(
      step=2, outputs=(3,), inputs=(), seconds=5.0, value=Value(instruction=2)
    ),
  )
  steps = tuple(Step(instruction=s, name=f"s{s}") for s in range(7))
  return BudgetProblem(steps=steps, values=values, units=units)


class ExampleTest(parameterized.TestCase):
  def test_runs_that_feed_each_other(self):
    # Of 30 bytes, backward step 5 takes all for a2, g3 and g2, and step 6 for
    # a1, g2 and g1. So a1 is made again after step 5, from a0, which is made
    # again for it, and once more after step 6.
    problem = budget_problems.chain(4)
    self.assertEqual(_optimum(problem, 30), 3.0)
    bound = window_bound.seconds_at(problem, 30, (5, 6))
    self.assertAlmostEqual(bound, 3.0, places=4)
    self.assertAlmostEqual(lower_bound.seconds(problem, 30), 2.0, places=4)

  def test_one_moment(self):
    # Whatever is not kept at step 5 is made again in what follows.
    bound = window_bound.seconds_at(budget_problems.chain(4), 30, (5,))
    self.assertAlmostEqual(bound, 2.0, places=4)

  @parameterized.parameters((35, 2.0, 3.0), (25, 4.0, 3.0))
  def test_values_are_kept_or_not(self, limit, apart, together):
    # While c is there, at steps 1 and 2, there is room for one of a and b, or
    # for none; half of one is no help.
    moments = (1, 2)
    for is_split, cost in ((True, apart), (False, together)):
      problem = _two_outputs(is_split)
      bound = window_bound.seconds_at(problem, limit, moments)
      self.assertAlmostEqual(bound, cost, places=4)
      self.assertEqual(_optimum(problem, limit), cost)
      self.assertLess(lower_bound.seconds(problem, limit), cost - 0.4)

  def test_a_run_needs_room(self):
    # At step 2 i, w and t take all 40 bytes. So does making v again while w
    # waits, so that t, though it is there before and after, is made again, too.
    problem = _no_room_for_a_run()
    self.assertEqual(_optimum(problem, 40), 6.0)
    bound = window_bound.seconds_at(problem, 40, (2, 4))
    self.assertAlmostEqual(bound, 6.0, places=4)
    self.assertAlmostEqual(lower_bound.seconds(problem, 40), 1.0, places=4)

  def test_impossible(self):
    problem = budget_problems.chain(4)
    self.assertEqual(window_bound.seconds_at(problem, 29, (5,)), math.inf)
    self.assertEqual(window_bound.seconds(problem, 29), math.inf)

  def test_nothing_to_do(self):
    problem = budget_problems.chain(4)
    peak = Profile(problem).peak_bytes
    self.assertEqual(window_bound.seconds(problem, peak), 0.0)


class OptimumTest(parameterized.TestCase):
  @parameterized.parameters(range(60))
  def test_no_plan_costs_less(self, seed):
    problem = budget_problems.random_problem(seed + 700, num_steps=8)
    for limit in _limits(problem, 3):
      plan = _best_plan(problem, limit)
      if plan is None:
        continue
      # It fits in no less than that.
      limit = plan.peak_bytes
      every = range(problem.num_steps)
      few = sorted(random.Random(seed).sample(every, 3))
      for moments in (every, few):
        bound = window_bound.seconds_at(problem, limit, moments)
        self.assertLessEqual(bound, plan.seconds)
      self.assertLessEqual(window_bound.seconds(problem, limit), plan.seconds)

  def test_is_often_the_optimum(self):
    pairs = []
    for seed in range(30):
      problem = budget_problems.random_problem(seed + 900, num_steps=8)
      for limit in _limits(problem, 2):
        optimum = _optimum(problem, limit)
        if 0.0 < optimum < math.inf:
          every = range(problem.num_steps)
          bound = window_bound.seconds_at(problem, limit, every)
          relaxed = lower_bound.seconds(problem, limit)
          pairs.append((bound / optimum, relaxed / optimum))
    self.assertGreater(len(pairs), 10)
    met, relaxed = np.array(pairs).T
    self.assertGreater(np.mean(met > 0.99), 0.6)
    self.assertGreater(met.mean(), relaxed.mean() + 0.1)

  @parameterized.parameters(itertools.product((3, 5, 8), (2, 3)))
  def test_chains(self, num_layers, num_kept):
    problem = budget_problems.chain(num_layers)
    limit = 10 * (num_kept + 2)
    bound = window_bound.seconds(problem, limit)
    self.assertLessEqual(bound, _optimum(problem, limit))
    self.assertGreaterEqual(bound, lower_bound.seconds(problem, limit))


if __name__ == "__main__":
  absltest.main()
