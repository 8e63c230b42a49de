"""Versions of a step under a byte limit: which is taken, and what it takes."""

import contextlib
import dataclasses
from typing import Any
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
  traced_case,
)

import jaxmem
from benchmarks import held_out, zoo
from jaxmem import cost, step_planner, targets
from jaxmem.compiler import ScheduleCapture, TracedStep
from jaxmem.planning import (
  DecidedModule,
  DecidedModules,
  LimitPlan,
  PlannedModule,
  Request,
)
from jaxmem.planning import request as request_module
from jaxmem.planning.aim import ANYTHING
from jaxmem.planning.promise import Promise
from jaxmem.versions import choose, knapsack
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
    original = choose.LimitPlanner

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


class _Planner:
  """Edits cost what a table says; see `MonotoneTest`."""

  moved_bytes = 0.0
  hides = False
  own = cost.StepTime(seconds=1.0)

  def __init__(self, total_bytes, step_s, seconds_per_byte):
    self.total_bytes = self.xla_bytes = total_bytes
    self.fixed_bytes = 0
    self.step_s = step_s
    self.num_planned = 0
    self.saved_s = 0.0
    self._seconds_per_byte = seconds_per_byte

  def promise(self, limit_bytes):
    missing = max(0, self.total_bytes - limit_bytes)
    edits_s = missing * self._seconds_per_byte
    return Promise(room_bytes=limit_bytes, edits_s=edits_s, mapping_s=0.0)

  def may_gain_by_less(self, again_s):
    return again_s < self.saved_s

  def sketched_s(self, limit_bytes, wanted):
    seconds = self.step_s + self.promise(limit_bytes).edits_s
    return seconds if seconds < wanted.worse_s else None

  def find(self, limit_bytes, wanted=ANYTHING):
    schedule_s = self.sketched_s(limit_bytes, wanted)
    if schedule_s is None:
      return None
    self.num_planned += 1
    plan = mock.Mock(spec=LimitPlan, schedule_s=schedule_s)
    return mock.Mock(spec=PlannedModule, decision=plan)


