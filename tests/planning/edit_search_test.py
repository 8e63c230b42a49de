"""What a search for edits looks at: sketches first, and then for how long."""

import dataclasses
import math
from unittest import mock

import pytest
import record_modules
import residual_step
from absl.testing import absltest, parameterized

from jaxmem import Options, cost
from jaxmem.budget import Chooser
from jaxmem.planning import edit_search
from jaxmem.planning.aim import ANYTHING, LAST_VIEWS, VIEWS, Aim, Wanted
from jaxmem.planning.fit import LimitPlanner
from jaxmem.planning.ordered_module import OrderedModule
from jaxmem.planning.smallest_program import smallest_program_bytes


def _planner():
  device = cost.device_for("cpu")
  return LimitPlanner(residual_step.module(), device, Options())


def _limit(planner, share):
  return planner.fixed_bytes + int(
    share * (planner.total_bytes - planner.fixed_bytes)
  )


class WantedTest(parameterized.TestCase):
  @parameterized.parameters(
    ((1.0, False), (1.0, False), True),
    ((1.0, False), (2.0, True), True),
    ((2.0, False), (1.0, False), False),
    ((1.0, True), (2.0, False), False),
  )
  def test_what_wants_no_more_is_within(self, one, other, expected):
    one, other = (Wanted(worse_s=s, is_any=any_) for s, any_ in (one, other))
    self.assertEqual(one.is_within(other), expected)


