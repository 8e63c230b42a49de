"""Byte limits: steps that are made to fit, and those that cannot be."""

import functools
import json
import pathlib
import pickle
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import record_modules
import small_steps
from absl.testing import absltest, parameterized

import jaxmem
from jaxmem import Options
from jaxmem.errors import NeededBuffer

_OPTIONS = Options(effort="fast", verify=True)


def _step(params, x, key):
  """A deep network whose activations are most of its memory, with dropout."""

  def loss(params):
    hidden = x
    for i, weights in enumerate(params):
      hidden = jnp.tanh(hidden @ weights)
      mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, hidden.shape)
      hidden = jnp.where(mask, hidden, 0)
    return jnp.mean(hidden**2)

  value, grads = jax.value_and_grad(loss)(params)
  return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


def _arguments():
  params = [0.2 * small_steps.normal(i, 32, 32) for i in range(3)]
  return params, small_steps.normal(9, 512, 32), jax.random.key(3)


@functools.cache
def _unlimited():
  return jaxmem.plan(_step, *_arguments(), donate_argnums=0, options=_OPTIONS)


def _limit(fraction):
  """Leaves a fraction of the temporaries that the best order needs."""
  plan = _unlimited()
  fixed_bytes = plan.total_bytes - plan.temp_bytes
  return fixed_bytes + int(fraction * plan.temp_bytes)


def _plan_anew(limit):
  return jaxmem.plan(
    _step, *_arguments(), memory_limit=limit, options=_OPTIONS, donate_argnums=0
  )


_plan = functools.cache(_plan_anew)


def _budget(plan):
  assert plan.budget is not None
  return plan.budget


class PlanTest(parameterized.TestCase):
  @parameterized.parameters(0.9, 0.8, 0.7)
  def test_what_xla_measures_fits(self, fraction):
    plan = _plan(_limit(fraction))
    self.assertLessEqual(plan.total_bytes, _limit(fraction))
    self.assertEqual(plan.model_error, 0)
    budget = _budget(plan)
    # The step is changed before XLA sees it, or afterwards.
    self.assertGreater(budget.num_recomputed + budget.num_dropped, 0)
    self.assertGreater(budget.extra_s, 0)
    # No more than the edits cost: copies are removed, originals dropped.
    self.assertBetween(budget.change, -0.2, budget.extra + 1e-6)
    self.assertLessEqual(plan.lower_bound_bytes, plan.temp_bytes)
    self.assertIn("operations run twice", str(plan))
    self.assertEqual(jaxmem.Plan.from_json(plan.to_json()), plan)

  def test_nothing_else_changes_where_the_order_fits(self):
    plan = _plan(_limit(1.0))
    self.assertEqual(plan.order, _unlimited().order)
    self.assertEqual(_budget(plan).num_recomputed, 0)
    self.assertEqual(_budget(plan).extra, 0)
    self.assertIn("without recomputing", str(plan))

  @pytest.mark.slow
  def test_the_most_effort_bounds_what_the_limit_takes(self):
    options = Options(effort="prove")
    limit = _limit(0.8)
    plan = jaxmem.plan(
      _step,
      *_arguments(),
      memory_limit=limit,
      options=options,
      donate_argnums=0,
    )
    budget = _budget(plan)
    assert budget.least_schedule_s is not None
    self.assertBetween(budget.least_schedule_s, 0.0, budget.schedule_s)
    # Only with edits does it fit, and they cannot be had for nothing.
    self.assertGreater(budget.num_recomputed + budget.num_dropped, 0)
    self.assertRegex(str(plan), r"and at least [+-]\d+\.\d % with any edits")
    self.assertEqual(jaxmem.Plan.from_json(plan.to_json()), plan)
    quick = _plan(limit)
    self.assertIsNone(_budget(quick).least_schedule_s)
    self.assertNotIn("with any edits", str(quick))

  @pytest.mark.slow
  def test_a_larger_limit_costs_no_more(self):
    plans = [_plan(_limit(f)) for f in (0.7, 0.8, 0.9, 1.0)]
    extra = [_budget(plan).extra_s for plan in plans]
    self.assertEqual(extra, sorted(extra, reverse=True))

  @pytest.mark.slow
  def test_the_smallest_limit_is_feasible_and_less_is_not(self):
    with self.assertRaisesRegex(
      jaxmem.InfeasibleError, "No plan of _step fits .*Needed at once"
    ) as context:
      _plan(_unlimited().argument_bytes + 1000)
    error = context.exception
    self.assertTrue(error.buffers)
    self.assertBetween(
      error.lower_bound_bytes, _unlimited().argument_bytes, error.smallest_bytes
    )
    plan = _plan(error.smallest_bytes)
    self.assertLessEqual(plan.total_bytes, error.smallest_bytes)
    with self.assertRaises(jaxmem.InfeasibleError) as again:
      _plan(error.lower_bound_bytes - 1)
    self.assertEqual(again.exception.smallest_bytes, error.smallest_bytes)

  def test_the_error_passes_from_process_to_process(self):
    needed = NeededBuffer(name="dot.1", size_bytes=8)
    error = jaxmem.InfeasibleError(
      "No plan.", smallest_bytes=2, lower_bound_bytes=1, buffers=(needed,)
    )
    error.add_note("At batch 8.")
    passed = pickle.loads(pickle.dumps(error))
    self.assertEqual(str(passed), "No plan.")
    self.assertEqual(vars(passed), vars(error))

  def test_a_step_that_computes_nothing(self):
    number = jnp.float32(2.0)
    jitted = jaxmem.jit(lambda x: x, donate_argnums=0, memory_limit=4)
    self.assertEqual(jitted(number + 1.0), 3.0)
    plan = jaxmem.plan(lambda x: x, number, donate_argnums=0, memory_limit=4)
    self.assertEqual((plan.total_bytes, plan.gap), (4, 0.0))
    with self.assertRaisesRegex(jaxmem.InfeasibleError, "takes 4 B"):
      jaxmem.plan(lambda x: x, number, donate_argnums=0, memory_limit=3)

  def test_a_step_without_temporaries_has_no_smaller_plan(self):
    def step(x):
      return 2.0 * x

    x = jnp.ones((64, 64))
    with self.assertRaises(jaxmem.InfeasibleError) as context:
      jaxmem.plan(step, x, memory_limit=20_000, options=_OPTIONS)
    # 64 * 64 float32 go in and come out.
    self.assertEqual(context.exception.smallest_bytes, 2 * 16_384)

  @parameterized.parameters(20_000, 32_768)
  def test_arguments_that_are_too_large_by_themselves(self, limit):
    def step(x):
      return jnp.tanh(x @ x).sum()

    x = jnp.ones((128, 128))  # 64 KiB
    with self.assertRaisesRegex(
      jaxmem.InfeasibleError,
      "its arguments and outputs alone take 64.0 KiB, which no plan changes",
    ) as context:
      jaxmem.plan(step, x, memory_limit=limit, options=_OPTIONS)
    self.assertEmpty(context.exception.buffers)

  def test_deterministic(self):
    first, second = _plan(_limit(0.75)), _plan_anew(_limit(0.75))
    self.assertEqual(first.order, second.order)


