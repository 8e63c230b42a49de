"""Planned compiles: what a limit means, and what happens if something fails."""

import contextlib
import gc
import itertools
import warnings
import weakref
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import record_modules
from absl.testing import absltest, parameterized
from jax._src import compiler
from jaxmem_hlo import compiler_hook
from jaxmem_hlo.compiler_hook import PlanningWarning

import jaxmem
from jaxmem.compiler import jax_doors
from jaxmem.entry import PLANNED, one_compile, planned_compiles
from jaxmem.planning import Request

_OPTIONS = jaxmem.Options(effort="fast")
_SCALE = 1.0


def _step(params, x):
  """A step of a network whose activations take most of its memory."""

  def loss(params):
    hidden = x
    for weights in params:
      hidden = jnp.tanh(hidden @ weights) * _SCALE
    return jnp.mean(hidden**2)

  value, grads = jax.value_and_grad(loss)(params)
  return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def _arguments():
  generator = np.random.default_rng(0)

  def normal(*shape):
    return jnp.asarray(generator.normal(size=shape), jnp.float32)

  return [0.3 * normal(16, 16) for _ in range(6)], normal(256, 16)


def _total_bytes(compiled):
  memory = compiled.memory_analysis()
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
  )


def _limit(share=0.7):
  compiled = jax.jit(_step).lower(*_arguments()).compile()
  temp_bytes = record_modules.temp_bytes(compiled)
  return _total_bytes(compiled) - int((1 - share) * temp_bytes)


def _limited(fun=_step, **kwargs):
  return jaxmem.jit(fun, memory_limit=_limit(), options=_OPTIONS, **kwargs)


class _FreshTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    jax_doors.install()
    jax.clear_caches()
    self.enter_context(mock.patch.object(PLANNED, "_warned", set()))


class LimitTest(_FreshTest):
  def assert_equal_to_jax(self, found, arguments=None):
    expected = jax.jit(_step)(*(arguments or _arguments()))
    jax.tree.map(np.testing.assert_array_equal, found, expected)

  def test_arguments_on_an_explicit_mesh(self):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    params, x = _arguments()
    params = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
    x = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
    self.assert_equal_to_jax(_limited()(params, x), (params, x))
    with jax.set_mesh(mesh):
      self.assert_equal_to_jax(_limited()(params, x), (params, x))

  def test_the_limit_is_for_the_program_of_one_device(self):
    # Over four devices a step fits as it is: nothing may run twice.
    mesh = jax.make_mesh((4,), ("data",))
    params, x = _arguments()
    params = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
    x = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
    ours = _limited().lower(params, x).compile()
    theirs = jax.jit(_step).lower(params, x).compile()
    self.assertLess(_total_bytes(theirs), _limit())
    self.assertEqual(
      (ours.cost_analysis() or {})["flops"],
      (theirs.cost_analysis() or {})["flops"],
    )

  def test_a_changed_global_is_seen_after_clear_cache(self):
    step = _limited()
    self.assert_equal_to_jax(step(*_arguments()))
    with mock.patch.dict(globals(), _SCALE=2.0):
      step.clear_cache()
      jax.clear_caches()
      self.assert_equal_to_jax(step(*_arguments()))

  def test_debug_nans_say_where(self):
    step = _limited(lambda p, x: _step(p, x / 0.0 * 0.0))
    with jax.debug_nans(True), self.assertRaises(FloatingPointError):
      step(*_arguments())

  def test_vmap_and_an_outer_jit_are_not_planned(self):
    params, x = _arguments()
    num_records = len(PLANNED.records.all())
    outer = jax.jit(jax.vmap(_limited(), in_axes=(None, 0)))
    with self.assertWarnsRegex(PlanningWarning, "becomes a part of that"):
      found = outer(params, x[None])
    expected = jax.jit(jax.vmap(_step, in_axes=(None, 0)))(params, x[None])
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    self.assertLen(PLANNED.records.all(), num_records)

  def test_eval_shape_compiles_nothing(self):
    with mock.patch.object(planned_compiles, "pick") as pick:
      jax.eval_shape(_limited(), *_arguments())
      jax.jit(_limited()).trace(*_arguments())
    pick.assert_not_called()

  def test_an_impossible_limit_is_an_infeasible_error(self):
    step = jaxmem.jit(_step, memory_limit=1000, options=_OPTIONS)
    for _ in range(2):
      with self.assertRaisesRegex(jaxmem.InfeasibleError, "No plan of _step"):
        step(*_arguments())

  def test_a_program_that_is_refused_is_let_go(self):
    def refuse():
      """Is refused, with an array on the stack; returns what watches it."""
      held = np.ones((8, 8))
      step = jaxmem.jit(_step, memory_limit=1000, options=_OPTIONS)
      with contextlib.suppress(jaxmem.InfeasibleError):
        step(*_arguments())
      return weakref.ref(held)

    watch = refuse()
    jax.clear_caches()
    gc.collect()
    self.assertIsNone(watch())

  def test_what_xla_makes_larger_does_not_run(self):
    with (
      mock.patch.object(planned_compiles, "program_bytes", return_value=1e9),
      self.assertRaisesRegex(jaxmem.InfeasibleError, "but XLA made 954 MiB"),
    ):
      _limited()(*_arguments())

  def test_exports_are_not_planned(self):
    exported = jax.export.export(_limited())(*_arguments())
    self.assert_equal_to_jax(exported.call(*_arguments()))

  @parameterized.parameters(None, "1GiB")
  def test_exports_with_symbolic_shapes(self, limit):
    rows, columns = jax.export.symbolic_shape("rows, columns")
    shape = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
    with jaxmem.enable(limit, min_bytes=0) as enabled:
      exported = jax.export.export(jax.jit(lambda x: jnp.tanh(x).T))(shape)
      self.assertEmpty(enabled.records)
      given = jnp.ones((3, 4))
      np.testing.assert_array_equal(exported.call(given), jnp.tanh(given).T)
      self.assertNotEmpty(enabled.records)