class EditSearchTest(parameterized.TestCase):
  @parameterized.parameters(0.8, 0.6)
  @pytest.mark.slow
  def test_a_plan_is_no_slower_than_its_sketch(self, share):
    planner = _planner()
    limit = _limit(planner, share)
    with mock.patch.object(edit_search, "refine") as refine:
      sketched_s = planner.sketched_s(limit)
      refine.assert_not_called()
    found = planner.find(limit)
    assert sketched_s is not None and found is not None
    self.assertGreater(found.decision.extra_s, 0.0)
    self.assertLessEqual(found.decision.schedule_s, 1.0001 * sketched_s)
    # What is refined was sketched before.
    with mock.patch.object(OrderedModule, "sketch") as sketch:
      again = planner.find(limit)
      sketch.assert_not_called()
    assert again is not None
    self.assertEqual(again.decision.edits, found.decision.edits)

  def test_a_limit_that_xla_keeps_takes_what_its_plan_does(self):
    planner = _planner()
    limit = planner.xla_bytes
    found = planner.find(limit)
    assert found is not None
    self.assertEmpty(found.decision.edits.recomputes)
    sketched_s = planner.sketched_s(limit)
    assert sketched_s is not None
    self.assertAlmostEqual(sketched_s, found.decision.schedule_s)

  @parameterized.parameters(
    (True, 1e-9, False), (False, 1e-9, True), (False, 0.0, False)
  )
  def test_xlas_order_stays_where_another_saves_little(
    self, gains, second_per_byte, is_kept
  ):
    # On a CPU it leaves more that runs side by side.
    module = record_modules.zoo_pair("unet").module
    self.enter_context(
      mock.patch.object(edit_search, "may_gain_by_less", return_value=gains)
    )
    self.enter_context(
      mock.patch.object(
        cost.Device, "mapping_s", lambda _, size: size * second_per_byte
      )
    )
    planner = LimitPlanner(module, cost.device_for("cpu"), Options())
    self.assertLess(planner.total_bytes, planner.xla_bytes)
    for limit_bytes, is_own in (
      (planner.xla_bytes, is_kept),
      (planner.xla_bytes - 1, False),
    ):
      found = planner.find(limit_bytes)
      assert found is not None
      self.assertFalse(found.decision.edits)
      # Needless copies are removed all the same.
      self.assertNotEmpty(found.decision.base.removed_copies)
      self.assertEqual(not found.decision.base.orders, is_own)
      ordered_bytes = planner.total_bytes - planner.fixed_bytes
      self.assertEqual(found.planned_bytes > ordered_bytes, is_own)

  def test_what_fits_is_edited_where_less_is_faster(self):
    planner = _planner()
    limit = planner.total_bytes
    kept, found = planner.find(planner.xla_bytes), planner.find(limit)
    assert kept is not None and found is not None
    self.assertNotEmpty(found.decision.edits.recomputes)
    self.assertLess(found.planned_bytes, kept.planned_bytes)
    self.assertLess(found.decision.schedule_s, kept.decision.schedule_s)

  def test_what_fits_stays_where_less_was_promised_in_vain(self):
    planner = _planner()
    limit = planner.total_bytes
    kept = planner.find(planner.xla_bytes)
    assert kept is not None
    slow = 10 * planner.step_s
    edited = dataclasses.replace(
      kept, decision=dataclasses.replace(kept.decision, schedule_s=slow)
    )
    room = limit - planner.fixed_bytes

    def find(self, for_room, limit_bytes, wanted):
      del self, limit_bytes, wanted
      return kept if for_room == room else edited

    with mock.patch.object(LimitPlanner, "_find", find):
      self.assertIs(planner.find(limit), kept)

  def test_nothing_that_is_no_faster_is_sketched(self):
    planner = _planner()
    limit = _limit(planner, 0.6)
    wanted = Wanted(worse_s=1.000001 * planner.step_s)
    self.assertIsNone(planner.sketched_s(limit, wanted))
    self.assertIsNotNone(planner.sketched_s(limit))

  def test_what_costs_less_than_nothing_is_not_searched(self):
    planner = _planner()
    limit = _limit(planner, 0.6)
    wanted = Wanted(worse_s=0.5 * planner.step_s)
    with mock.patch.object(OrderedModule, "sketch") as sketch:
      self.assertIsNone(planner.sketched_s(limit, wanted))
      sketch.assert_not_called()

  def test_a_view_that_sees_the_same_is_not_searched_in_vain(self):
    planner = _planner()
    base = planner._planned
    room = int(0.6 * (planner.total_bytes - planner.fixed_bytes))
    aims = [
      Aim(view=v, room_bytes=room, live_limit_bytes=room, with_link=False)
      for v in VIEWS
    ]
    sketches = [base.sketch(aim, math.inf) for aim in aims]
    costs = [sketch and sketch.extra_s for sketch in sketches]
    # The two views see the same of this step, and no memory is searched twice.
    assert costs[0] is not None
    self.assertEqual(costs[0], costs[1])
    base.forget_searches()
    with mock.patch.object(
      Chooser, "sketch", autospec=True, side_effect=Chooser.sketch
    ) as chosen:
      self.assertIsNone(base.sketch(aims[0], 0.5 * costs[0]))
      num_chosen = chosen.call_count
      self.assertGreater(num_chosen, 0)
      self.assertIsNone(base.sketch(aims[1], 0.5 * costs[0]))
      self.assertEqual(chosen.call_count, num_chosen)
      # Who would take more searches all the same.
      self.assertIsNotNone(base.sketch(aims[1], math.inf))

  def test_a_room_is_searched_for_less_than_what_another_takes(self):
    planner = _planner()
    limit = planner.total_bytes
    full = limit - planner.fixed_bytes
    wanted_s = {}

    def find(self, room, limit_bytes, wanted):
      del self, limit_bytes
      wanted_s[room] = wanted.worse_s

    with mock.patch.object(LimitPlanner, "_find", find):
      self.assertIsNone(planner.find(limit))
    lower, last = wanted_s
    self.assertLess(lower, full)
    self.assertEqual(last, full)
    # Without edits the step fits, which nothing slower is to be found for.
    mapping_s = cost.device_for("cpu").mapping_s(full)
    self.assertAlmostEqual(wanted_s[lower], planner.step_s + mapping_s)
    self.assertEqual(wanted_s[full], math.inf)
    sketched_s = planner.sketched_s(limit)
    with mock.patch.object(LimitPlanner, "_find", find):
      planner.find(limit)
    self.assertAlmostEqual(wanted_s[full], sketched_s)

  def test_the_last_views_are_for_those_who_want_any_plan(self):
    for wanted, views in (
      (Wanted(is_any=False), VIEWS),
      (ANYTHING, (*VIEWS, *LAST_VIEWS)),
    ):
      planner = _planner()
      with mock.patch.object(
        OrderedModule, "sketch", return_value=None
      ) as sketch:
        found = planner.find(_limit(planner, 0.6), wanted)
      self.assertIsNone(found)
      seen = dict.fromkeys(call.args[0].view for call in sketch.mock_calls)
      self.assertEqual((*seen,), views)


