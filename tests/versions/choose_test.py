"""Versions of a step under a byte limit: which is taken, and what it takes."""

import dataclasses
import functools
from typing import Any
from unittest import mock

import blocks_cases
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import jaxmem
from benchmarks import zoo
from jaxmem import api, cost, step_planner, targets
from jaxmem.compiler import ScheduleCapture
from jaxmem.planning import (
  DecidedModule,
  DecidedModules,
  LimitPlan,
  PlannedModule,
  Request,
)
from jaxmem.planning import request as request_module
from jaxmem.versions import choose, knapsack
from jaxmem.versions.scan.levels import make_level
from jaxmem.versions.scan.problem import make_problem

_OPTIONS = jaxmem.Options(effort="fast")


def _case():
  return blocks_cases.CASES["branches"]()


def _traced():
  step, args = _case()
  return jax.jit(step).trace(*args)


def _module(request, traced=None):
  return ScheduleCapture(request).module(traced or _traced())


def _pick(request, traced=None):
  return choose.pick(traced or _traced(), ScheduleCapture(request), request)


def _outcome(request, traced=None):
  decided = _pick(request, traced)[1]
  assert decided is not None
  return decided.outcome


def _planned(limit_fraction):
  """Returns a request, a module of its step, and a plan without edits."""
  request = Request(options=_OPTIONS, limit_bytes=_limit(limit_fraction))
  module = _module(request)
  return request, module, request.planner(module, "cpu").fit(_limit(1.0))


@functools.cache
def _limit(fraction):
  step, args = _case()
  plan = jaxmem.plan(step, *args, options=_OPTIONS)
  fixed_bytes = plan.total_bytes - plan.temp_bytes
  return fixed_bytes + int(fraction * plan.temp_bytes)


class DecidedTest(parameterized.TestCase):
  @parameterized.parameters(1.0, 0.5, 0.05)
  def test_what_is_decided_is_what_planning_anew_finds(self, fraction):
    request = Request(options=_OPTIONS, limit_bytes=_limit(fraction))
    version, decided = _pick(request)
    known = DecidedModules()
    assert decided is not None
    known.add(decided)
    module = _module(request, version.traced)
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
    step, args = _case()
    known = DecidedModules()
    known.add(DecidedModule.of(module, "cpu", plan.decision))
    again = request.decide(_module(request), "cpu", known)
    self.assertIs(again.decision, plan.decision)

    def other(params, state, batch):
      return step(params, state, 2 * batch)

    another = _module(request, jax.jit(other).trace(*args))
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
    _, decided = _pick(Request(options=options, limit_bytes=_limit(1.0)))
    self.assertIsNone(decided)

  def test_a_plan_plans_each_module_once(self):
    step, args = _case()
    with mock.patch.object(
      request_module, "LimitPlanner", side_effect=request_module.LimitPlanner
    ) as planner:
      plan = jaxmem.plan(
        step, *args, memory_limit=_limit(1.0), options=_OPTIONS
      )
      plan.verify()
      self.assertEqual(planner.call_count, 1)

  def test_an_impossible_limit_ends_before_the_compile(self):
    step, args = _case()
    limit = _limit(0.05)
    with (
      mock.patch.object(step_planner, "handling") as handling,
      self.assertRaises(jaxmem.InfeasibleError),
    ):
      jaxmem.plan(step, *args, memory_limit=limit, options=_OPTIONS)
    handling.assert_not_called()


