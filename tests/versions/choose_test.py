"""Versions of a step under a byte limit: which is taken, and what it takes."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from drop_problems import saving
from version_cases import (
  OPTIONS,
  limit_of,
  limited_case,
  module_of,
  outcome_of,
  pick_version,
)

import jaxmem
from benchmarks import held_out
from jaxmem import cost, step_planner, targets
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.planning import (
  DecidedModule,
  DecidedModules,
  LimitPlan,
  Request,
)
from jaxmem.planning import request as request_module
from jaxmem.versions import compiled_version, knapsack
from jaxmem.versions.scan.levels import make_level
from jaxmem.versions.scan.problem import make_problem


def _planned(limit_fraction):
  """Returns a request, a module of its step, and a plan without edits."""
  request = Request(options=OPTIONS, limit_bytes=limit_of(limit_fraction))
  module = module_of(request)
  return request, module, request.planner(module, "cpu").fit(limit_of(1.0))


class DecidedTest(parameterized.TestCase):
  @parameterized.parameters(1.0, 0.5, 0.05)
  def test_what_is_decided_is_what_planning_anew_finds(self, fraction):
    request = Request(options=OPTIONS, limit_bytes=limit_of(fraction))
    version, decided = pick_version(request)
    known = DecidedModules()
    assert decided is not None
    known.add(decided)
    module = module_of(request, version.step)
    outcomes = []
    for given in (known, DecidedModules()):
      with mock.patch.object(
        request_module.LimitPlanner,
        "fit",
        autospec=True,
        side_effect=request_module.LimitPlanner.fit,
      ) as fit:
        try:
          planned = request.decide(module, "cpu", given)
          plan = planned.decision
          assert isinstance(plan, LimitPlan)
          outcomes.append((plan.edits, plan.base.orders, plan.planned_bytes))
          outcomes[-1] += (planned.module.to_bytes(),)
        except jaxmem.InfeasibleError as error:
          outcomes.append(str(error))
      self.assertEqual(fit.call_count, given is not known)
    self.assertEqual(outcomes[0], outcomes[1])

  def test_other_modules_are_planned(self):
    request, module, plan = _planned(0.5)
    step, args = limited_case()
    known = DecidedModules()
    known.add(DecidedModule.of(module, "cpu", plan.decision))
    again = request.decide(module_of(request), "cpu", known)
    self.assertIs(again.decision, plan.decision)

    def other(params, state, batch):
      return step(params, state, 2 * batch)

    another = module_of(request, TracedStep(jax.jit(other).trace(*args)))
    for asked, platform in ((another, "cpu"), (module, "cuda")):
      with mock.patch.object(Request, "planner") as planner:
        request.decide(asked, platform, known)
      planner.assert_called_once()

  def test_few_wait(self):
    request, module, plan = _planned(1.0)
    known = DecidedModules()
    for number in range(20):
      known.add(
        DecidedModule(fingerprint=b"%d" % number, outcome=plan.decision)
      )
    known.add(DecidedModule.of(module, "cpu", plan.decision))
    self.assertLess(len(known._outcomes), 10)
    # The latest does.
    again = request.decide(module, "cpu", known)
    self.assertIs(again.decision, plan.decision)

  def test_a_proof_is_planned_for_when_xla_shows_the_module(self):
    # To compare versions, less effort is enough.
    options = jaxmem.Options(effort="prove")
    _, decided = pick_version(
      Request(options=options, limit_bytes=limit_of(1.0))
    )
    self.assertIsNone(decided)

  def test_a_plan_plans_each_module_once(self):
    step, args = limited_case()
    with mock.patch.object(
      request_module, "LimitPlanner", side_effect=request_module.LimitPlanner
    ) as planner:
      plan = jaxmem.plan(
        step, *args, memory_limit=limit_of(1.0), options=OPTIONS
      )
      plan.verify()
      self.assertEqual(planner.call_count, 1)

  def test_versions_that_xla_cannot_compile_change_no_error(self):
    step, args = limited_case()
    written = []
    module = ScheduleCapture.module

    def fails(schedules, version):
      if any(version is not each for each in written):
        raise jax.errors.JaxRuntimeError("INTERNAL: No supported config found")
      written.append(version)
      return module(schedules, version)

    with (
      mock.patch.object(ScheduleCapture, "module", fails),
      self.assertRaisesRegex(jaxmem.InfeasibleError, "No plan of"),
    ):
      jaxmem.plan(step, *args, memory_limit=limit_of(0.05), options=OPTIONS)
    self.assertNotEmpty(written)

  def test_a_frontier_is_of_what_xla_can_compile(self):
    step, args = limited_case()
    plan = jaxmem.plan(step, *args, options=OPTIONS)
    every = plan.frontier([limit_of(1.0)])
    error = jax.errors.JaxRuntimeError("INTERNAL: No supported config found")
    # The step as it is written has another way.
    with mock.patch.object(compiled_version, "compile_version") as fails:
      fails.side_effect = error
      fewer = plan.frontier([limit_of(1.0)])
    fails.assert_called()
    self.assertEqual(len(fewer.points), len(every.points))

  def test_an_impossible_limit_ends_before_the_compile(self):
    step, args = limited_case()
    limit = limit_of(0.05)
    with (
      mock.patch.object(step_planner, "handling") as handling,
      self.assertRaises(jaxmem.InfeasibleError),
    ):
      jaxmem.plan(step, *args, memory_limit=limit, options=OPTIONS)
    handling.assert_not_called()


def _sharded_step():
  """A step whose edits seem dear in one view of what can be adjacent."""
  params = [(np.zeros((256, 1024), np.float32),) * 2 for _ in range(6)]

  def loss(params, x):
    for up, down in params:
      x = x + jnp.tanh(x @ up) @ down.T
    return jnp.mean(x**2)

  def step(params, x):
    grads = jax.lax.pmean(jax.grad(loss)(params, x), "data")
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((1,), ("data",), axis_types=auto)
  step = jax.shard_map(
    step, mesh=mesh, in_specs=(jax.P(), jax.P("data")), out_specs=jax.P()
  )
  x = np.zeros((512, 256), np.float32)
  return TracedStep(jax.jit(step).trace(params, x))


class ChoiceTest(absltest.TestCase):
  def test_the_cheapest_schedule_is_taken(self):
    self._check_cheapest(limit_of(0.7))

  def test_the_cheapest_schedule_is_taken_inside_of_shard_map(self):
    traced = _sharded_step()
    request = Request(options=OPTIONS)
    planner = request.planner(module_of(request, traced), "cpu")
    self._check_cheapest(int(0.965 * planner.total_bytes), traced)

  def _check_cheapest(self, limit, traced=None):
    request = Request(options=OPTIONS, limit_bytes=limit)
    made = []
    original = request_module.LimitPlanner

    def record(*args):
      made.append(original(*args))
      return made[-1]

    with mock.patch.object(request_module, "LimitPlanner", side_effect=record):
      taken = outcome_of(request, traced)
    assert isinstance(taken, LimitPlan)
    fitting = []
    for planner in made:
      try:
        fitting.append(planner.fit(limit).decision.schedule_s)
      except jaxmem.InfeasibleError:
        continue
    self.assertGreater(len(made), 1)
    self.assertEqual(taken.schedule_s, min(fitting))

  def test_estimates_are_close_and_say_what_fits(self):
    request = Request(options=OPTIONS, limit_bytes=limit_of(1.0))
    planner = request.planner(module_of(request), "cpu")
    self.assertEqual(planner.promise(limit_of(1.0)).edits_s, 0.0)
    estimate = planner.promise(limit_of(0.9)).edits_s
    plan = planner.fit(limit_of(0.9)).decision
    self.assertLess(estimate, 1.5 * plan.extra_s)
    self.assertEqual(planner.promise(1000).edits_s, float("inf"))
    # An original that need not run any more is not counted.
    self.assertLessEqual(plan.schedule_s, 1.0001 * (plan.step_s + plan.extra_s))


class LoopsTest(absltest.TestCase):
  def test_fused_drops_are_cheaper(self):
    def loss(params, x):
      def layer(hidden, weights):
        return jnp.tanh(jnp.sin(hidden @ weights) * hidden), None

      hidden, _ = jax.lax.scan(layer, x, params)
      return jnp.mean(hidden**2)

    params = np.zeros((8, 16, 16), np.float32)
    x = np.zeros((512, 16), np.float32)
    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, x)
    rates = cost.for_target(targets.get("h200"))
    level = make_level(jaxpr)
    kept, fused = (
      make_problem(level, rates, is_fused=is_fused)
      for is_fused in (False, True)
    )
    drops = knapsack.choose(kept, None)
    self.assertNotEmpty(drops)
    self.assertEqual(drops, knapsack.choose(fused, None))
    kept_saving, fused_saving = saving(kept, drops), saving(fused, drops)
    assert kept_saving is not None and fused_saving is not None
    self.assertLess(fused_saving[1], kept_saving[1])


class NamedBytesTest(absltest.TestCase):
  @pytest.mark.slow
  def test_the_bytes_that_an_error_names_can_be_kept(self):
    # Its greedy runs end where their work does, and share what they find.
    step = held_out.STEPS["sam_mlp"]()
    shapes = jax.eval_shape(step.make_args)

    def compiled(limit):
      jitted = jaxmem.jit(step.function, memory_limit=limit, **step.jit_kwargs)
      return jitted.lower(*shapes).compile()

    with self.assertRaises(jaxmem.InfeasibleError) as caught:
      compiled(42_000_000)
    smallest_bytes = caught.exception.smallest_bytes
    memory = compiled(smallest_bytes).memory_analysis()
    taken = memory.argument_size_in_bytes + memory.output_size_in_bytes
    taken += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    self.assertLessEqual(taken, smallest_bytes)


if __name__ == "__main__":
  absltest.main()
