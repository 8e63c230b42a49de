"""Tests of jaxmem.jit and jaxmem.plan, also where planning goes wrong."""

import dataclasses
import functools
import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import record_modules
from absl.testing import absltest, parameterized
from jaxmem_hlo import transform
from jaxmem_hlo.transform import PlanningWarning

import jaxmem
from jaxmem import api, module_plan, order, targets
from jaxmem.order import OrderResult


def _branches(x, y):
  """Large temporaries that XLA:CPU makes all at once, and need not."""
  total = jnp.float32(0)
  for i in range(6):
    total += jnp.sum(jnp.sin((x + i) @ y) @ x.T)
  return total


def _arrays():
  generator = np.random.default_rng(0)
  shape = (48, 48)
  return tuple(
    jnp.asarray(generator.normal(size=shape), jnp.float32) for _ in range(2)
  )


def _name_of(lowered) -> str:
  """Returns the name of the module."""
  found = re.search(r"module @(\S+)", lowered.as_text())
  assert found is not None
  return found[1]


class _WatchedTest(parameterized.TestCase):
  """Sees what is planned, and forgets earlier warnings."""

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.object(transform, "_warned", False))
    self.plans = []
    plan_module = api.plan_module

    def watch(module, platform, options):
      plan = plan_module(module, platform, options)
      self.plans.append((module.name, plan))
      return plan

    self.enter_context(mock.patch.object(api, "plan_module", watch))


class Callable:
  def __call__(self, x, y):
    return _branches(x, y)


class WithMethod:
  scale = 2.0

  @functools.partial(jaxmem.jit, static_argnums=0)
  def step(self, x, y):
    return _branches(x, y) * self.scale


class JitTest(_WatchedTest):
  @parameterized.named_parameters(
    ("function", _branches),
    ("lambda", lambda x, y: _branches(x, y)),
    ("callable", Callable()),
    ("partial", functools.partial(_branches)),
    ("bound", Callable().__call__),
    ("wrapped", functools.wraps(_branches)(lambda x, y: _branches(x, y))),
  )
  def test_every_kind_of_function_is_planned(self, function):
    x, y = _arrays()
    expected = jax.jit(function)(x, y)
    self.assertEqual(jaxmem.jit(function)(x, y), expected)
    ((_, plan),) = self.plans
    self.assertTrue(plan.is_changed)

  def test_method(self):
    x, y = _arrays()
    step = WithMethod()
    expected = jax.jit(lambda x, y: _branches(x, y) * 2.0)(x, y)
    self.assertEqual(step.step(x, y), expected)
    self.assertLen(self.plans, 1)

  def test_decorator_without_and_with_arguments(self):
    @jaxmem.jit
    def plain(x, y):
      return _branches(x, y)

    @jaxmem.jit(donate_argnums=0, options=jaxmem.Options(effort="fast"))
    def donating(x, y):
      return _branches(x, y), x + 1

    x, y = _arrays()
    expected = _branches(x, y)
    np.testing.assert_allclose(plain(x, y), expected, rtol=1e-4)
    np.testing.assert_allclose(donating(x, y)[0], expected, rtol=1e-4)
    self.assertTrue(x.is_deleted())
    self.assertFalse(y.is_deleted())
    self.assertLen(self.plans, 2)

  def test_is_what_jax_jit_returns(self):
    x, y = _arrays()
    ours, theirs = jaxmem.jit(_branches), jax.jit(_branches)
    self.assertIs(type(ours), type(theirs))
    self.assertEqual(ours.__doc__, theirs.__doc__)
    self.assertEqual(ours.eval_shape(x, y), theirs.eval_shape(x, y))
    self.assertEqual(ours.trace(x, y).out_info, theirs.trace(x, y).out_info)
    lowered = ours.lower(x, y)
    self.assertIsInstance(lowered, jax.stages.Lowered)
    self.assertStartsWith(_name_of(lowered), "jit__branches__jaxmem_")
    self.assertEqual(lowered.compile()(x, y), theirs(x, y))

  def test_calls_compile_once(self):
    x, y = _arrays()
    step = jaxmem.jit(_branches)
    for _ in range(3):
      step(x, y)
    self.assertLen(self.plans, 1)
    step(x[:8], y)  # Another shape is another program.
    self.assertLen(self.plans, 2)

  def test_composes_with_jax(self):
    x, y = _arrays()
    step = jaxmem.jit(_branches)
    expected = jax.jit(jax.grad(_branches))(x, y)
    np.testing.assert_allclose(jax.grad(step)(x, y), expected, rtol=1e-3)
    stacked = jnp.stack([x, x])
    self.assertEqual(jax.vmap(step, (0, None))(stacked, y).shape, (2,))
    nested = jax.jit(lambda x: step(x, y))
    np.testing.assert_allclose(nested(x), step(x, y), rtol=1e-4)

  def test_the_plan_is_what_runs(self):
    pair = record_modules.compile_both(_branches, _arrays())
    self.assertLess(pair.planned_bytes, pair.baseline_bytes)
    self.assertEqual(pair.planned_bytes, pair.plan.planned_bytes)

  def test_options_have_modules_of_their_own(self):
    x, y = _arrays()
    names = {
      _name_of(jaxmem.jit(_branches, options=options).lower(x, y))
      for options in (
        None,
        jaxmem.Options(),
        jaxmem.Options(min_gain=0.5),
        jaxmem.Options(effort="fast"),
        jaxmem.Options(remove_copies=False),
      )
    }
    self.assertLen(names, 4)


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
      jaxmem.jit(_branches, donate=0)
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
    x, y = _arrays()
    theirs, ours = self.both(_branches, x, y[:8])
    self.assertEqual(ours, theirs)

  def test_missing_argument_is_jaxs_error(self):
    theirs, ours = self.both(_branches, _arrays()[0])
    self.assertEqual(ours, theirs)
    self.assertIn("missing 1 required positional argument: 'y'", ours)

  def test_not_an_array_is_jaxs_error(self):
    theirs, ours = self.both(_branches, "x", 1)
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
    x, y = _arrays()
    messages = []
    for jit in (jax.jit, jaxmem.jit):
      compiled = jit(_branches).lower(x, y).compile()
      with self.assertRaises(TypeError) as context:
        compiled(x[:8], y)
      messages.append(str(context.exception))
    self.assertEqual(*messages)


