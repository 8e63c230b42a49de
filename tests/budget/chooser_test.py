"""Choices about limits: by hand, against brute force, and for many limits."""

import dataclasses
import math
from unittest import mock

import budget_problems
import budget_validate
from absl.testing import absltest, parameterized

from jaxmem.budget import (
  closures,
  exact,
  greedy,
  lower_bound,
  moves,
  pool,
  seconds_bound,
)
from jaxmem.budget.chooser import Chooser
from jaxmem.budget.moves import Style
from jaxmem.budget.profile import Profile

# Plans of more events than this are not looked at by brute force.
_MOST_EVENTS = 3
_STYLE = Style(depth=8)


def _cheapest(plans, limit_bytes):
  costs = [seconds for peak, seconds, _ in plans if peak <= limit_bytes]
  return min(costs, default=math.inf)


def _chooser(problem):
  return Chooser(greedy.Start(problem), "normal")


def _find(problem, limit_bytes):
  """What a fresh chooser finds for a limit; None if nothing fits."""
  chooser = _chooser(problem)
  return chooser.search(limit_bytes, chooser.gather(limit_bytes))


def _choose(problem, limit_bytes):
  """What a fresh chooser finds for a limit that can be met."""
  found = _find(problem, limit_bytes)
  assert found is not None
  return found


def _counted(owner, name):
  """Patches a method, so that its calls are counted."""
  return mock.patch.object(
    owner, name, autospec=True, side_effect=getattr(owner, name)
  )


