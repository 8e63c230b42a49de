"""Tests of jaxmem.jit and jaxmem.plan, also where planning goes wrong."""

import dataclasses
import functools
import json
import pathlib
import re
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import record_modules
from absl.testing import absltest, parameterized
from jaxmem_hlo import compiler_hook
from watched import WatchedTest, arrays, branches, name_of

import jaxmem
from jaxmem import targets
from jaxmem.entry import memory
from jaxmem.step_planner import StepPlanner


class Callable:
  def __call__(self, x, y):
    return branches(x, y)


class WithMethod:
  scale = 2.0

  @functools.partial(jaxmem.jit, static_argnums=0)
  def step(self, x, y):
    return branches(x, y) * self.scale


class JitTest(WatchedTest):
  @parameterized.named_parameters(
    ("function", branches),
    ("lambda", lambda x, y: branches(x, y)),
    ("callable", Callable()),
    ("partial", functools.partial(branches)),
    ("bound", Callable().__call__),
    ("wrapped", functools.wraps(branches)(lambda x, y: branches(x, y))),
  )
  def test_every_kind_of_function_is_planned(self, function):
    x, y = arrays()
    expected = jax.jit(function)(x, y)
    self.assertEqual(jaxmem.jit(function)(x, y), expected)
    ((_, plan),) = self.plans
    self.assertTrue(plan.is_changed)

  def test_method(self):
    x, y = arrays()
    step = WithMethod()
    expected = jax.jit(lambda x, y: branches(x, y) * 2.0)(x, y)
    self.assertEqual(step.step(x, y), expected)
    self.assertLen(self.plans, 1)

  def test_decorator_without_and_with_arguments(self):
    @jaxmem.jit
    def plain(x, y):
      return branches(x, y)

    @jaxmem.jit(donate_argnums=0, options=jaxmem.Options(effort="fast"))
    def donating(x, y):
      return branches(x, y), x + 1

    x, y = arrays()
    expected = branches(x, y)
    np.testing.assert_allclose(plain(x, y), expected, rtol=1e-4)
    np.testing.assert_allclose(donating(x, y)[0], expected, rtol=1e-4)
    self.assertTrue(x.is_deleted())
    self.assertFalse(y.is_deleted())
    self.assertLen(self.plans, 2)

  def test_is_what_jax_jit_returns(self):
    x, y = arrays()
    ours, theirs = jaxmem.jit(branches), jax.jit(branches)
    self.assertIs(type(ours), type(theirs))
    self.assertEqual(ours.__doc__, theirs.__doc__)
    self.assertEqual(ours.eval_shape(x, y), theirs.eval_shape(x, y))
    self.assertEqual(ours.trace(x, y).out_info, theirs.trace(x, y).out_info)
    lowered = ours.lower(x, y)
    self.assertIsInstance(lowered, jax.stages.Lowered)
    # Nothing of jaxmem shows in names, profiles and messages.
    self.assertEqual(ours.__name__, "branches")
    self.assertEqual(name_of(lowered), "jit_branches")
    self.assertEqual(lowered.compile()(x, y), theirs(x, y))

  def test_calls_compile_once(self):
    x, y = arrays()
    step = jaxmem.jit(branches)
    for _ in range(3):
      step(x, y)
    self.assertLen(self.plans, 1)
    step(x[:8], y)  # Another shape is another program.
    self.assertLen(self.plans, 2)

  def test_composes_with_jax(self):
    x, y = arrays()
    step = jaxmem.jit(branches)
    expected = jax.jit(jax.grad(branches))(x, y)
    np.testing.assert_allclose(jax.grad(step)(x, y), expected, rtol=1e-3)
    stacked = jnp.stack([x, x])
    self.assertEqual(jax.vmap(step, (0, None))(stacked, y).shape, (2,))
    nested = jax.jit(lambda x: step(x, y))
    np.testing.assert_allclose(nested(x), step(x, y), rtol=1e-4)

  def test_the_plan_is_what_runs(self):
    pair = record_modules.compile_both(branches, arrays())
    self.assertLess(pair.planned_bytes, pair.baseline_bytes)
    self.assertEqual(pair.planned_bytes, pair.plan.planned_bytes)

  def test_options_have_programs_of_their_own(self):
    x, y = arrays()
    for options in (
      None,
      jaxmem.Options(),
      jaxmem.Options(min_gain=0.5),
      jaxmem.Options(effort="fast"),
      jaxmem.Options(remove_copies=False),
    ):
      jaxmem.jit(branches, options=options)(x, y)
    jax.jit(branches)(x, y)
    # The first two are alike.
    self.assertLen(self.plans, 4)

  def test_alike_functions_are_traced_and_planned_once(self):
    traces = []

    def step(x, y):
      traces.append(1)
      return branches(x, y)

    x, y = arrays()
    for _ in range(5):
      jaxmem.jit(step)(x, y)
    self.assertLen(traces, 1)
    self.assertLen(self.plans, 1)