def _result(graph, candidates, peak_bytes=100):
  return OrderResult(
    order=tuple(candidates[0]) if candidates else (),
    peak_bytes=peak_bytes,
    lower_bound_bytes=0,
    status="feasible",
    method="injected",
    num_passes=0,
    candidates=tuple(map(tuple, candidates)),
  )


def _no_search(graph, *unused, **options):
  """What a search says that ran out of its budget at once."""
  return _result(graph, [range(graph.num_nodes)])


_WRONG_ORDERS = {
  "missing": lambda n: range(n - 1),
  "repeated": lambda n: [*range(n - 1), 0],
  "twice": lambda n: [*range(n), 0],
  "unknown": lambda n: [*range(n - 1), n + 7],
  "backwards": lambda n: reversed(range(n)),
  "empty": lambda n: [],
}


class FaultTest(_WatchedTest):
  """No fault of the planner may reach the user's step."""

  def check(self, *, num_warnings):
    """Compiles two steps; both must be right, whatever was broken."""
    x, y = _arrays()
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      for scale in (1.0, 2.0):

        def step(x, y, scale=scale):
          return _branches(x, y) * scale

        theirs, ours = (
          jit(step).lower(x, y).compile() for jit in (jax.jit, jaxmem.jit)
        )
        self.assertEqual(ours(x, y), theirs(x, y))
        self.assertLessEqual(
          record_modules.temp_bytes(ours), record_modules.temp_bytes(theirs)
        )
    found = [w for w in caught if w.category is PlanningWarning]
    self.assertLen(found, num_warnings)
    return found

  def test_nothing_is_wrong(self):
    self.check(num_warnings=0)
    self.assertTrue(all(plan.is_changed for _, plan in self.plans))

  def test_the_search_raises(self):
    with mock.patch.object(order, "plan_order", side_effect=MemoryError("m")):
      (warning,) = self.check(num_warnings=1)
    self.assertRegex(str(warning.message), "MemoryError: m. Results are not")

  @parameterized.parameters(*_WRONG_ORDERS)
  def test_the_search_returns_nonsense_that_looks_good(self, kind):
    def wrong(graph, *unused, **options):
      return _result(graph, [_WRONG_ORDERS[kind](graph.num_nodes)])

    # Whatever is priced later seems to need fewer bytes.
    prices = itertools.count(-1, -1)
    with (
      mock.patch.object(order, "plan_order", wrong),
      mock.patch.object(
        module_plan._ModulePlanner, "_temp_bytes", lambda *_: next(prices)
      ),
    ):
      self.check(num_warnings=1)
    self.assertEqual(self.plans, [])

  @parameterized.parameters(*_WRONG_ORDERS)
  def test_the_search_returns_nonsense(self, kind):
    def wrong(graph, *unused, **options):
      return _result(graph, [_WRONG_ORDERS[kind](graph.num_nodes)])

    x, y = _arrays()
    with (
      mock.patch.object(order, "plan_order", wrong),
      warnings.catch_warnings(),
    ):
      warnings.simplefilter("ignore")
      self.assertEqual(jaxmem.jit(_branches)(x, y), jax.jit(_branches)(x, y))
    for _, plan in self.plans:
      self.assertFalse(plan.is_changed)

  def test_the_graph_has_a_cycle(self):
    cycle = ValueError("must not form a cycle")
    with mock.patch("jaxmem.extract.Graph", side_effect=cycle):
      (warning,) = self.check(num_warnings=1)
    self.assertIn("must not form a cycle", str(warning.message))

  def test_the_search_ran_out_of_time(self):
    with mock.patch.object(order, "plan_order", _no_search):
      self.check(num_warnings=0)
    for _, plan in self.plans:
      self.assertFalse(plan.is_changed)
      self.assertEqual(plan.status, "baseline")

  def test_the_search_finds_nothing_better_and_proves_nothing(self):
    def empty(graph, *unused, **options):
      return _result(graph, [])

    with mock.patch.object(order, "plan_order", empty):
      self.check(num_warnings=0)
    self.assertTrue(all(not plan.is_changed for _, plan in self.plans))

  def test_the_module_cannot_be_read(self):
    with mock.patch.object(
      api.Module, "from_bytes", side_effect=ValueError("Not a serialized")
    ):
      self.check(num_warnings=1)

  def test_the_plan_cannot_be_applied(self):
    with mock.patch.object(
      module_plan.ModulePlan, "apply", side_effect=KeyError(3)
    ):
      self.check(num_warnings=1)

  def test_plan_says_that_it_failed_and_why(self):
    with (
      mock.patch.object(order, "plan_order", side_effect=KeyError("inside")),
      self.assertRaisesRegex(RuntimeError, "could not be planned") as context,
    ):
      jaxmem.plan(_branches, *_arrays())
    self.assertIsInstance(context.exception.__cause__, KeyError)


