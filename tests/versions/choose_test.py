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
from jaxmem import cost, targets
from jaxmem.compiler.capture import Capture
from jaxmem.planning import request as request_module
from jaxmem.planning.fit import LimitPlan
from jaxmem.planning.request import Request
from jaxmem.versions import choose, knapsack
from jaxmem.versions.scan.levels import make_level
from jaxmem.versions.scan.problem import make_problem

_OPTIONS = jaxmem.Options(effort="fast")


def _case():
  return blocks_cases.CASES["branches"]()


def _traced():
  step, args = _case()
  return jax.jit(step).trace(*args)


def _capture(request):
  return Capture(lambda traced: traced.lower(), None, request)


def _pick(request):
  return choose.pick(_traced(), _capture(request), request)


def _planned(limit_fraction):
  """Returns a request, a module of its step, and a plan without edits."""
  request = Request(options=_OPTIONS, limit_bytes=_limit(limit_fraction))
  capture = _capture(request)
  module = capture.module(_traced())
  return request, module, capture.planner(module).fit(_limit(1.0))


@functools.cache
def _limit(fraction):
  step, args = _case()
  plan = jaxmem.plan(step, *args, options=_OPTIONS)
  fixed_bytes = plan.total_bytes - plan.temp_bytes
  return fixed_bytes + int(fraction * plan.temp_bytes)