class ChooseTest(parameterized.TestCase):
  def test_chain_by_hand(self):
    # Four layers of 10 bytes: a0 .. a3 and g3 are live at step 4: 50. Below
    # that a0 has to go, until before its backward step 7: then steps 3 and 5
    # hold 30 and 40, steps 4 and 6 40 and 30, for one second.
    problem = budget_problems.chain(4)
    self.assertEqual(Profile(problem).peak_bytes, 50)
    choice = _choose(problem, 40)
    self.assertEqual(choice.peak_bytes, 40)
    self.assertEqual(choice.extra_s, 1.0)
    self.assertEqual(_choose(problem, 50).events, ())

  def test_says_what_forces_the_bytes(self):
    problem = budget_problems.chain(4)
    self.assertIsNone(_find(problem, 29))
    # A backward step holds two operands and its output.
    bound = lower_bound.unavoidable_bytes(problem)
    self.assertEqual(bound.num_bytes, 30)
    self.assertLen(bound.values, 3)
    self.assertEqual(_chooser(problem).smallest().peak_bytes, 30)
    self.assertEqual(_choose(problem, 30).peak_bytes, 30)

  @parameterized.parameters(range(12))
  def test_is_as_good_as_brute_force(self, seed):
    problem = budget_problems.random_problem(seed, num_steps=6)
    plans = budget_problems.all_plans(problem, _MOST_EVENTS)
    peak = Profile(problem).peak_bytes
    lowest = min(p[0] for p in plans)
    for limit in range(lowest, peak + 1):
      expected = _cheapest(plans, limit)
      choice = _choose(problem, limit)
      seen = budget_validate.check(problem, choice.edits, limit)
      self.assertEmpty(seen.faults)
      self.assertEqual(seen.peak_bytes, choice.peak_bytes)
      self.assertAlmostEqual(seen.seconds, choice.extra_s)
      # Brute force stops at few events; more may be cheaper.
      if len(choice.events) <= _MOST_EVENTS:
        self.assertAlmostEqual(choice.extra_s, expected, msg=str(limit))
      else:
        self.assertLess(choice.extra_s, expected)

  @parameterized.parameters(range(12))
  def test_the_smallest_is_right(self, seed):
    problem = budget_problems.random_problem(seed, num_steps=6)
    plans = budget_problems.all_plans(problem, _MOST_EVENTS)
    self.assertIsNone(_find(problem, 0))
    found = _chooser(problem).smallest()
    smallest = found.peak_bytes
    seen = budget_validate.check(problem, found.edits, smallest)
    self.assertEmpty(seen.faults)
    self.assertAlmostEqual(seen.seconds, found.extra_s)
    self.assertLessEqual(smallest, min(p[0] for p in plans))
    self.assertLessEqual(
      lower_bound.unavoidable_bytes(problem).num_bytes, smallest
    )
    self.assertIsNotNone(_find(problem, smallest))
    self.assertIsNone(_find(problem, smallest - 1))

  @parameterized.parameters(range(4))
  def test_bounds_enclose_exact_and_greedy(self, seed):
    problem = budget_problems.random_problem(seed + 50, num_steps=14)
    peak = Profile(problem).peak_bytes
    for limit in (int(0.9 * peak), int(0.8 * peak), int(0.7 * peak)):
      plan = greedy.Start(problem).solve(limit, _STYLE)
      events = pool.all_events(problem, most=10_000)
      self.assertIsNotNone(events)
      best = exact.choose_from_pool(problem, limit, events or (), work=20.0)
      bound = seconds_bound.least_seconds(problem, limit)
      if best is None:
        self.assertGreater(plan.peak_bytes, limit)
        continue
      self.assertLessEqual(best.peak_bytes, limit)
      self.assertLessEqual(bound, best.seconds + 1e-6)
      if plan.peak_bytes <= limit:
        self.assertLessEqual(best.seconds, plan.seconds + 1e-6)

  def test_a_larger_limit_never_costs_more(self):
    problem = _long_chain()
    self.assertIsNone(pool.all_events(problem, most=400))
    peak = Profile(problem).peak_bytes
    remembering = _chooser(problem)
    gathered = remembering.gather(peak // 3)
    costs = []
    for limit in range(peak // 3, peak + 1, peak // 9):
      choice = remembering.search(limit, gathered)
      assert choice is not None
      self.assertLessEqual(choice.peak_bytes, limit)
      self.assertEmpty(
        budget_validate.check(problem, choice.edits, limit).faults
      )
      costs.append(choice.extra_s)
    self.assertEqual(costs, sorted(costs, reverse=True))
    self.assertGreater(costs[0], costs[-1])

  def test_long_programs_are_not_solved(self):
    problem = budget_problems.chain(6)
    events = pool.all_events(problem, most=10_000) or ()
    limit = Profile(problem).peak_bytes - 10

    def found(most_terms: int | None) -> Profile | None:
      return exact.choose_from_pool(
        problem, limit, events, work=1.0, most_terms=most_terms
      )

    self.assertIsNotNone(found(None))
    self.assertIsNotNone(found(10_000))
    # A choice has a term in some row at least.
    self.assertIsNone(found(0))

  def test_estimates_what_sketches_take(self):
    problem = _long_chain()
    peak = Profile(problem).peak_bytes
    for share in (0.9, 0.6, 0.4):
      limit = int(share * peak)
      sketch = _chooser(problem).sketch(limit)
      self.assertLessEqual(sketch.peak_bytes, limit)
      estimate_s = _chooser(problem).estimate(limit)
      self.assertBetween(estimate_s, sketch.extra_s, 1.5 * sketch.extra_s)
    floor = lower_bound.unavoidable_bytes(problem).num_bytes
    self.assertEqual(_chooser(problem).estimate(floor - 1), math.inf)
    # What fits at once is told in any case, the rest is not searched for.
    self.assertEqual(_chooser(problem).estimate(limit, 0.0), estimate_s)
    with mock.patch.object(pool, "sketch") as sketch:
      self.assertEqual(_chooser(problem).estimate(floor - 1, 0.0), math.inf)
    sketch.assert_not_called()

  def test_events_of_others_are_chosen_from_as_well(self):
    problem = _long_chain()
    limit = Profile(problem).peak_bytes // 2
    chooser = _chooser(problem)
    alone = chooser.gather(limit)
    others = chooser.gather(int(0.9 * limit)).events
    self.assertNotEmpty(set(others) - set(alone.events))
    both = chooser.gather(limit, also=others)
    self.assertEqual(set(both.events), {*alone.events, *others})

  def test_same_choices_every_time(self):
    problem = _long_chain()
    limit = Profile(problem).peak_bytes // 2

    def choices():
      chooser = _chooser(problem)
      found = chooser.search(limit, chooser.gather(limit))
      assert found is not None
      return found, chooser.sketch(limit), chooser.smallest()

    first = choices()
    self.assertEqual(choices(), first)
    searched, sketched, smallest = first
    self.assertLessEqual(searched.extra_s, sketched.extra_s)
    self.assertLess(smallest.peak_bytes, searched.peak_bytes)
    bound = seconds_bound.least_seconds(problem, limit)
    self.assertLessEqual(bound, searched.extra_s)

  def test_slots_are_no_temporaries(self):
    problem = dataclasses.replace(budget_problems.chain(4), slot_bytes=20)
    self.assertEqual(_choose(problem, 30).events, ())
    self.assertEqual(_choose(problem, 20).peak_bytes, 20)
    self.assertEqual(_chooser(problem).smallest().peak_bytes, 10)


class GreedyTest(absltest.TestCase):
  def test_makes_inputs_again_rather_than_keep_them(self):
    # Six layers in 40 bytes: only with runs that feed each other.
    problem = budget_problems.chain(6)
    plan = greedy.Start(problem).solve(40, _STYLE)
    self.assertLessEqual(plan.peak_bytes, 40)
    fed = [(u, b) for u, b in plan.events if plan.has(u - 1, b)]
    self.assertNotEmpty(fed)

  def test_looks_into_so_many_closures_at_most(self):
    problem = budget_problems.residual_chain(24)
    floor = lower_bound.unavoidable_bytes(problem).num_bytes
    with _counted(closures.Closures, "_find") as found:
      plan = greedy.Start(problem).solve(floor, Style(depth=12))
      # Nothing fits; it was looked for 63 times a step before there was a most.
      self.assertGreater(plan.peak_bytes, floor)
      self.assertLess(found.call_count, 55 * problem.num_steps)
      found.reset_mock()
      limit = int(1.3 * floor)
      plan = greedy.Start(problem).solve(limit, Style(depth=12))
      self.assertLessEqual(plan.peak_bytes, limit)
      self.assertLess(found.call_count, 15 * problem.num_steps)

  def test_many_gaps_of_one_worth_are_not_all_looked_at(self):
    problem = budget_problems.residual_chain(300)
    limit = int(0.6 * Profile(problem).peak_bytes)
    with _counted(moves.MoveFinder, "find") as found:
      plan = greedy.Start(problem).solve(limit, Style(depth=2))
    self.assertLessEqual(plan.peak_bytes, limit)
    # 246 for each run of the plan, and as many runs, without a most.
    self.assertLen(plan.events, 304)
    self.assertLess(found.call_count, 150 * len(plan.events))

  def test_gaps_that_keep_the_same_inputs_are_joined_once(self):
    # Eight values of 10 bytes are made of eight inputs of 4 that nobody else
    # reads: only closing several gaps at once frees more than it keeps.
    problem = budget_problems.common_inputs(8, 8)
    with _counted(moves.MoveFinder, "find") as found:
      plan = greedy.Start(problem).solve(70, Style(depth=2))
    self.assertLessEqual(plan.peak_bytes, 70)
    joined = [c for c in found.call_args_list if len(c.args[1]) > 1]
    # Five numbers of gaps at two depths, not for each of the inputs.
    self.assertBetween(len(joined), 1, 10)

  def test_delete_keeps_the_limit(self):
    problem = budget_problems.chain(6)
    plan = Profile(problem, [(0, 11), (1, 10), (2, 9)])
    limit = 60
    greedy.delete(plan, limit)
    # Without any run 70 bytes are live at step 6: one run is enough.
    self.assertLen(plan.events, 1)
    self.assertLessEqual(plan.peak_bytes, limit)

  def test_clean_drops_runs_that_only_fed_what_nobody_reads(self):
    problem = budget_problems.chain(4)
    # Nobody reads a1 between steps 5 and 6, where it is made again, and only
    # that run reads what the run of a0 before step 5 makes.
    runs = [(0, 5), (1, 5), (0, 6), (1, 6), (0, 7)]
    plan = Profile(problem, runs)
    greedy.clean(plan)
    self.assertEqual(plan.events, ((0, 6), (0, 7), (1, 6)))


def _long_chain():
  """Forty layers of different sizes and costs."""
  problem = budget_problems.chain(40)
  sizes = [30 + 7 * (n * n % 11) for n in range(len(problem.values))]
  return dataclasses.replace(
    problem,
    values=tuple(
      dataclasses.replace(v, size_bytes=s)
      for v, s in zip(problem.values, sizes, strict=True)
    ),
    units=tuple(
      dataclasses.replace(u, seconds=1.0 + n * 3 % 7)
      for n, u in enumerate(problem.units)
    ),
  )


if __name__ == "__main__":
  absltest.main()
