"""What no plan for a limit costs less than."""

import dataclasses
import math

import budget_problems
from absl.testing import absltest, parameterized

from jaxmem.budget import least_seconds
from jaxmem.budget.chooser import Chooser
from jaxmem.budget.greedy import Start
from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit
from jaxmem.budget.profile import Profile
from jaxmem.rewrite.edits import Value


def _link(bytes_per_s):
  return OffloadRates(
    to_host_bytes_per_s=bytes_per_s, from_host_bytes_per_s=bytes_per_s
  )


def _waiting(*, is_droppable):
  """`v` waits for step 2 while step 1 makes `w`, which nobody reads."""
  values = (
    StoredValue(
      name="v",
      size_bytes=10,
      producer=0,
      uses=(2,),
      is_droppable=is_droppable,
    ),
    StoredValue(name="w", size_bytes=20, producer=1),
    StoredValue(name="out", size_bytes=5, producer=2, is_result=True),
  )
  unit = Unit(
    step=0, outputs=(0,), inputs=(), seconds=1.0, value=Value(instruction=0)
  )
  steps = tuple(Step(instruction=s, seconds=1.0) for s in range(3))
  return BudgetProblem(steps=steps, values=values, units=(unit,))


class LeastSecondsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # Eight steps of one second, values of 10 bytes. 50 bytes are live at steps
    # 4 and 5; a0 waits there from step 1 to 7, a1 from 2 to 6.
    self.problem = budget_problems.movable(budget_problems.chain(4))

  def test_what_fits_costs_nothing(self):
    self.assertEqual(least_seconds(self.problem, 50), 0.0)

  def test_part_of_a_value_is_made_again(self):
    self.assertAlmostEqual(least_seconds(self.problem, 40), 1.0)
    self.assertAlmostEqual(least_seconds(self.problem, 45), 0.5)

  def test_an_impossible_limit_costs_infinity(self):
    self.assertEqual(least_seconds(self.problem, 20), math.inf)

  def test_a_link_that_is_fast_enough_makes_it_free(self):
    self.assertEqual(least_seconds(self.problem, 40, _link(10.0), 1.0), 0.0)

  def test_copies_have_no_more_time_than_plans_may_take(self):
    # Out until step 5 begins and back from then on: 5 and 3 seconds, and one
    # that the plan may add. Four seconds let 5 bytes come back.
    found = least_seconds(self.problem, 40, _link(1.25), 1.0)
    self.assertAlmostEqual(found, 0.5)
    # With three more, all 10.
    found = least_seconds(self.problem, 40, _link(1.25), 5.0)
    self.assertAlmostEqual(found, 0.0)

  def test_originals_that_are_left_out_give_copies_more_time(self):
    first = dataclasses.replace(self.problem.values[0], is_droppable=True)
    values = (first, *self.problem.values[1:])
    problem = dataclasses.replace(self.problem, values=values)
    # Five seconds now.
    found = least_seconds(problem, 40, _link(1.25), 1.0)
    self.assertAlmostEqual(found, 0.375)

  def test_what_cannot_move_is_made_again(self):
    # 20 bytes have to go at steps 4 and 5.
    found = least_seconds(self._with_one_movable(), 30, _link(1000.0), 5.0)
    self.assertAlmostEqual(found, 1.0)

  def test_nothing_is_gone_twice(self):
    problem = self._with_one_movable()
    problem = dataclasses.replace(problem, units=problem.units[:1])
    found = least_seconds(problem, 30, _link(1000.0), 5.0)
    self.assertEqual(found, 5.0)

  def test_a_run_is_shared_by_what_it_makes(self):
    values = (
      StoredValue(name="v", size_bytes=10, producer=0, uses=(2,)),
      StoredValue(name="u", size_bytes=10, producer=0, uses=(2,)),
      StoredValue(name="w", size_bytes=20, producer=1),
      StoredValue(name="out", size_bytes=5, producer=2, is_result=True),
    )
    unit = Unit(
      step=0, outputs=(0, 1), inputs=(), seconds=1.0, value=Value(instruction=0)
    )
    steps = tuple(Step(instruction=s, seconds=1.0) for s in range(3))
    problem = BudgetProblem(steps=steps, values=values, units=(unit,))
    self.assertAlmostEqual(least_seconds(problem, 25), 0.75)
    self.assertAlmostEqual(Profile(problem, [(0, 2)]).seconds, 1.0)

  def test_no_more_than_is_asked_for(self):
    self.assertEqual(least_seconds(self.problem, 40, None, 0.25), 0.25)

  def test_to_make_a_value_later_instead_costs_nothing(self):
    limit = 20
    self.assertEqual(least_seconds(_waiting(is_droppable=False), limit), 1.0)
    self.assertEqual(least_seconds(_waiting(is_droppable=True), limit), 0.0)

  def _with_one_movable(self):
    """Only a0 may go to the host."""
    alone = budget_problems.chain(4)
    values = (self.problem.values[0], *alone.values[1:])
    return dataclasses.replace(alone, values=values)

  @parameterized.parameters(4, 400, 4000)
  def test_no_plan_with_moves_costs_less(self, seconds_for_all):
    bounds = []
    for seed in range(40):
      problem = budget_problems.random_problem(seed + 400, num_steps=14)
      problem = budget_problems.movable(problem)
      peak = Profile(problem).peak_bytes
      link = _link(peak / seconds_for_all)
      chooser = Chooser(Start(problem), "fast", link)
      for limit in (int(0.9 * peak), int(0.8 * peak)):
        choice = chooser.search(limit, chooser.gather(limit))
        if choice is None:
          continue
        bound = least_seconds(problem, limit, link, choice.extra_s)
        self.assertLessEqual(bound, choice.extra_s + 1e-6)
        bounds.append(bound)
    self.assertGreater(len(bounds), 12)
    # Copies that take no time to speak of make nearly everything free.
    if seconds_for_all > 4:
      self.assertGreater(sum(bound > 0 for bound in bounds), 3)


if __name__ == "__main__":
  absltest.main()