class FaultTest(_FreshTest):
  """With a limit, what goes wrong is an error; without one, a warning."""

  @parameterized.parameters(
    (planned_compiles, "pick"), (Request, "planner"), (Request, "read")
  )
  def test_a_limit_is_never_dropped_in_silence(self, owner, name):
    error = ZeroDivisionError("of the planner")
    with (
      mock.patch.object(owner, name, side_effect=error),
      self.assertRaisesRegex(
        jaxmem.PlanningError, "could not be planned: ZeroDivisionError: of the"
      ),
    ):
      _limited()(*_arguments())
    # Nothing of it is remembered.
    _limited()(*_arguments())

  @parameterized.parameters(KeyboardInterrupt, SystemExit)
  def test_interrupts_stay_what_they_are(self, kind):
    for make in (_limited, jaxmem.jit):
      with (
        mock.patch.object(Request, "decide", side_effect=kind()),
        mock.patch.object(Request, "planner", side_effect=kind()),
        self.assertRaises(kind),
      ):
        make(_step)(*_arguments())

  def test_without_a_limit_one_warning_for_each_function(self):
    def other(params, x):
      return _step(params, 2 * x)

    with (
      mock.patch.object(Request, "decide", side_effect=ValueError("broken")),
      warnings.catch_warnings(record=True) as caught,
    ):
      warnings.simplefilter("always")
      for fun in (_step, _step, other):
        jax.clear_caches()
        jaxmem.jit(fun)(*_arguments())
    found = [w for w in caught if w.category is PlanningWarning]
    self.assertLen(found, 2)
    record = PLANNED.records.all()[-1]
    self.assertEqual(record.why_not, "ValueError: broken")

  def test_never_larger_than_xlas_own(self):
    def branches(a, b):
      chosen = jax.lax.cond(
        a[0, 0] > b[0, 0],
        lambda: (a + b) * 2 + b,
        lambda: b.at[0].set(a[1]),
      )
      return chosen + b, jnp.cumsum(chosen, 1)

    def clipped(a, b):
      a, b = jax.lax.optimization_barrier((a, b))
      chosen = jax.lax.cond(
        b[0, 0] > a[0, 0],
        lambda: jnp.clip(b + b, -3, 3) * 2 + b,
        lambda: a.at[0].set(b[1]),
      )
      total = jnp.cumsum(jnp.clip(chosen, -3, 3), 1) * 0.1
      both = jnp.clip(jnp.clip(chosen, -3, 3) + b, -3, 3)
      return both, jnp.clip(total, -3, 3)

    a = jnp.ones((8, 8))
    for fun, donated in itertools.product(
      (branches, clipped), ((0, 1), (0,), ())
    ):
      ours, theirs = (
        record_modules.temp_bytes(
          jit(fun, donate_argnums=donated).lower(a, 2 * a).compile()
        )
        for jit in (jaxmem.jit, jax.jit)
      )
      self.assertLessEqual(ours, theirs)
      plan = jaxmem.plan(fun, a, 2 * a, donate_argnums=donated)
      self.assertLessEqual(plan.temp_bytes, theirs)
      if plan.model_error or plan.baseline_model_error:
        self.assertNotEqual(plan.status, "optimal")

  def test_a_program_with_branches_is_compiled_once(self):
    def branches(a, b):
      chosen = jax.lax.cond(
        a[0, 0] > b[0, 0], lambda: (a + b) * 2 + b, lambda: b.at[0].set(a[1])
      )
      return chosen + b, jnp.cumsum(chosen, 1)

    lowered = jaxmem.jit(branches).lower(jnp.ones((8, 8)), jnp.ones((8, 8)))
    with mock.patch.object(
      compiler,
      "backend_compile_and_load",
      side_effect=compiler.backend_compile_and_load,
    ) as compile_one:
      compiled = lowered.compile()
    compile_one.assert_called_once()
    self.assertIn("conditional", compiled.as_text())
    self.assertEqual(PLANNED.records.all()[-1].why_not, "")

  def test_a_plan_that_turns_out_larger_is_not_run(self):
    theirs = jax.jit(_step).lower(*_arguments()).compile()
    with mock.patch.object(
      one_compile.Compile, "should_compare", return_value=True
    ):
      ours = jaxmem.jit(_step).lower(*_arguments()).compile()
    self.assertLessEqual(
      record_modules.temp_bytes(ours), record_modules.temp_bytes(theirs)
    )