class ThreadTest(_WatchedTest):
  def test_steps_compiled_at_once_have_their_own_plans(self):
    x, y = _arrays()
    sizes = (16, 24, 32, 40)

    def step(x, y):
      return _branches(x, y) + x[0, 0]

    expected = {
      size: record_modules.compile_both(step, (x[:size], y)).planned_bytes
      for size in sizes
    }
    self.assertLen(set(expected.values()), len(sizes))
    self.plans.clear()
    start = threading.Barrier(len(sizes))
    temps = {}

    def work(size):
      # A function of its own: jax would wait for one that it compiles already.
      lowered = jaxmem.jit(lambda x, y: step(x, y)).lower(x[:size], y)
      start.wait()
      temps[size] = record_modules.temp_bytes(lowered.compile())

    threads = [threading.Thread(target=work, args=(s,)) for s in sizes]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEqual(temps, expected)
    self.assertLen(self.plans, len(sizes))
    planned = {plan.planned_bytes for _, plan in self.plans}
    self.assertEqual(planned, set(expected.values()))


_CACHED = """
import sys
import jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import jaxmem
from jaxmem import api
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
plan_module = api.plan_module
def watch(*args):
  events.append("plan")
  return plan_module(*args)
api.plan_module = watch
def step(x, y):
  total = jnp.float32(0)
  for i in range(6):
    total += jnp.sum(jnp.sin((x + i) @ y) @ x.T)
  return total
x = jax.ShapeDtypeStruct((48, 48), jnp.float32)
for kind in sys.argv[2].split(","):
  events.clear()
  jit = {"jax": jax.jit, "jaxmem": jaxmem.jit}[kind]
  memory = jit(step).lower(x, x).compile().memory_analysis()
  hits = events.count("/jax/compilation_cache/cache_hits")
  print(kind, memory.temp_size_in_bytes, hits, events.count("plan"))
"""


