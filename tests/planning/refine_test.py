"""Plans for a real step: how cheap they are, and what they are searched by."""

import functools
from unittest import mock

import budget_problems
import budget_validate
import residual_step
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel

from jaxmem import Options, cost
from jaxmem.budget import least_seconds
from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit
from jaxmem.budget.profile import Profile
from jaxmem.planning import refine
from jaxmem.planning.aim import LAST_VIEWS, VIEWS, Aim, Wanted
from jaxmem.planning.fit import LimitPlanner
from jaxmem.rewrite.edits import Edits, Value

_DEVICE = cost.device_for("cpu")
# The bound is of a linear programme, where parts of kernels may run again.
_NEAR_BOUND = 1.25


@functools.cache
def _planner():
  return LimitPlanner(residual_step.module(), _DEVICE, Options(effort="fast"))


def _bound(base, room):
  """No choice on the order costs less, however XLA packs it."""
  found = []
  for view in VIEWS:
    problem = base.problem(view)
    limit = room + problem.slot_bytes
    found.append(least_seconds(problem, limit))
  return min(found)


def _aim(view, room_bytes, live_limit_bytes):
  return Aim(
    view=view,
    room_bytes=room_bytes,
    live_limit_bytes=live_limit_bytes,
    with_link=False,
  )


class RealStepTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.xla_bytes = (
      AssignmentModel(residual_step.module(), "cpu").assign().temp_bytes
    )

  @parameterized.parameters(0.8, 0.6, 0.4)
  def test_costs_are_near_the_bound(self, fraction):
    room = int(fraction * self.xla_bytes)
    planner = _planner()
    limit = planner.fixed_bytes + room
    planned = planner.fit(limit)
    # Maybe fewer bytes, whose mapping takes less than the edits for them.
    room = planner.promise(limit).room_bytes
    plan = planned.decision
    edited = AssignmentModel(plan.apply(residual_step.module()), "cpu").assign()
    self.assertEqual(
      plan.apply(residual_step.module()).to_bytes(), planned.module.to_bytes()
    )
    self.assertEqual(edited.temp_bytes, plan.planned_bytes)
    self.assertLessEqual(plan.planned_bytes, room)
    bound = _bound(planner._planned, room)
    self.assertGreater(bound, 0.02 * plan.step_s)
    self.assertLessEqual(plan.extra_s, _NEAR_BOUND * bound)
    self.assertLess(plan.first_s, plan.seconds)
    least_s = planner.least_schedule_s(limit, plan.schedule_s)
    self.assertGreater(least_s, plan.step_s)
    self.assertLessEqual(least_s, plan.schedule_s)
    # Nothing is gained by temporaries that are more than what is live.
    chooser = planner._planned.chooser(VIEWS[1], "fast", False)
    choice = chooser.search(room, chooser.gather(room))
    assert choice is not None
    self.assertLessEqual(choice.extra_s, _NEAR_BOUND * bound)
    self.assertGreaterEqual(choice.extra_s, bound - 1e-9)

  def test_what_is_live_is_never_more_than_what_is_predicted(self):
    base = _planner()._planned
    chooser = base.chooser(VIEWS[0], "fast", False)
    for fraction in (0.75, 0.65, 0.55, 0.45):
      limit = int(fraction * self.xla_bytes)
      choice = chooser.sketch(limit)
      # More than no room: what is live there says so without a prediction.
      live = base.fit(_aim(VIEWS[0], 0, limit), choice).temp_bytes
      predicted = base.fit(_aim(VIEWS[0], limit * 2, limit), choice)
      edited = AssignmentModel(base.edited(choice.edits), "cpu")
      self.assertEqual(predicted.temp_bytes, edited.temp_bytes())
      self.assertLessEqual(live, predicted.temp_bytes)
      self.assertGreater(live, 0.9 * predicted.temp_bytes)

  def test_refined_plans_fit_and_cost_less(self):
    base = _planner()._planned
    room = int(0.5 * self.xla_bytes)
    # A sketch that begins far too low costs more than it has to.
    sketch = base.sketch(_aim(VIEWS[0], room, int(0.9 * room)), 1.0)
    assert sketch is not None
    found = refine.refine(sketch, "normal").fit
    self.assertLessEqual(found.temp_bytes, room)
    self.assertLess(found.extra_s, 0.95 * sketch.extra_s)
    edited = AssignmentModel(base.edited(found.edits), "cpu")
    self.assertEqual(found.temp_bytes, edited.temp_bytes())

  def test_sketches_end_where_they_are_of_no_use(self):
    planner = LimitPlanner(
      residual_step.module(), _DEVICE, Options(effort="fast")
    )
    limit = planner.fixed_bytes + int(0.6 * self.xla_bytes)
    with mock.patch.object(
      planner._planned._predictor, "predict", return_value=0
    ) as predict:
      # Edits take more than a millionth of the step.
      useless = Wanted(worse_s=1.000001 * planner.step_s)
      self.assertIsNone(planner.find(limit, useless))
      predict.assert_not_called()
    # That says nothing of those that may take longer.
    slow = Wanted(worse_s=2.0 * planner.step_s)
    self.assertIsNotNone(planner.find(limit, slow))

  def test_what_is_missed_in_one_view_is_not_looked_for_in_a_like_one(self):
    options = Options(effort="fast")
    base = LimitPlanner(residual_step.module(), _DEVICE, options)._planned
    room = int(0.05 * self.xla_bytes)
    self.assertIsNone(base.sketch(_aim(VIEWS[0], room, room), 1.0))
    with mock.patch.object(base, "chooser") as chooser:
      self.assertIsNone(base.sketch(_aim(LAST_VIEWS[0], room, room), 1.0))
      chooser.assert_not_called()
    # With more room the miss says nothing.
    room = self.xla_bytes // 2
    self.assertIsNotNone(base.sketch(_aim(LAST_VIEWS[0], room, room), 1.0))