class JitErrorTest(parameterized.TestCase):
  def both(self, function, *args, **kwargs):
    """Returns what calls under both raise."""
    errors = []
    for jit in (jax.jit, jaxmem.jit):
      try:
        jit(function)(*args, **kwargs)
      except Exception as error:
        errors.append(error)
    theirs, ours = errors
    self.assertIs(type(ours), type(theirs))
    return str(theirs), str(ours)

  def test_unknown_keyword(self):
    with self.assertRaisesRegex(
      TypeError, "unexpected keyword 'donate'.*donate_argnums"
    ):
      jaxmem.jit(branches, donate=0)
    with self.assertRaisesRegex(TypeError, "unexpected keyword 'effort'"):
      jaxmem.jit(effort="fast")

  @parameterized.parameters(3, "step")
  def test_not_callable(self, function):
    with self.assertRaisesRegex(TypeError, "fun must be callable, got"):
      jaxmem.jit(function)

  def test_bad_options(self):
    with self.assertRaisesRegex(ValueError, "effort must be 'fast'"):
      jaxmem.Options(effort="most")  # pyright: ignore
    with self.assertRaisesRegex(ValueError, r"fraction in \[0, 1\), got 1"):
      jaxmem.Options(min_gain=1)

  def test_wrong_shapes_are_jaxs_error(self):
    x, y = arrays()
    theirs, ours = self.both(branches, x, y[:8])
    self.assertEqual(ours, theirs)

  def test_missing_argument_is_jaxs_error(self):
    theirs, ours = self.both(branches, arrays()[0])
    self.assertEqual(ours, theirs)
    self.assertIn("missing 1 required positional argument: 'y'", ours)

  def test_not_an_array_is_jaxs_error(self):
    theirs, ours = self.both(branches, "x", 1)
    address = re.compile("0x[0-9a-f]+")
    self.assertEqual(address.sub("", ours), address.sub("", theirs))

  def test_a_branch_on_a_traced_value_is_jaxs_error(self):
    def step(x):
      return x if x.sum() > 0 else -x

    theirs, ours = self.both(step, jnp.ones(3))
    self.assertStartsWith(ours, theirs.splitlines()[0])
    self.assertIn("api_test.py", ours)

  def test_an_error_of_the_function_passes_through(self):
    def step(x):
      raise KeyError("mine")

    theirs, ours = self.both(step, jnp.ones(3))
    self.assertEqual(ours, theirs)

  def test_compiled_steps_refuse_other_shapes_as_jaxs_do(self):
    x, y = arrays()
    messages = []
    for jit in (jax.jit, jaxmem.jit):
      compiled = jit(branches).lower(x, y).compile()
      with self.assertRaises(TypeError) as context:
        compiled(x[:8], y)
      messages.append(str(context.exception))
    self.assertEqual(*messages)