class TraceTest(absltest.TestCase):
  """The step of the user is traced once, and keeps what jit was told."""

  def setUp(self):
    super().setUp()
    self.traces = []
    step, self.args = _case()

    def counted(params, state, batch, *, scale=1.0, mode="plain"):
      self.traces.append(mode)
      params, state, loss = step(params, state, batch * scale)
      return {"params": params, "state": state}, loss

    self.step = counted
    self.jitted = jaxmem.jit(
      counted,
      memory_limit=_limit(0.5),
      options=_OPTIONS,
      static_argnames="mode",
      donate_argnums=(0, 1),
    )

  def test_jit_traces_once(self):
    with mock.patch.object(api, "pick", side_effect=api.pick) as pick:
      lowered = self.jitted.lower(*self.args, scale=2, mode="other")
    self.assertEqual(self.traces, ["other"])
    pick.assert_called_once()
    # The plan waits, though the version is traced from its jaxpr.
    with mock.patch.object(Request, "planner") as planner:
      compiled = lowered.compile()
    planner.assert_not_called()
    expected = jax.jit(self.step, static_argnames="mode")(
      *self.args, scale=2, mode="other"
    )
    results = compiled(*jax.tree.map(jnp.array, self.args), scale=2)
    jax.tree.map(np.testing.assert_array_equal, results, expected)

  def test_functions_that_are_jitted_alike_keep_their_plans(self):
    step, args = _case()
    lowered = []
    for scale in (2.0, 3.0):
      jitted = jaxmem.jit(
        lambda p, s, b, scale=scale: step(p, s, b * scale),
        memory_limit=_limit(0.5),
        options=_OPTIONS,
      )
      lowered.append(jitted.lower(*args))
    with mock.patch.object(Request, "planner") as planner:
      for each in lowered:
        each.compile()
    planner.assert_not_called()

  def test_names_and_donation_stay(self):
    mesh = jax.make_mesh((1,), ("data",))
    kwargs = {
      "donate_argnums": (0, 1),
      "in_shardings": jax.NamedSharding(mesh, jax.P()),
    }
    limited = functools.partial(
      jaxmem.jit, memory_limit=_limit(0.5), options=_OPTIONS
    )
    lowered, plain = (
      jit(self.step, **kwargs).lower(*self.args) for jit in (limited, jax.jit)
    )
    ours, theirs = (
      [
        line.split("loc(#")[0]
        for line in each.as_text(debug_info=True).splitlines()
        if "@main" in line
      ]
      for each in (lowered, plain)
    )
    self.assertEqual(ours, theirs)
    self.assertIn("params[0]['b']", ours[0])
    self.assertIn("tf.aliasing_output", ours[0])
    self.assertIn("sharding", ours[0])
    self.assertEqual(lowered.args_info, plain.args_info)

  def test_plan_traces_once(self):
    plan = jaxmem.plan(
      self.step,
      *self.args,
      memory_limit=_limit(0.5),
      options=_OPTIONS,
      donate_argnums=(0, 1),
    )
    self.assertEqual(self.traces, ["plain"])
    assert plan.budget is not None
    self.assertGreater(plan.budget.num_dropped, 0)
    self.assertGreater(plan.verify().num_reads, 0)
    self.assertEqual(self.traces, ["plain"])

  def test_plan_compiles_the_step_as_written_once(self):
    original = ScheduleCapture._compile
    with mock.patch.object(
      ScheduleCapture, "_compile", autospec=True, side_effect=original
    ) as compiled:
      jaxmem.plan(
        self.step, *self.args, memory_limit=_limit(1.0), options=_OPTIONS
      )
    compiled.assert_called_once()

  def test_values_of_outer_functions(self):
    step, args = _case()

    @jax.jit
    def outer(factor, params, state, batch):
      inner = jaxmem.jit(
        lambda p, s, b: step(p, s, b * factor),
        memory_limit=_limit(0.5),
        options=_OPTIONS,
      )
      return inner(params, state, batch)

    params, state, batch = args
    jax.tree.map(
      np.testing.assert_array_equal,
      outer(2.0, *args),
      jax.jit(step)(params, state, batch * 2.0),
    )

  def test_without_jit(self):
    step, args = _case()
    ours = jaxmem.jit(step, memory_limit=_limit(0.5), options=_OPTIONS)
    with jax.disable_jit():
      jax.tree.map(np.testing.assert_array_equal, ours(*args), step(*args))

  def test_derivatives_from_outside(self):
    @jax.custom_vjp
    def doubled(x):
      return jnp.sin(x)

    doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * x,))
    for limit in ("1GB", "64B"):
      ours = jaxmem.jit(lambda x: doubled(x) ** 2, memory_limit=limit)
      gradient = jax.grad(ours)(3.0)
      self.assertAlmostEqual(gradient, 2 * np.sin(3.0) * 2 * 3.0, places=5)


