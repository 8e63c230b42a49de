"""The cheapest plan from a pool, and from what else its units could do."""

import random
from unittest import mock

import budget_problems
from absl.testing import absltest, parameterized

from jaxmem.budget import exact, validate
from jaxmem.budget.edits import Edits, Value
from jaxmem.budget.events import Profile
from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit


def _pools(seed):
  """Yields problems with limits and random pools that hold a plan."""
  source = random.Random(seed)
  for number in range(12):
    problem = budget_problems.random_problem(50 * seed + number, num_steps=8)
    events = [
      (unit, before)
      for unit, before in budget_problems.every_event(problem)
      if before <= problem.latest_run[unit]
    ]
    pool = source.sample(events, len(events) // 2)
    limit = int(0.8 * Profile(problem).peak_bytes)
    yield problem, limit, events, pool


def _early_or_late():
  """b, read at step 8, can be made from a, which step 5 is the last to read."""
  sizes_and_uses = {"a": (20, 0, (1, 5)), "b": (10, 1, (8,))}
  sizes_and_uses |= {"c": (10, 2, (5,)), "large": (20, 3, (4,))}
  sizes_and_uses |= {"late": (25, 6, (7,))}
  values = tuple(
    StoredValue(name=name, size_bytes=size, producer=producer, uses=uses)
    for name, (size, producer, uses) in sizes_and_uses.items()
  )
  units = tuple(
    Unit(
      step=step,
      outputs=(step,),
      inputs=inputs,
      seconds=cost,
      value=Value(instruction=step),
    )
    for step, inputs, cost in ((0, (), 5.0), (1, (0,), 1.0), (2, (), 1.0))
  )
  steps = tuple(Step(instruction=s, name=f"s{s}") for s in range(9))
  return BudgetProblem(steps=steps, values=values, units=units)


class CrossedTest(parameterized.TestCase):
  def test_a_run_comes_earlier(self):
    # Beside the large value only a fits; beside the late one only b does.
    problem = _early_or_late()
    pool = [(0, 8), (1, 8), (2, 5)]
    with mock.patch.object(exact, "_MAX_CROSSED", 0):
      plain = exact.choose_from_pool(problem, 40, pool, 5.0)
    assert plain.profile is not None
    self.assertEqual(plain.profile.seconds, 7.0)
    found = exact.choose_from_pool(problem, 40, pool, 5.0)
    assert found.profile is not None
    self.assertEqual(found.profile.events, ((1, 5), (2, 5)))
    self.assertLessEqual(found.lower_bound_s, 2.0)

  @parameterized.parameters(range(3))
  def test_runs_at_other_steps_of_the_pool(self, seed):
    for problem, limit, events, pool in _pools(seed):
      with mock.patch.object(exact, "_MAX_CROSSED", 0):
        plain = exact.choose_from_pool(problem, limit, pool, 5.0)
        best = exact.choose_from_pool(problem, limit, events, 5.0)
      found = exact.choose_from_pool(problem, limit, pool, 5.0)
      self.assertEqual(found.profile is None, plain.profile is None)
      if found.profile is None or plain.profile is None:
        continue
      assert best.profile is not None
      self.assertLessEqual(found.profile.seconds, plain.profile.seconds)
      self.assertLessEqual(best.profile.seconds, found.profile.seconds)
      self.assertLessEqual(found.lower_bound_s, found.profile.seconds)
      edits = Edits(recomputes=problem.as_edits(found.profile.events))
      self.assertEqual(validate.check(problem, edits, limit).faults, ())
      steps = {step for _, step in pool}
      self.assertLessEqual({s for _, s in found.profile.events}, steps)


if __name__ == "__main__":
  absltest.main()