class RememberTest(parameterized.TestCase):
  @parameterized.parameters(1.0, 0.5, 0.05)
  def test_what_is_remembered_is_what_planning_anew_finds(self, fraction):
    request = Request(options=_OPTIONS, limit_bytes=_limit(fraction))
    variant = _pick(request)
    self.assertLen(request.remembered, 1)
    module = _capture(request).module(variant.traced)
    anew = Request(options=_OPTIONS, limit_bytes=_limit(fraction))
    outcomes = []
    for asked in (request, anew):
      with mock.patch.object(
        request_module.LimitPlanner,
        "fit",
        autospec=True,
        side_effect=request_module.LimitPlanner.fit,
      ) as fit:
        try:
          plan = asked.decide(module, "cpu")
          assert isinstance(plan, LimitPlan)
          outcomes.append((plan.edits, plan.base.orders, plan.planned_bytes))
        except jaxmem.InfeasibleError as error:
          outcomes.append(str(error))
      self.assertEqual(fit.call_count, asked is anew)
    self.assertEqual(outcomes[0], outcomes[1])

  def test_other_modules_limits_and_options_are_planned(self):
    request, module, plan = _planned(0.5)
    capture = _capture(request)
    step, args = _case()
    request.remember(module, "cpu", plan)
    self.assertIs(request.decide(capture.module(_traced()), "cpu"), plan)

    def other(params, state, batch):
      return step(params, state, 2 * batch)

    for asked, change in (
      (capture.module(jax.jit(other).trace(*args)), {}),
      (module, {"limit_bytes": _limit(1.0)}),
      (module, {"options": jaxmem.Options(effort="fast", min_gain=0.02)}),
    ):
      changed = dataclasses.replace(request, **change)
      self.assertIs(changed.remembered, request.remembered)
      with mock.patch.object(Request, "planner") as planner:
        changed.decide(asked, "cpu")
      planner.assert_called_once()

  def test_few_are_remembered(self):
    request, module, plan = _planned(1.0)
    for limit in range(20):
      changed = dataclasses.replace(request, limit_bytes=limit)
      changed.remember(module, "cpu", plan)
    self.assertLess(len(request.remembered), 10)
    # The latest are.
    self.assertIs(changed.decide(module, "cpu"), plan)

  def test_a_plan_plans_each_module_once(self):
    step, args = _case()
    with mock.patch.object(
      request_module, "LimitPlanner", side_effect=request_module.LimitPlanner
    ) as planner:
      jaxmem.plan(step, *args, memory_limit=_limit(1.0), options=_OPTIONS)
      self.assertEqual(planner.call_count, 1)


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
    with mock.patch.object(choose, "pick", side_effect=choose.pick) as pick:
      lowered = self.jitted.lower(*self.args, scale=2, mode="other")
    self.assertEqual(self.traces, ["other"])
    pick.assert_called_once()
    # The plan is remembered, though the version is traced from its jaxpr.
    with mock.patch.object(Request, "planner") as planner:
      compiled = lowered.compile()
    planner.assert_not_called()
    expected = jax.jit(self.step, static_argnames="mode")(
      *self.args, scale=2, mode="other"
    )
    results = compiled(*jax.tree.map(jnp.array, self.args), scale=2)
    jax.tree.map(np.testing.assert_array_equal, results, expected)

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
    original = Capture._compile
    with mock.patch.object(
      Capture, "_compile", autospec=True, side_effect=original
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
      _pick(request)
    (taken,) = request.remembered.values()
    assert isinstance(taken, LimitPlan)
    fitting = []
    for planner in made:
      try:
        fitting.append(planner.fit(limit).schedule_s)
      except jaxmem.InfeasibleError:
        continue
    self.assertGreater(len(made), 1)
    self.assertEqual(taken.schedule_s, min(fitting))

  def test_estimates_are_close_and_say_what_fits(self):
    request = Request(options=_OPTIONS, limit_bytes=_limit(1.0))
    capture = _capture(request)
    planner = capture.planner(capture.module(_traced()))
    self.assertEqual(planner.estimate(_limit(1.0)), 0.0)
    estimate = planner.estimate(_limit(0.9))
    plan = planner.fit(_limit(0.9))
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
    return mock.Mock(spec=LimitPlan, schedule_s=schedule_s)


class _Capture(Capture):
  """Blocks take what their equations take, times a factor."""

  def __init__(self, traced, total_bytes, edits_s, blocks_s):
    self.platform = "cpu"
    # Plans are not remembered.
    self.options = jaxmem.Options(effort="prove")
    self._written = traced
    self._planner = _Planner(total_bytes, 1.0, edits_s / total_bytes)
    self._blocks_s = blocks_s
    self.num_compiles = 0

  def module(self, traced) -> Any:
    self.num_compiles += 1
    return traced

  def planner(self, traced) -> Any:
    if traced is self._written:
      return self._planner
    return _Planner(self._planner.total_bytes // 4, 1.0 + self._blocks_s, 0.0)


class MonotoneTest(parameterized.TestCase):
  """A larger limit never costs more."""

  @parameterized.product(edits_s=(0.03, 0.2, 1.0), blocks_s=(0.008, 0.1, 0.4))
  def test_of_versions(self, edits_s, blocks_s):
    traced = _traced()
    total_bytes = 10**9
    before = float("inf")
    for limit in range(total_bytes // 3, total_bytes, total_bytes // 40):
      request = Request(options=_OPTIONS, limit_bytes=limit)
      capture = _Capture(traced, total_bytes, edits_s, blocks_s)
      variant = choose.pick(traced, capture, request)
      planner = capture.planner(variant.traced)
      seconds = planner.find(limit).schedule_s
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
        capture = _capture(request)
        planner = capture.planner(capture.module(traced))
      limit = int(share * planner.total_bytes)
      request = dataclasses.replace(request, limit_bytes=limit)
      choose.pick(traced, _capture(request), request)
      (plan,) = request.remembered.values()
      assert isinstance(plan, LimitPlan)
      self.assertGreaterEqual(plan.schedule_s, before)
      before = plan.schedule_s

  def test_few_versions_are_compiled(self):
    traced = _traced()

    def compiled(limit, edits_s, blocks_s):
      request = Request(options=_OPTIONS, limit_bytes=limit)
      capture = _Capture(traced, 1000, edits_s, blocks_s)
      choose.pick(traced, capture, request)
      return capture.num_compiles

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