class ChoiceTest(absltest.TestCase):
  def test_the_cheapest_schedule_is_taken(self):
    limit = _limit(0.7)
    request = Request(options=_OPTIONS, limit_bytes=limit)
    made = []
    original = choose.LimitPlanner

    def record(*args):
      made.append(original(*args))
      return made[-1]

    with mock.patch.object(request_module, "LimitPlanner", side_effect=record):
      taken = _outcome(request)
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
    request = Request(options=_OPTIONS, limit_bytes=_limit(1.0))
    planner = request.planner(_module(request), "cpu")
    self.assertEqual(planner.estimate(_limit(1.0)), 0.0)
    estimate = planner.estimate(_limit(0.9))
    plan = planner.fit(_limit(0.9)).decision
    self.assertGreater(estimate, 0.0)
    self.assertLess(estimate, 1.5 * plan.extra_s)
    self.assertEqual(planner.estimate(1000), float("inf"))
    # An original that need not run any more is not counted.
    self.assertLessEqual(plan.schedule_s, 1.0001 * (plan.step_s + plan.extra_s))


class _Planner:
  """Edits cost what a table says; see `MonotoneTest`."""

  def __init__(self, total_bytes, step_s, seconds_per_byte):
    self.total_bytes = total_bytes
    self.step_s = step_s
    self._seconds_per_byte = seconds_per_byte

  def estimate(self, limit_bytes):
    return max(0, self.total_bytes - limit_bytes) * self._seconds_per_byte

  def find(self, limit_bytes):
    schedule_s = self.step_s + self.estimate(limit_bytes)
    plan = mock.Mock(spec=LimitPlan, schedule_s=schedule_s)
    return mock.Mock(spec=PlannedModule, decision=plan)


class _Schedules(ScheduleCapture):
  """Blocks take what their equations take, times a factor.

  Modules are traced steps here; see `MonotoneTest`.
  """

  def __init__(self, traced, total_bytes, edits_s, blocks_s):
    self.platform = "cpu"
    self._written = traced
    self._planner = _Planner(total_bytes, 1.0, edits_s / total_bytes)
    self._blocks_s = blocks_s
    self.num_compiles = 0

  def module(self, traced) -> Any:
    self.num_compiles += 1
    return traced

  def planner(self, traced, platform) -> Any:
    if traced is self._written:
      return self._planner
    return _Planner(self._planner.total_bytes // 4, 1.0 + self._blocks_s, 0.0)

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
    traced = _traced()
    total_bytes = 10**9
    before = float("inf")
    for limit in range(total_bytes // 3, total_bytes, total_bytes // 40):
      schedules = _Schedules(traced, total_bytes, edits_s, blocks_s)
      version = schedules.pick(limit)
      planner = schedules.planner(version.traced, "cpu")
      seconds = planner.find(limit).decision.schedule_s
      # Edits that cost less than half a per cent are not looked at further.
      self.assertLessEqual(seconds, max(before, 1.005))
      before = seconds

  def test_of_a_transformer(self):
    step = zoo.build("gpt2_small", 8, size="tiny")
    traced = jax.jit(step.function, **step.jit_kwargs).trace(*step.args)
    planner = None
    before = 0.0
    for share in (0.9, 0.8, 0.7, 0.6):
      request = Request(options=_OPTIONS)
      if planner is None:
        planner = request.planner(_module(request, traced), "cpu")
      limit = int(share * planner.total_bytes)
      request = dataclasses.replace(request, limit_bytes=limit)
      plan = _outcome(request, traced)
      assert isinstance(plan, LimitPlan)
      self.assertGreaterEqual(plan.schedule_s, before)
      before = plan.schedule_s

  def test_few_versions_are_compiled(self):
    traced = _traced()

    def compiled(limit, edits_s, blocks_s):
      schedules = _Schedules(traced, 1000, edits_s, blocks_s)
      schedules.pick(limit)
      return schedules.num_compiles

    # It fits; edits cost a hair; blocks cost too much if they keep nothing.
    self.assertEqual(compiled(1000, 1.0, 0.1), 1)
    self.assertEqual(compiled(999, 1.0, 0.1), 1)
    self.assertEqual(compiled(900, 0.2, 10.0), 2)


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
    kept, fused = (
      knapsack.choose(
        make_problem(make_level(jaxpr), rates, is_fused=is_fused)[0], None
      )
      for is_fused in (False, True)
    )
    self.assertNotEmpty(kept.drops)
    self.assertEqual(kept.drops, fused.drops)
    self.assertLess(fused.seconds, kept.seconds)


if __name__ == "__main__":
  absltest.main()