class SecondsTest(parameterized.TestCase):
  @parameterized.parameters("alexnet", "unet")
  def test_they_are_those_of_the_module_without_copies(self, name):
    module = record_modules.zoo_pair(name).module
    device = cost.device_for("cpu")
    base = LimitPlanner(module, device, Options())._planned
    planned = base.planned
    self.assertNotEmpty(planned.decision.removed_copies)
    self.assertEqual(
      base.seconds, cost.instruction_seconds(planned.module, device.rates)
    )

  def test_with_edits_they_are_what_is_estimated_in_full(self):
    self._check_edited("scan_transformer", None)

  @parameterized.parameters(
    ("scan_transformer", "h200"), ("unet", None), ("unet", "h200")
  )
  @pytest.mark.slow
  def test_with_many_edits_they_are_what_is_estimated(self, name, target):
    self._check_edited(name, target)

  def _check_edited(self, name, target):
    module = record_modules.zoo_pair(name, target).module
    device = cost.device_for(target or "cpu")
    planner = LimitPlanner(module, device, Options())
    found = planner.fit((planner.smallest_bytes() + planner.total_bytes) // 2)
    self.assertTrue(found.decision.edits)
    self.assertEqual(
      planner.time(found), cost.step_time(found.module, device.rates)
    )

  def test_edits_of_another_order_are_not_tried_where_none_are_needed(self):
    module = record_modules.zoo_pair("unet").module
    planner = LimitPlanner(module, cost.device_for("cpu"), Options())
    with mock.patch.object(edit_search, "in_given_order") as tried:
      found = planner.fit(planner.total_bytes).decision
      self.assertFalse(tried.called)
    self.assertFalse(found.edits)
    self.assertLessEqual(found.lower_bound_bytes, found.planned_bytes)
    self.assertGreater(found.lower_bound_bytes, 0)


class FastTest(parameterized.TestCase):
  def _fit(self, planner, share):
    with mock.patch.object(
      edit_search, "in_given_order", side_effect=edit_search.in_given_order
    ) as other:
      found = planner.fit(_limit(planner, share)).decision
    return found, other.call_count

  def test_one_order_and_one_view_are_enough(self):
    module, device = residual_step.module(), cost.device_for("cpu")
    found, seconds = {}, {}
    for effort in ("fast", "normal"):
      planner = LimitPlanner(module, device, Options(effort=effort))
      with mock.patch.object(
        OrderedModule, "sketch", autospec=True, side_effect=OrderedModule.sketch
      ) as sketch:
        plan, num_other = self._fit(planner, 0.7)
      self.assertLessEqual(plan.planned_bytes, _limit(planner, 0.7))
      self.assertLessEqual(plan.lower_bound_bytes, plan.planned_bytes)
      found[effort] = sketch.call_count, num_other
      seconds[effort] = plan.schedule_s
    self.assertEqual(found["fast"], (1, 0))
    self.assertGreater(found["normal"], (1, 0))
    self.assertLessEqual(seconds["normal"], seconds["fast"])

  def test_what_the_planned_order_cannot_is_asked_of_the_other(self):
    device = cost.device_for("cpu")
    module = residual_step.module()
    planner = LimitPlanner(module, device, Options(effort="fast"))
    sketch = OrderedModule.sketch
    planned = planner._planned

    def failing(base, aim, worse_s):
      return None if base is planned else sketch(base, aim, worse_s)

    with mock.patch.object(OrderedModule, "sketch", failing):
      plan, num_other = self._fit(planner, 0.7)
    self.assertEqual(num_other, 1)
    self.assertLessEqual(plan.planned_bytes, _limit(planner, 0.7))


class SmallestTest(absltest.TestCase):
  def test_what_is_small_without_edits_is_searched_first(self):
    asked = []

    def planner(total_bytes, smallest_bytes):
      def find(useful_bytes):
        asked.append((total_bytes, useful_bytes))
        return smallest_bytes

      return mock.Mock(
        spec=LimitPlanner, total_bytes=total_bytes, smallest_bytes=find
      )

    planners = [planner(300, 150), planner(100, 90), planner(200, 80)]
    self.assertEqual(smallest_program_bytes(planners), 80)
    self.assertEqual(asked, [(100, None), (200, 90), (300, 80)])


if __name__ == "__main__":
  absltest.main()