class JitTest(parameterized.TestCase):
  @parameterized.parameters(0.9, 0.7)
  def test_bit_equal_over_several_steps(self, fraction):
    limit = _limit(fraction)
    theirs = jax.jit(_step, donate_argnums=0)
    ours = jaxmem.jit(
      _step, memory_limit=limit, options=_OPTIONS, donate_argnums=0
    )
    params, x, key = _arguments()
    expected, found = (jax.tree.map(jnp.array, params) for _ in range(2))
    for _ in range(3):
      expected, their_loss = theirs(expected, x, key)
      found, our_loss = ours(found, x, key)
      np.testing.assert_array_equal(our_loss, their_loss)
      jax.tree.map(np.testing.assert_array_equal, found, expected)

  def test_what_runs_fits(self):
    step = jaxmem.jit(
      _step, memory_limit=_limit(0.7), options=_OPTIONS, donate_argnums=0
    )
    memory = step.lower(*_arguments()).compile().memory_analysis()
    total = (
      memory.argument_size_in_bytes
      + memory.output_size_in_bytes
      - memory.alias_size_in_bytes
      + memory.temp_size_in_bytes
    )
    self.assertLessEqual(total, _limit(0.7))

  def test_a_step_that_cannot_fit_does_not_compile(self):
    step = jaxmem.jit(_step, memory_limit="300KB", options=_OPTIONS)
    with self.assertRaisesRegex(
      jaxmem.InfeasibleError, "No plan of _step fits"
    ) as caught:
      step(*_arguments())
    self.assertGreater(caught.exception.smallest_bytes, 300_000)

  @parameterized.parameters("80%", 0.8, "auto")
  def test_shares_are_of_what_the_device_offers(self, limit):
    step = jaxmem.jit(_step, memory_limit=limit, options=_OPTIONS)
    jax.tree.map(
      np.testing.assert_array_equal,
      step(*_arguments()),
      jax.jit(_step)(*_arguments()),
    )

  @pytest.mark.slow
  def test_limits_have_programs_of_their_own(self):
    sizes = [
      record_modules.temp_bytes(
        jaxmem.jit(_step, memory_limit=limit, options=_OPTIONS)
        .lower(*_arguments())
        .compile()
      )
      for limit in (None, _limit(0.9), _limit(0.7))
    ]
    self.assertEqual(sizes, sorted(sizes, reverse=True))
    self.assertLen(set(sizes), 3)