class HookTest(_FreshTest):
  def test_others_compiles_are_not_shown_to_the_hook(self):
    jaxmem.jit(_step)(*_arguments())
    self.assertFalse(compiler_hook.is_installed())
    with mock.patch.object(compiler_hook, "_tag") as tag:
      jax.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(3))
    tag.assert_not_called()

  def test_a_module_that_cannot_be_serialized_compiles_beside_a_plan(self):
    failed = []
    compile_one = compiler.backend_compile_and_load

    def fails_when_shown(*args):
      if compiler_hook.is_installed():
        failed.append(compiler_hook._platforms.copy())
        if compiler_hook._platforms:
          raise jax.errors.JaxRuntimeError("INTERNAL: failed to serialize")
      return compile_one(*args)

    with (
      mock.patch.object(compiler, "backend_compile_and_load", fails_when_shown),
      compiler_hook.installed(),
    ):
      result = jax.jit(lambda x: jnp.cos(x) - 1)(jnp.zeros(3))
    np.testing.assert_array_equal(result, np.zeros(3))
    # Each module failed once while it was shown, and then compiled.
    self.assertNotEmpty(failed)
    self.assertEqual(failed[1::2], [set()] * (len(failed) // 2))


def _fails_when_shown(compile_one):
  """Returns a compiler that shows no module to the hook, as above 2 GiB."""

  def compile_or_fail(*args):
    if compiler_hook._platforms:
      raise jax.errors.JaxRuntimeError("INTERNAL: Failed to serialize HLO")
    return compile_one(*args)

  return compile_or_fail


class TooLargeTest(_FreshTest):
  """XLA shows no module of 2 GiB or more."""

  def setUp(self):
    super().setUp()
    failing = _fails_when_shown(compiler.backend_compile_and_load)
    self.enter_context(
      mock.patch.object(compiler, "backend_compile_and_load", failing)
    )

  def test_without_a_limit_xlas_own_plan_runs_with_one_warning(self):
    expected = jax.jit(_step)(*_arguments())
    jax.clear_caches()
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      for _ in range(2):
        found = jaxmem.jit(_step)(*_arguments())
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        jax.clear_caches()
    (warning,) = (w for w in caught if w.category is PlanningWarning)
    self.assertRegex(
      str(warning.message), "could not plan _step .* of 2 GiB .* as arguments"
    )
    record = PLANNED.records.all()[-1]
    self.assertStartsWith(record.why_not, "XLA shows no program of 2 GiB")
    self.assertGreater(record.planned_bytes or 0, 0)
    self.assertFalse(compiler_hook.is_installed())

  @parameterized.parameters(_step, lambda params, x: params[0] @ x.T)
  def test_with_a_limit_it_is_an_error_that_says_what_to_do(self, step):
    step = jaxmem.jit(step, memory_limit="1GiB", options=_OPTIONS)
    with self.assertRaisesRegex(
      jaxmem.PlanningError, "has a memory limit .* pass large ones as arguments"
    ):
      step(*_arguments())

  @parameterized.parameters(None, "1GiB")
  def test_plan(self, limit):
    with self.assertRaisesRegex(
      jaxmem.PlanningError, "cannot be planned: .* pass large ones as arguments"
    ):
      jaxmem.plan(_step, *_arguments(), memory_limit=limit)


class EnableTest(_FreshTest):
  def test_every_compile_is_planned(self):
    expected = jax.jit(_step)(*_arguments())
    jax.clear_caches()
    with jaxmem.enable(min_bytes=0) as enabled:
      found = jax.jit(_step)(*_arguments())
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    functions = [record.function for record in enabled.records]
    self.assertIn("_step", functions)
    jax.clear_caches()
    num_records = len(PLANNED.records.all())
    jax.jit(_step)(*_arguments())
    self.assertLen(PLANNED.records.all(), num_records)

  @parameterized.parameters("^_st", lambda name: name == "_step")
  def test_only_some(self, only):
    with jaxmem.enable(only=only, min_bytes=0) as enabled:
      jax.jit(_step)(*_arguments())
      jax.jit(lambda x: x @ x)(jnp.ones((4, 4)))
    self.assertEqual([r.function for r in enabled.records], ["_step"])

  def test_small_programs_are_left_alone(self):
    with jaxmem.enable() as enabled:
      jax.jit(_step)(*_arguments())
    self.assertEmpty(enabled.records)

  def test_a_limit(self):
    limit = _limit()
    jax.clear_caches()
    with jaxmem.enable(limit, only="_step", min_bytes=0) as enabled:
      found = jax.jit(_step)(*_arguments())
    expected = jax.jit(_step)(*_arguments())
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    (record,) = enabled.records
    self.assertLessEqual(record.planned_bytes, limit)
    self.assertGreater(record.xla_bytes, limit)
    self.assertEqual(record.why_not, "")

  def test_again_and_off(self):
    def enabled():
      policy = PLANNED._enabled
      return policy and policy.only

    jaxmem.enable(only="a")
    with jaxmem.enable(only="b"):
      self.assertEqual(enabled(), "b")
    self.assertEqual(enabled(), "a")
    jaxmem.disable()
    jaxmem.disable()
    self.assertIsNone(enabled())

  @parameterized.parameters("1.5.2", "110%", -1, "five")
  def test_a_malformed_limit(self, limit):
    for use in (
      jaxmem.enable,
      lambda limit: jaxmem.jit(_step, memory_limit=limit),
    ):
      with self.assertRaisesRegex(ValueError, "memory_limit must be"):
        use(limit)


if __name__ == "__main__":
  absltest.main()
