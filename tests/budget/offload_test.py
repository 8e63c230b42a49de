import dataclasses

import budget_problems
import budget_validate
from absl.testing import absltest, parameterized

from jaxmem.budget import greedy, offload
from jaxmem.budget.chooser import Chooser
from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.profile import Profile, Transfer


def _rates(bytes_per_s):
  return OffloadRates(
    to_host_bytes_per_s=bytes_per_s, from_host_bytes_per_s=bytes_per_s
  )


class ScheduleTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    # Eight steps of one second, values of 10 bytes; a0 is made by step 0 and
    # read by steps 1 and 7, a1 by step 1 and read by steps 2 and 6.
    self.problem = budget_problems.movable(budget_problems.chain(4))

  def _schedule(self, bytes_per_s, most=8):
    ranked, _ = offload.candidates(self.problem, 30)
    return offload.schedule(self.problem, ranked, _rates(bytes_per_s), most)

  def test_leaves_at_once_and_comes_back_late(self):
    # A second each way: out over step 1, back over step 6.
    self.assertEqual(
      self._schedule(10.0, most=1),
      [Transfer(value=0, store_done=2, fetch_start=6, fetch_done=7)],
    )

  def test_copies_of_a_lane_follow_each_other(self):
    # Two seconds each: out until 3 and 5, back from 5, and from 3: a1 would
    # come back before it has left.
    self.assertEqual(
      self._schedule(5.0),
      [Transfer(value=0, store_done=3, fetch_start=5, fetch_done=7)],
    )
    # One second each: out until 2 and 3, back from 6 and from 5.
    self.assertEqual(
      self._schedule(10.0)[:2],
      [
        Transfer(value=0, store_done=2, fetch_start=6, fetch_done=7),
        Transfer(value=1, store_done=3, fetch_start=5, fetch_done=6),
      ],
    )

  def test_values_leave_in_the_order_in_which_they_are_made(self):
    # a1 is ranked first and comes back first; a0 leaves first all the same, and
    # a1 only when the link is free again.
    ranked = [
      offload.Candidate(value=1, later=6, worth=2.0),
      offload.Candidate(value=0, later=7, worth=1.0),
    ]
    found = offload.schedule(self.problem, ranked, _rates(10.0), most=2)
    self.assertEqual([t.value for t in found], [0, 1])
    self.assertEqual([t.store_done for t in found], [2, 3])

  def test_nobody_waits(self):
    # Three and a half seconds each way do not fit between steps 1 and 7.
    self.assertEmpty(self._schedule(10 / 3.5))

  def test_respects_an_overwrite(self):
    values = (
      dataclasses.replace(
        self.problem.values[0], uses=(1, 5), overwritten_at=5
      ),
      *self.problem.values[1:],
    )
    self.problem = dataclasses.replace(self.problem, values=values)
    for transfer in self._schedule(100.0):
      Profile(self.problem, transfers=[transfer])

  def test_rates_must_be_positive(self):
    with self.assertRaisesRegex(ValueError, "must be positive, got 0"):
      _rates(0.0)


def _find(problem, limit_bytes, rates=None):
  """What a fresh chooser finds for a limit; None if nothing fits."""
  chooser = Chooser(greedy.Start(problem), "normal", rates)
  return chooser.search(limit_bytes, chooser.gather(limit_bytes))


def _choose(problem, limit_bytes, rates):
  """What a fresh chooser finds for a limit that can be met."""
  found = _find(problem, limit_bytes, rates)
  assert found is not None
  return found


class ChooseTest(parameterized.TestCase):
  def test_a_hidden_copy_costs_nothing(self):
    problem = budget_problems.movable(budget_problems.chain(4))
    choice = _choose(problem, 40, _rates(10.0))
    self.assertEqual(choice.extra_s, 0.0)
    self.assertLen(choice.edits.offloads, 1)
    self.assertEmpty(budget_validate.check(problem, choice.edits, 40).faults)
    # Too slow a link: made again, as without one.
    choice = _choose(problem, 40, _rates(2.0))
    self.assertEqual((choice.extra_s, choice.edits.offloads), (1.0, ()))

  @parameterized.parameters((0.25, 0.25, 1), (1.5, 1.0, 0))
  def test_a_copy_costs_its_start(self, move_seconds, extra_s, num_moves):
    problem = budget_problems.movable(budget_problems.chain(4))
    problem = dataclasses.replace(problem, move_seconds=move_seconds)
    choice = _choose(problem, 40, _rates(10.0))
    self.assertEqual(choice.extra_s, extra_s)
    self.assertLen(choice.edits.offloads, num_moves)

  @parameterized.parameters(range(20))
  def test_never_costs_more_than_recomputes_alone(self, seed):
    problem = budget_problems.movable(
      budget_problems.random_problem(seed, num_steps=9)
    )
    problem = dataclasses.replace(problem, move_seconds=0.2)
    peak = Profile(problem).peak_bytes
    for limit in (int(0.9 * peak), int(0.75 * peak), int(0.6 * peak)):
      alone = _find(problem, limit)
      if alone is None:
        continue
      choice = _choose(problem, limit, _rates(8.0))
      seen = budget_validate.check(problem, choice.edits, limit)
      self.assertEmpty(seen.faults)
      self.assertEqual(seen.peak_bytes, choice.peak_bytes)
      self.assertAlmostEqual(seen.seconds, choice.extra_s)
      self.assertLessEqual(choice.extra_s, alone.extra_s + 1e-6)


if __name__ == "__main__":
  absltest.main()
