"""Bytes that no edits go below: bounds that real edits are held against."""

import dataclasses
import math

import budget_problems
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from tiny_hlo import f32, named

import jaxmem
from jaxmem import Options, cost
from jaxmem.budget import least_seconds, lower_bound
from jaxmem.budget.problem import BudgetProblem, Step, StoredValue, Unit
from jaxmem.budget.profile import Profile
from jaxmem.graph.hlo_graph import from_hlo
from jaxmem.planning.budget_problem import from_module
from jaxmem.planning.fit import LimitPlanner
from jaxmem.rewrite import apply_edits, recomputable
from jaxmem.rewrite.edits import Edits, Recompute, Value

_RATES = cost.DATA_SHEETS["h200"]


def _planner(module, rates=_RATES, **options):
  options = Options(effort="fast", verify=True, **options)
  device = cost.Device(platform="cuda", rates=rates)
  return LimitPlanner(module, device, options)


def _two_needs():
  """Bits that are made once are read at the end; b and c come in between."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(64), name="x")
  bits = main.op("rng", f32(1 << 20), x, x, name="bits")
  a = main.op("dot", f32(64), bits, x, name="a")
  b = main.op("dot", f32(1 << 20), a, name="b")
  c = main.op("dot", f32(1 << 20), b, name="c")
  d = main.op("dot", f32(64), c, name="d")
  e = main.op("dot", f32(64), d, name="e")
  main.op("dot", f32(1), e, bits, name="f")
  return builder.module(main)


class HostTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    # A link on which nobody ever waits.
    self.rates = dataclasses.replace(
      _RATES, to_host_bytes_per_s=1e18, from_host_bytes_per_s=1e18
    )

  def test_what_can_go_to_the_host_is_not_needed(self):
    planner = _planner(_two_needs(), self.rates)
    fixed_bytes = 4 * 64 + 4
    # Bits, b and c are 4 MiB each. Without the host all three are needed while
    # c runs: the random bits would be others the second time.
    loose = planner.fit(fixed_bytes + (13 << 20)).decision
    tight = planner.fit(fixed_bytes + (9 << 20)).decision
    self.assertLen(tight.edits.offloads, 1)
    # Versions of a step are compared by what is found in little time, however
    # far off plans without the host are.
    planner = _planner(_two_needs(), self.rates)
    self.assertIsNotNone(planner.find(fixed_bytes + (9 << 20)))
    self.assertLessEqual(tight.planned_bytes, 9 << 20)
    self.assertLessEqual(loose.lower_bound_bytes, tight.planned_bytes)
    # Arguments count as donated memory that is free now and then.
    self.assertGreaterEqual(tight.lower_bound_bytes, (8 << 20) - fixed_bytes)
    with self.assertRaises(jaxmem.InfeasibleError) as caught:
      planner.fit(fixed_bytes + (7 << 20))
    error = caught.exception
    self.assertLessEqual(
      error.lower_bound_bytes, fixed_bytes + tight.planned_bytes
    )
    self.assertEqual({b.size_bytes for b in error.buffers[:2]}, {4 << 20})

  def test_without_the_host_it_is(self):
    planner = _planner(_two_needs(), self.rates, offload=False)
    with self.assertRaises(jaxmem.InfeasibleError) as caught:
      planner.fit(4 * 64 + 4 + (9 << 20))
    bound = caught.exception.lower_bound_bytes
    self.assertGreaterEqual(bound, 12 << 20)


class MovedTest(absltest.TestCase):
  def test_a_step_may_move(self):
    # While a runs, x's copy and a are there, and the random bits are on their
    # way. Run again before its only reader, a is not made the first time: then
    # it never meets them.
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(64), name="x")
    bits = main.op("rng", f32(1 << 20), x, x, name="bits")
    main.op("dot", f32(1 << 20), x, name="a")
    b = main.op("dot", f32(64), bits, name="b")
    a = named(builder.module(main), "a").id
    main.op("dot", f32(1), a, b, name="c")
    module = builder.module(main)
    edits = Edits(
      recomputes=(
        Recompute(
          value=Value(instruction=named(module, "a").id),
          before=named(module, "c").id,
        ),
      )
    )
    edited = apply_edits(module, edits, "cuda")
    moved = AssignmentModel(edited, "cuda").temp_bytes()
    unmoved = AssignmentModel(module, "cuda").temp_bytes()
    self.assertGreater(unmoved, 8 << 20)
    self.assertLess(moved, 5 << 20)
    model = AssignmentModel(module, "cuda")
    entry = from_hlo(model, module.entry)
    rules = recomputable(module, model.analysis)
    problem = from_module(rules, entry, {}, "occupied")
    bound = lower_bound.unavoidable_bytes(problem)
    self.assertLessEqual(bound.num_bytes, moved)
    self.assertGreaterEqual(bound.num_bytes, 4 << 20)


def _overwritten():
  """A value of 10 bytes that steps 1 and 9 read; its input is gone at 5."""
  sizes = {0: 10, 3: 20, 7: 5}
  values = [
    StoredValue(
      name="x",
      size_bytes=1,
      producer=None,
      uses=(0,),
      overwritten_at=5,
    ),
    StoredValue(name="v", size_bytes=sizes[0], producer=0, uses=(1, 9)),
    StoredValue(name="early", size_bytes=sizes[3], producer=3, uses=(4,)),
    StoredValue(name="late", size_bytes=sizes[7], producer=7, uses=(8,)),
  ]
  units = (
    Unit(
      step=0,
      outputs=(1,),
      inputs=(0,),
      seconds=1.0,
      value=Value(instruction=100),
    ),
  )
  steps = tuple(Step(instruction=100 + s, name=f"s{s}") for s in range(10))
  return BudgetProblem(steps=steps, values=tuple(values), units=units)


class ProblemTest(parameterized.TestCase):
  def test_a_run_before_the_last_possible_step_counts(self):
    problem = _overwritten()
    # v and early take 30 bytes. If v is made again before step 5 it meets only
    # late: x and early take 21 bytes, v and late 15.
    self.assertEqual(Profile(problem).peak_bytes, 30)
    self.assertEqual(Profile(problem, [(0, 5)]).peak_bytes, 21)
    self.assertEqual(lower_bound.unavoidable_bytes(problem).num_bytes, 20)

  def test_seconds_count_a_run_before_the_last_possible_step(self):
    problem = _overwritten()
    # Step 3 has 30 bytes and needs 5 less: half of the run that takes v away.
    self.assertAlmostEqual(least_seconds(problem, 25), 0.5)

  def test_a_value_is_there_from_its_last_possible_run_on(self):
    problem = _overwritten()
    v, early, *_ = problem.values[1:]
    small = dataclasses.replace(early, size_bytes=3)
    values = (problem.values[0], v, small, problem.values[3])
    problem = dataclasses.replace(problem, values=values)
    # v and late take 15 bytes at step 7, whatever runs before step 5.
    self.assertEqual(least_seconds(problem, 14), math.inf)

  @parameterized.parameters(range(30))
  def test_no_plan_costs_less(self, seed):
    problem = budget_problems.random_problem(seed + 200, num_steps=7)
    plans = budget_problems.all_plans(problem, 2)
    peak = Profile(problem).peak_bytes
    for limit in {p for p, _, _ in plans if p < peak}:
      least = min(cost for peak, cost, _ in plans if peak <= limit)
      self.assertLessEqual(least_seconds(problem, limit), least + 1e-6)

  @parameterized.parameters(range(30))
  def test_no_plan_goes_below(self, seed):
    problem = budget_problems.random_problem(seed + 200, num_steps=7)
    lowest = min(p for p, _, _ in budget_problems.all_plans(problem, 2))
    bound = lower_bound.unavoidable_bytes(problem)
    self.assertLessEqual(bound.num_bytes, lowest)
    sizes = sum(problem.values[v].size_bytes for v in bound.values)
    extra = problem.steps[bound.step].extra_bytes
    self.assertLessEqual(bound.num_bytes, sizes + extra)


if __name__ == "__main__":
  absltest.main()