class PersistentCacheTest(absltest.TestCase):
  def run_steps(self, folder, kinds):
    out = subprocess.run(
      [sys.executable, "-c", _CACHED, folder, kinds],
      check=True,
      capture_output=True,
      text=True,
    )
    return [tuple(line.split()) for line in out.stdout.splitlines()]

  def test_planned_and_unplanned_programs_are_told_apart(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    first = self.run_steps(folder, "jax,jaxmem")
    (_, theirs, *_), (_, ours, *_) = first
    self.assertLess(int(ours), int(theirs))
    # (kind, temporaries, cache hits, plans made)
    self.assertEqual(
      first, [("jax", theirs, "0", "0"), ("jaxmem", ours, "0", "1")]
    )
    self.assertEqual(
      self.run_steps(folder, "jaxmem,jax"),
      [("jaxmem", ours, "1", "0"), ("jax", theirs, "1", "0")],
    )


class PlanTest(parameterized.TestCase):
  @functools.cached_property
  def plan(self):
    return jaxmem.plan(_branches, *_arrays())

  def test_measures_both(self):
    plan = self.plan
    pair = record_modules.compile_both(_branches, _arrays())
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
    self.assertStartsWith(text, "_branches on cpu: ")
    for line in ("temporaries", "lower bound", "whole program", "at the peak"):
      self.assertIn(line, text)
    self.assertNotIn("model error", text)
    self.assertIn("api_test.py:", text)
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
      plan = jaxmem.plan(_branches, *_arrays(), memory_limit=limit)
      self.assertEqual(plan.total_bytes, total)

  def test_infeasible(self):
    total = self.plan.total_bytes
    with self.assertRaisesRegex(
      jaxmem.InfeasibleError, "No order of _branches fits .*Largest at its peak"
    ) as context:
      jaxmem.plan(_branches, *_arrays(), memory_limit=total - 1)
    error = context.exception
    self.assertEqual(error.smallest_bytes, total)
    self.assertBetween(error.lower_bound_bytes, self.plan.argument_bytes, total)

  @parameterized.parameters("24G", "many", -1, 0, "0.5", "50%", 0.5, True)
  def test_bad_limits_are_refused_before_compiling(self, limit):
    compiled = mock.Mock(side_effect=AssertionError)
    with (
      mock.patch.object(api._Session, "run", compiled),
      self.assertRaisesRegex(ValueError, "memory_limit must be"),
    ):
      jaxmem.plan(_branches, *_arrays(), memory_limit=limit)

  def test_unknown_target(self):
    with self.assertRaisesRegex(ValueError, "target must be one of .*'h300'"):
      jaxmem.plan(_branches, *_arrays(), target="h300")

  @parameterized.parameters(jax.jit, jaxmem.jit)
  def test_jitted_functions_are_refused(self, jit):
    with self.assertRaisesRegex(TypeError, "needs the function itself"):
      jaxmem.plan(jit(_branches), *_arrays())

  def test_not_callable(self):
    with self.assertRaisesRegex(TypeError, "fun must be callable, got 3"):
      jaxmem.plan(3)  # pyright: ignore[reportArgumentType]

  def test_errors_of_the_step_pass_through(self):
    x, y = _arrays()
    with self.assertRaisesRegex(TypeError, "dot_general"):
      jaxmem.plan(_branches, x, y[:8])

  def test_leaves_no_handler_behind(self):
    before = set(transform._handlers)
    jaxmem.plan(lambda x: jnp.sin(x @ x) @ x, jnp.ones((8, 8)))
    with self.assertRaises(ZeroDivisionError):
      jaxmem.plan(lambda x: x / (1 // 0), jnp.ones(3))
    self.assertEqual(set(transform._handlers), before)

  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed"
  )
  def test_for_a_device_that_is_not_here(self):
    plan = jaxmem.plan(_branches, *_arrays(), target="h200", memory_limit="1%")
    self.assertEqual(plan.target, "h200")
    self.assertEqual(plan.model_error, 0)
    self.assertLessEqual(plan.temp_bytes, plan.baseline_temp_bytes)


if __name__ == "__main__":
  absltest.main()