class _Schedules(ScheduleCapture):
  """Blocks take what their equations take, times a factor.

  Modules are traced steps here; see `MonotoneTest`.
  """

  def __init__(self, traced, total_bytes, edits_s, blocks_s):
    super().__init__(Request(options=jaxmem.Options()))
    self.platform = "cpu"
    self._written = traced
    self.as_written = _Planner(total_bytes, 1.0, edits_s / total_bytes)
    self.in_blocks = _Planner(total_bytes // 4, 1.0 + blocks_s, 0.0)
    self.num_compiles = 0

  def module(self, traced) -> Any:
    self.num_compiles += 1
    return traced

  def planner(self, traced, platform) -> Any:
    return self.as_written if traced is self._written else self.in_blocks

  @contextlib.contextmanager
  def searching(self, limit_bytes):
    request = Request(options=OPTIONS, limit_bytes=limit_bytes)
    with mock.patch.object(Request, "planner", side_effect=self.planner):
      as_written = choose.Version(step=self._written)
      yield choose._VersionSearch(as_written, self, request)

  def pick(self, limit_bytes):
    # With another effort, what was decided would be kept by its module.
    options = jaxmem.Options(effort="prove")
    request = Request(options=options, limit_bytes=limit_bytes)
    with mock.patch.object(Request, "planner", side_effect=self.planner):
      return choose.pick(self._written, self, request)[0]


class MonotoneTest(parameterized.TestCase):
  """A larger limit never costs more."""

  @parameterized.product(edits_s=(0.03, 0.2, 1.0), blocks_s=(0.008, 0.1, 0.4))
  def test_of_versions(self, edits_s, blocks_s):
    traced = traced_case()
    total_bytes = 10**9
    before = float("inf")
    for limit in range(total_bytes // 3, total_bytes, total_bytes // 40):
      schedules = _Schedules(traced, total_bytes, edits_s, blocks_s)
      version = schedules.pick(limit)
      planner = schedules.planner(version.step, "cpu")
      plan = planner.find(limit)
      assert plan is not None
      seconds = plan.decision.schedule_s
      self.assertLessEqual(seconds, before)
      before = seconds

  @parameterized.parameters((0.3, True), (0.0, False))
  def test_where_the_device_waits_less_is_faster(self, waiting_s, recomputes):
    traced, total_bytes = traced_case(), 10**9
    schedules = _Schedules(traced, total_bytes, edits_s=0.0, blocks_s=-0.1)
    own = cost.StepTime(seconds=1.0, waiting_s=waiting_s)
    schedules.as_written.own = own
    # XLA's own plan keeps this limit: else nothing is asked for.
    version = schedules.pick(total_bytes)
    self.assertEqual(version.choice is not None, recomputes)

  @parameterized.parameters((0.96, 1), (0.8, 0))
  def test_what_refining_would_hardly_reach_is_compiled(self, share, expected):
    schedules = _Schedules(traced_case(), 10**9, edits_s=0.5, blocks_s=0.1)
    limit, edits_s, planner = 10**9 // 2, 0.25, schedules.as_written
    # A sketch that no refining makes any better.
    sketch = mock.patch.object(planner, "sketched_s", return_value=1 + edits_s)
    with schedules.searching(limit) as search, sketch:
      seconds = 1 + share * edits_s - search._device.mapping_s(limit)
      self.assertTrue(search._is_promising(seconds, limit))
    self.assertEqual(planner.num_planned, expected)

  @pytest.mark.slow
  def test_of_a_transformer(self):
    step = zoo.build("gpt2_small", 8, size="tiny")
    jitted = jax.jit(step.function, **step.jit_kwargs)
    traced = TracedStep(jitted.trace(*step.args))
    planner = None
    before = 0.0
    for share in (0.9, 0.8, 0.7, 0.6):
      request = Request(options=OPTIONS)
      if planner is None:
        planner = request.planner(module_of(request, traced), "cpu")
      limit = int(share * planner.total_bytes)
      request = dataclasses.replace(request, limit_bytes=limit)
      plan = outcome_of(request, traced)
      assert isinstance(plan, LimitPlan)
      self.assertGreaterEqual(plan.schedule_s, before)
      before = plan.schedule_s

  @pytest.mark.slow
  def test_of_blocks_that_keep_what_needs_no_mapping(self):
    def step(layers, x):
      def loss(layers):
        y = x
        for left, right in layers:
          y = jax.lax.cond(
            jnp.max(y) > 0,
            lambda y, left, right: y + jax.nn.gelu(y @ left) @ right,
            lambda y, left, right: y,
            *(y, left, right),
          )
        return jnp.mean(y**2)

      return jax.grad(loss)(layers)

    left = jax.ShapeDtypeStruct((64, 256), jnp.float32)
    right = jax.ShapeDtypeStruct((256, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((2048, 64), jnp.float32)
    traced = TracedStep(jax.jit(step).trace([(left, right)] * 6, x))
    small, large = (
      outcome_of(Request(options=OPTIONS, limit_bytes=limit << 20), traced)
      for limit in (30, 50)
    )
    assert isinstance(small, LimitPlan) and isinstance(large, LimitPlan)
    self.assertLessEqual(large.schedule_s, small.schedule_s)

  def test_few_versions_are_compiled(self):
    traced = traced_case()

    def compiled(limit, edits_s, blocks_s):
      schedules = _Schedules(traced, 1000, edits_s, blocks_s)
      schedules.pick(limit)
      return schedules.num_compiles

    # It fits; all blocks are tried; they cost too much if they keep nothing.
    self.assertEqual(compiled(1000, 1.0, 0.1), 1)
    self.assertEqual(compiled(999, 0.2, 10.0), 2)
    self.assertEqual(compiled(900, 0.2, 10.0), 2)

  @parameterized.parameters(
    (1500, 1.0, True), (1000, 1.0, True), (1500, 0.0, False), (2000, 1.0, False)
  )
  def test_what_fits_is_left_for_what_is_faster(self, limit, saved_s, is_tried):
    schedules = _Schedules(traced_case(), 1000, 0.2, -0.1)
    schedules.as_written.xla_bytes = 2000
    schedules.as_written.saved_s = saved_s
    version = schedules.pick(limit)
    # Not where mapping less cannot save what runs again, and not where XLA's
    # own plan keeps the limit.
    self.assertEqual(version.choice is not None, is_tried)
    self.assertEqual(schedules.num_compiles > 1, is_tried)

  def test_what_a_sketch_says_is_slower_is_not_planned(self):
    traced = traced_case()
    for edits_s, blocks_s in ((1.0, 0.01), (0.01, 1.0)):
      schedules = _Schedules(traced, 1000, edits_s, blocks_s)
      schedules.pick(500)
      planned = [
        p.num_planned for p in (schedules.as_written, schedules.in_blocks)
      ]
      self.assertEqual(planned, [edits_s < blocks_s, blocks_s < edits_s])


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