def _constant_first():
  """A constant that is made first and read last, and a chain from b to c."""
  names = ("x", "constant", "b", "c", "d")
  producers = (None, 0, 1, 2, 3)
  uses = ((1,), (3, 6), (2,), (3, 6), (4,))
  sizes = (0, 10, 10, 10, 1)
  return BudgetProblem(
    steps=tuple(Step(instruction=n, seconds=1.0) for n in range(7)),
    values=tuple(
      StoredValue(name=n, size_bytes=s, producer=p, uses=u)
      for n, s, p, u in zip(names, sizes, producers, uses, strict=True)
    ),
    units=tuple(
      Unit(
        step=step,
        outputs=(output,),
        inputs=inputs,
        seconds=1.0,
        value=Value(instruction=step),
      )
      for step, output, inputs in (
        (0, 1, ()),
        (1, 2, (0,)),
        (2, 3, (2,)),
        (3, 4, (1, 3)),
      )
    ),
  )


class RunOrderTest(absltest.TestCase):
  def test_what_reads_nothing_comes_as_late_as_it_may(self):
    problem = _constant_first()
    # Before d, the first that reads it, but after b and c.
    self.assertEqual(problem.run_order, (1, 2, 0, 3))
    profile = Profile(problem, [(0, 6), (1, 6), (2, 6)])
    runs = [profile.line.run_key(unit, 6) for unit in (0, 1, 2)]
    live = dict(
      zip(profile.memory.keys, profile.memory.live.tolist(), strict=True)
    )
    # b; b and c; c and the constant. In the order of numbers, 30 with c.
    self.assertEqual([live[runs[n]] for n in (1, 2, 0)], [10, 20, 20])
    made = problem.as_edits(profile.events)
    self.assertEqual([e.value.instruction for e in made], [1, 2, 0])
    seen = budget_validate.check(
      problem, Edits(recomputes=made), profile.peak_bytes
    )
    self.assertEmpty(seen.faults)
    self.assertEqual(seen.peak_bytes, profile.peak_bytes)

  def test_units_follow_what_feeds_them(self):
    for seed in range(20):
      problem = budget_problems.random_problem(seed, num_steps=12)
      for unit, made in enumerate(problem.units):
        for value in made.inputs:
          source = problem.unit_of[value]
          if source >= 0:
            self.assertLess(problem.rank[source], problem.rank[unit])


if __name__ == "__main__":
  absltest.main()
