"""Versions of a step under a byte limit: which is taken, and what it takes."""

import dataclasses
import functools
from unittest import mock

import blocks_cases
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import jaxmem
from jaxmem import cost, hook, scan, targets, variants
from jaxmem.limit_plan import LimitPlan

_OPTIONS = jaxmem.Options(effort="fast")


def _case():
  return blocks_cases.CASES["branches"]()


def _capture(request):
  _, args = _case()
  return variants.Capture(lambda fun: jax.jit(fun).lower(*args), None, request)


def _pick(request):
  step, args = _case()
  return variants.pick(
    step,
    lambda fun: jax.jit(fun).trace(*args),
    lambda fun: jax.jit(fun).lower(*args),
    None,
    request,
  )


def _planned(limit_fraction):
  """Returns a request, a module of its step, and a plan without edits."""
  request = hook.Request(options=_OPTIONS, limit_bytes=_limit(limit_fraction))
  capture = _capture(request)
  step, _ = _case()
  module = capture.module(step)
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
    request = hook.Request(options=_OPTIONS, limit_bytes=_limit(fraction))
    variant = _pick(request)
    self.assertLen(request.remembered, 1)
    step, _ = _case()
    module = _capture(request).module(variant.apply(step, request))
    anew = hook.Request(options=_OPTIONS, limit_bytes=_limit(fraction))
    outcomes = []
    for asked in (request, anew):
      with mock.patch.object(
        hook.LimitPlanner,
        "fit",
        autospec=True,
        side_effect=hook.LimitPlanner.fit,
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
    step, _ = _case()
    request.remember(module, "cpu", plan)
    self.assertIs(request.decide(capture.module(step), "cpu"), plan)

    def other(params, state, batch):
      return step(params, state, 2 * batch)

    for asked, change in (
      (capture.module(other), {}),
      (module, {"limit_bytes": _limit(1.0)}),
      (module, {"options": jaxmem.Options(effort="fast", min_gain=0.02)}),
    ):
      changed = dataclasses.replace(request, **change)
      self.assertIs(changed.remembered, request.remembered)
      with mock.patch.object(hook.Request, "planner") as planner:
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
      hook, "LimitPlanner", side_effect=hook.LimitPlanner
    ) as planner:
      jaxmem.plan(step, *args, memory_limit=_limit(1.0), options=_OPTIONS)
      self.assertEqual(planner.call_count, 1)


class ChoiceTest(absltest.TestCase):
  def test_the_cheapest_schedule_is_taken(self):
    limit = _limit(0.7)
    request = hook.Request(options=_OPTIONS, limit_bytes=limit)
    made = []
    original = variants.LimitPlanner

    def record(*args):
      made.append(original(*args))
      return made[-1]

    with mock.patch.object(hook, "LimitPlanner", side_effect=record):
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
    request = hook.Request(options=_OPTIONS, limit_bytes=_limit(1.0))
    capture = _capture(request)
    step, _ = _case()
    planner = capture.planner(capture.module(step))
    self.assertEqual(planner.estimate(_limit(1.0)), 0.0)
    estimate = planner.estimate(_limit(0.9))
    plan = planner.fit(_limit(0.9))
    self.assertGreater(estimate, 0.0)
    self.assertLess(estimate, 1.5 * plan.extra_s)
    self.assertEqual(planner.estimate(1000), float("inf"))
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
    kept, fused = (
      scan.rewrite_step(jaxpr, "all", rates, keep_bits=keep_bits)
      for keep_bits in (True, False)
    )
    self.assertEqual(
      [c.name for c in kept.dropped], [c.name for c in fused.dropped]
    )
    self.assertLess(fused.extra_seconds, kept.extra_seconds)


if __name__ == "__main__":
  absltest.main()