class PlanTest(parameterized.TestCase):
  @functools.cached_property
  def plan(self):
    return jaxmem.plan(branches, *arrays())

  def test_measures_both(self):
    plan = self.plan
    pair = record_modules.compile_both(branches, arrays())
    self.assertEqual(plan.baseline_temp_bytes, pair.baseline_bytes)
    self.assertEqual(plan.temp_bytes, pair.planned_bytes)
    self.assertEqual(plan.model_error, 0)
    self.assertLessEqual(plan.lower_bound_bytes, plan.temp_bytes)
    self.assertEqual(plan.argument_bytes, 2 * 48 * 48 * 4)
    self.assertEqual(plan.output_bytes, 4)
    self.assertEqual(plan.total_bytes, 2 * 48 * 48 * 4 + 4 + plan.temp_bytes)
    self.assertEqual(plan.saved_bytes, pair.baseline_bytes - plan.temp_bytes)
    self.assertIn(plan.status, ("optimal", "feasible"))

  def test_layouts_and_order(self):
    for layout in (self.plan.before, self.plan.after):
      at_peak = layout.at_peak()
      self.assertNotEmpty(at_peak)
      sizes = [b.size_bytes for b in at_peak]
      self.assertEqual(sizes, sorted(sizes, reverse=True))
      for buffer in layout.buffers:
        self.assertLess(buffer.start, buffer.end)
        self.assertLessEqual(buffer.end, layout.num_steps)
    # Everything at the peak lies inside the arena.
    after = self.plan.after.at_peak()
    top = max(b.offset_bytes + b.size_bytes for b in after)
    self.assertLessEqual(top, self.plan.temp_bytes)
    self.assertLen(set(self.plan.order), len(self.plan.order))

  def test_json_round_trip(self):
    text = self.plan.to_json()
    again = jaxmem.Plan.from_json(text)
    self.assertEqual(again, self.plan)
    self.assertEqual(again.to_json(), text)
    folder = self.enter_context(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, "plan.json")
    self.plan.save(path)
    self.assertEqual(path.read_text(), text)

  @parameterized.parameters(
    "",
    "{}",
    "[]",
    "3",
    '{"format": 999}',
    '{"format": 1, "name": "x"}',
    "not json",
  )
  def test_not_a_plan(self, text):
    with self.assertRaisesRegex(ValueError, "Not a plan written by"):
      jaxmem.Plan.from_json(text)

  def test_json_with_a_field_too_many_or_too_few(self):
    fields = json.loads(self.plan.to_json())
    with self.assertRaisesRegex(ValueError, "Not a plan written by"):
      jaxmem.Plan.from_json(json.dumps({**fields, "colour": "red"}))
    del fields["temp_bytes"]
    with self.assertRaisesRegex(ValueError, "Not a plan written by"):
      jaxmem.Plan.from_json(json.dumps(fields))

  def test_text(self):
    text = str(self.plan)
    self.assertStartsWith(text, "branches on cpu: ")
    for line in ("temporaries", "lower bound", "whole program", "at the peak"):
      self.assertIn(line, text)
    self.assertNotIn("model error", text)
    self.assertIn("watched.py:", text)
    wrong = dataclasses.replace(
      self.plan, predicted_temp_bytes=self.plan.temp_bytes + 3, num_pinned=2
    )
    self.assertIn("model error   +3 bytes", str(wrong))
    self.assertIn("left in place 2", str(wrong))

  def test_a_step_without_temporaries(self):
    plan = jaxmem.plan(lambda x: x + 1, jnp.ones(4))
    self.assertEqual(plan.temp_bytes, 0)
    self.assertIn("0 B -> 0 B", str(plan))
    self.assertEqual(jaxmem.Plan.from_json(plan.to_json()), plan)

  def test_shapes_static_and_keyword_arguments(self):
    def step(state, depth, x, *, scale):
      for _ in range(depth):
        x = jnp.tanh(x @ state)
      return state + x * scale, x.sum()

    shape = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    plan = jaxmem.plan(
      step, shape, 3, shape, scale=2.0, static_argnums=1, donate_argnums=0
    )
    self.assertEqual(plan.alias_bytes, 32 * 32 * 4)
    self.assertEqual(plan.name, "step")

  def test_memory_limit(self):
    total = self.plan.total_bytes
    for limit in (total, f"{total}B", "1GiB", float(total)):
      plan = jaxmem.plan(branches, *arrays(), memory_limit=limit)
      self.assertEqual(plan.total_bytes, total)

  @parameterized.parameters("24G", "many", -1, 0, "0.5", "150%", 1.5, True)
  def test_bad_limits_are_refused_before_compiling(self, limit):
    compiled = mock.Mock(side_effect=AssertionError)
    with (
      mock.patch.object(StepPlanner, "plan", compiled),
      self.assertRaisesRegex(ValueError, "memory_limit must be"),
    ):
      jaxmem.plan(branches, *arrays(), memory_limit=limit)

  @parameterized.parameters("50%", 0.5, "auto")
  def test_a_share_is_one_of_the_pool_here(self, limit):
    plan = jaxmem.plan(branches, *arrays(), memory_limit=limit)
    budget = plan.budget
    assert budget is not None and budget.share is not None
    share = budget.share
    self.assertEqual(share.pool_bytes, memory.pool_bytes(jax.devices()[0]))
    self.assertEqual(share.written, str(limit))
    self.assertIsNone(share.device_bytes)
    if limit != "auto":
      self.assertEqual(budget.limit_bytes, share.pool_bytes // 2)
    self.assertIn(f"({limit} of jax's pool of ", str(plan))
    self.assertEqual(jaxmem.Plan.from_json(plan.to_json()), plan)

  @parameterized.parameters(({},), ({"effort": "fast"},), (3,))
  def test_options_of_another_type(self, options):
    message = r"options must be jaxmem.Options, got .*Options\(effort="
    for use in (
      lambda: jaxmem.plan(branches, *arrays(), options=options),
      lambda: jaxmem.jit(branches, options=options),
      lambda: jaxmem.enable(options=options),
      lambda: jaxmem.max_batch(lambda _: (branches, ()), options=options),
    ):
      with self.assertRaisesRegex(TypeError, message):
        use()

  def test_unknown_target(self):
    with self.assertRaisesRegex(ValueError, "target must be one of .*'h300'"):
      jaxmem.plan(branches, *arrays(), target="h300")

  @parameterized.parameters(jax.jit, jaxmem.jit)
  def test_jitted_functions_are_planned_as_they_are(self, jit):
    def step(x, y):
      return branches(x, y), x + 1

    plan = jaxmem.plan(jit(step, donate_argnums=0), *arrays())
    expected = jaxmem.plan(step, *arrays(), donate_argnums=0)
    self.assertEqual(plan.temp_bytes, expected.temp_bytes)
    self.assertEqual(plan.baseline_temp_bytes, expected.baseline_temp_bytes)
    self.assertLess(plan.temp_bytes, plan.baseline_temp_bytes)
    self.assertEqual(plan.alias_bytes, expected.alias_bytes)
    self.assertEqual(plan.name, "step")
    self.assertEqual(
      [advice.status for advice in plan.donation],
      [advice.status for advice in expected.donation],
    )
    with self.assertRaisesRegex(TypeError, "donate_argnums is for functions"):
      jaxmem.plan(jit(step), *arrays(), donate_argnums=0)

  def test_xlas_own_plan_is_compared_with_whatever_is_planned_here(self):
    expected = jaxmem.plan(branches, *arrays())
    jitted, limited = (
      jax.jit(branches),
      jaxmem.jit(branches, memory_limit="1MB"),
    )
    with jaxmem.enable(min_bytes=0):
      jitted(*arrays())
      for step in (branches, jitted, limited):
        limited(*arrays())
        plan = jaxmem.plan(step, *arrays())
        self.assertEqual(plan.baseline_temp_bytes, expected.baseline_temp_bytes)
        self.assertEqual(plan.temp_bytes, expected.temp_bytes)

  def test_not_callable(self):
    with self.assertRaisesRegex(TypeError, "fun must be callable, got 3"):
      jaxmem.plan(3)  # pyright: ignore[reportArgumentType]

  def test_errors_of_the_step_pass_through(self):
    x, y = arrays()
    with self.assertRaisesRegex(TypeError, "dot_general"):
      jaxmem.plan(branches, x, y[:8])

  def test_leaves_no_handler_behind(self):
    before = set(compiler_hook._handlers)
    jaxmem.plan(lambda x: jnp.sin(x @ x) @ x, jnp.ones((8, 8)))
    with self.assertRaises(ZeroDivisionError):
      jaxmem.plan(lambda x: x / (1 // 0), jnp.ones(3))
    self.assertEqual(set(compiler_hook._handlers), before)

  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed"
  )
  def test_for_a_device_that_is_not_here(self):
    plan = jaxmem.plan(branches, *arrays(), target="h200", memory_limit="1%")
    self.assertEqual(plan.target, "h200")
    self.assertEqual(plan.model_error, 0)
    self.assertLessEqual(plan.temp_bytes, plan.baseline_temp_bytes)
    assert plan.budget is not None
    # jax takes 75 % of the card, of which 1 % is 1.06 GiB.
    pool_bytes = (targets.get("h200").memory_bytes or 0) * 3 // 4
    self.assertEqual(plan.budget.limit_bytes, pool_bytes // 100)
    self.assertIn(
      "1.06 GiB (1% of jax's pool of 106 GiB, 75 % of the device's 141 GiB)",
      str(plan),
    )
    self.assertEqual(jaxmem.Plan.from_json(plan.to_json()), plan)


if __name__ == "__main__":
  absltest.main()