class ScanTest(parameterized.TestCase):
  def test_what_a_scan_stacks_is_dropped(self):
    arguments = (
      0.2 * small_steps.normal(0, 8, 16, 16),
      small_steps.normal(1, 512, 16),
    )
    free = jaxmem.plan(small_steps.stacking_scan, *arguments, options=_OPTIONS)
    limit = free.total_bytes - free.temp_bytes // 3
    plan = jaxmem.plan(
      small_steps.stacking_scan,
      *arguments,
      memory_limit=limit,
      options=_OPTIONS,
    )
    self.assertLessEqual(plan.total_bytes, limit)
    self.assertGreater(_budget(plan).num_dropped, 0)
    # XLA's own plan is that of the step as it is written, not of what stacks
    # less, in figures and in pictures.
    self.assertEqual(plan.baseline_temp_bytes, free.baseline_temp_bytes)
    self.assertEqual((plan.model_error, plan.baseline_model_error), (0, 0))
    self.assertEqual(plan.before, free.before)
    self.assertEqual(plan.baseline_timing, free.baseline_timing)
    self.assertGreater(plan.lower_bound_bytes, 0)
    self.assertEqual(plan.status, "feasible")
    self.assertNotIn("not modelled", str(plan))
    self.assertGreater(_budget(plan).dropped_bytes, 0)
    self.assertIn("residuals", str(plan))
    ours = jaxmem.jit(
      small_steps.stacking_scan, memory_limit=limit, options=_OPTIONS
    )
    theirs = jax.jit(small_steps.stacking_scan)
    found, expected = arguments[0], arguments[0]
    for _ in range(2):
      found, _ = ours(found, arguments[1])
      expected, _ = theirs(expected, arguments[1])
      # The loop's kernels are others, so the last bits may differ.
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class FrontierTest(parameterized.TestCase):
  def test_exposed_time_is_drawn_beside_what_is_added(self):
    points = [
      jaxmem.report.Point(
        limit_bytes=size, total_bytes=size, extra_s=extra_s, exposed_s=0.2
      )
      for size, extra_s in ((2000, -0.1), (1000, 0.3))
    ]
    found = jaxmem.report.Frontier(
      name="step",
      target="8 x h200",
      step_s=1.0,
      exposed_s=0.25,
      points=tuple(points),
    )
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, "frontier.html")
    found.save_html(path)
    page = path.read_text(encoding="utf-8")
    self.assertEqual(page.count("<polyline"), 2)
    self.assertIn("extra and (dashed) exposed time, -10.0 to 30.0 %", page)
    # The highest and the lowest of all shares end the axis.
    self.assertIn('points="660.0,340.0 360.0,60.0"', page)
    self.assertIn('points="660.0,130.0 360.0,130.0"', page)

  def test_fewer_bytes_cost_more_time(self):
    plan = _unlimited()
    limits = [_limit(f) for f in (1.0, 0.8, 0.7)]
    found = plan.frontier([100, *limits])
    self.assertEqual([p.limit_bytes for p in found.points], [*limits, 100])
    *fitting, impossible = found.points
    self.assertIsNone(impossible.total_bytes)
    for point, limit in zip(fitting, limits, strict=True):
      self.assertLessEqual(point.total_bytes or limit + 1, limit)
    extra = [p.extra_s for p in fitting]
    self.assertEqual(extra, sorted(extra))
    self.assertEqual(extra[0], 0)
    self.assertIn("no plan", str(found))
    self.assertIn("run twice", str(found))
    self.assertNotIn("exposed", str(found))

  @pytest.mark.slow
  def test_versions_that_a_limit_would_take_count(self):
    def loss(params, x):
      def layer(x, weights):
        return jnp.sin(jnp.tanh(x @ weights)), None

      return jnp.sum(jax.lax.scan(layer, x, params)[0] ** 2)

    shapes = (
      jax.ShapeDtypeStruct((16, 32, 32), jnp.float32),
      jax.ShapeDtypeStruct((512, 32), jnp.float32),
    )
    step = jax.grad(loss)
    plan = jaxmem.plan(step, *shapes)
    # What the loop stacks is out of reach once XLA has scheduled it.
    limit = plan.total_bytes - plan.temp_bytes // 3
    (point,) = plan.frontier([limit]).points
    assert point.total_bytes is not None
    limited = jaxmem.plan(step, *shapes, memory_limit=limit)
    assert limited.budget is not None
    self.assertGreater(limited.budget.num_dropped, 0)
    self.assertLessEqual(limited.total_bytes, limit)
    self.assertLessEqual(point.total_bytes, limit)

  @pytest.mark.slow
  def test_the_page_draws_every_point(self):
    found = _unlimited().frontier([_limit(0.8), _limit(1.0)])
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "frontier.html")
      found.save_html(path)
      page = path.read_text(encoding="utf-8")
    self.assertEqual(page.count("<circle"), 2)
    self.assertNotIn("http", page)
    self.assertLen(json.loads(found.to_json())["points"], 2)

  def test_a_plan_from_a_file_has_no_program(self):
    plan = jaxmem.Plan.from_json(_unlimited().to_json())
    with self.assertRaisesRegex(RuntimeError, "knows no program"):
      plan.frontier()


if __name__ == "__main__":
  absltest.main()
