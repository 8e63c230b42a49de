"""Tests of versions.scan: what is found, chosen, left alone, and wrapped."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scan_cases
from absl.testing import absltest, parameterized
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import zoo
from jaxmem import cost, targets
from jaxmem.versions import scan

RATES = cost.for_target("h200")
X = jnp.linspace(0.1, 1.0, 4)
XS = jnp.linspace(0.2, 0.9, 12).reshape(3, 4)


def forward(body: Any, reverse: bool = False, xs: Any = XS) -> tuple[Any, Any]:
  return jax.lax.scan(body, X, xs, reverse=reverse)


def backward(stacks: Any, reverse: bool = True) -> Any:
  def body(carry, slices):
    leaves = jax.tree.leaves(slices)
    return carry * 0.5 + sum(leaf.astype(jnp.float32) for leaf in leaves), None

  return jax.lax.scan(body, jnp.zeros(4), stacks, reverse=reverse)[0]


def rewrite(fun: Any, save: Any = "all", *args: Any) -> scan.Rewritten:
  return scan.rewrite_step(jax.make_jaxpr(fun)(*args), save, RATES)


def memory(lowered: jax.stages.Lowered, options: Any = None) -> Any:
  return lowered.compile(compiler_options=options).memory_analysis()


def expensive(x: Any, _: Any) -> tuple[Any, Any]:
  return jnp.tanh(x), jnp.exp(jnp.sin(x))


class SkippedTest(absltest.TestCase):
  def assert_stays(self, fun: Any, reason: str):
    rewritten = rewrite(fun)
    self.assertFalse(rewritten.is_changed)
    self.assertIn(reason, [each.reason for each in rewritten.skipped])
    self.assertIn(reason, rewritten.summary())

  def test_can_be_dropped_otherwise(self):
    rewritten = rewrite(lambda: backward(forward(expensive)[1]))
    # The carry, as large as the residual, would have to be stacked instead.
    self.assertFalse(rewritten.is_changed)

    def two(x, _):
      return (jnp.tanh(x), (jnp.exp(jnp.sin(x)), jnp.cos(x)))

    rewritten = rewrite(lambda: backward(forward(two)[1]))
    self.assertLen(rewritten.dropped, 2)
    self.assertEqual(rewritten.saved_bytes, 2 * 48 - 48)

  def test_no_scan(self):
    self.assert_stays(lambda: jnp.sin(X), "it has no scan")

  def test_result(self):
    def fun():
      _, ys = forward(expensive)
      return ys, backward(ys)

    self.assert_stays(fun, "it is a result as well")

  def test_read_outside(self):
    def fun():
      _, ys = forward(expensive)
      return ys.sum(), backward(ys)

    self.assert_stays(fun, "reduce_sum reads it outside of loops")

  def test_read_by_two_loops(self):
    def fun():
      _, ys = forward(expensive)
      return backward(ys), backward(ys) + 1

    self.assert_stays(fun, "it is read by more than one loop")

  def test_read_whole(self):
    def fun():
      _, ys = forward(expensive)

      def body(c, y):
        return (c + y + ys.sum(0), None)

      return jax.lax.scan(body, X, ys, reverse=True)[0]

    self.assert_stays(fun, "a loop reads it whole")

  def test_same_direction(self):
    def fun():
      _, ys = forward(expensive)
      return backward(ys, reverse=True), backward(ys, reverse=False)

    self.assert_stays(fun, "a loop of the same direction reads it")

  def test_one_iteration(self):
    def fun():
      return backward(forward(expensive, xs=XS[:1])[1])

    self.assert_stays(fun, "its loop runs once")

  def test_host_call(self):
    def body(x, y):
      result = jax.ShapeDtypeStruct(x.shape, x.dtype)
      return jnp.tanh(x), jax.pure_callback(np.sin, result, x + y)

    def fun():
      return backward(forward(body)[1])

    self.assert_stays(fun, "pure_callback calls the host")

  def test_unknown_length(self):
    def body(x, y):
      def done(z):
        return z[0] < 10

      return jnp.tanh(x), jax.lax.while_loop(done, lambda z: 2 * z, x + y)

    def fun():
      return backward(forward(body)[1])

    self.assert_stays(fun, "it comes from a while loop of unknown length")

  def test_mutable_arrays(self):
    def fun():
      counter = jax.new_ref(jnp.zeros(()))

      def body(x, _):
        counter[...] += 1.0
        return jnp.tanh(x), (jnp.exp(x), jnp.sin(x) * counter[...])

      return backward(forward(body)[1]), counter[...]

    self.assert_stays(fun, "its loop reads or writes mutable arrays")

  def test_carry(self):
    def fun():
      return backward(forward(lambda x, _: (jnp.tanh(x), x))[1])

    reason = "it is the carry from which others are recomputed"
    self.assert_stays(fun, reason)


class RewriteTest(parameterized.TestCase):
  def assert_equal_results(self, fun: Any, rewritten: scan.Rewritten):
    flat = jax.tree.leaves(jax.jit(fun)())
    got = jax.jit(core.jaxpr_as_fun(rewritten.closed_jaxpr))()
    for one, other in zip(got, flat, strict=True):
      np.testing.assert_array_equal(np.asarray(one), np.asarray(other))

  def test_what_lies_between_moves_into_the_loop(self):
    def fun():
      _, ys = forward(lambda x, _: (jnp.tanh(x), (jnp.exp(x), jnp.sin(x), x)))
      halves = [-y.astype(jnp.bfloat16) for y in ys[:2]]
      return backward((*halves, ys[2]))

    rewritten = rewrite(fun)
    self.assertLen(rewritten.dropped, 2)
    outside = [e.primitive.name for e in rewritten.closed_jaxpr.eqns]
    self.assertNotIn("convert_element_type", outside)
    self.assert_equal_results(fun, rewritten)

  def test_effects_stay_in_the_forward_loop(self):
    def fun():
      def body(x, _):
        jax.debug.print("carry {x}", x=x[0], ordered=False)
        return jnp.tanh(x), (jnp.exp(x), jnp.sin(x))

      return backward(forward(body)[1])

    rewritten = rewrite(fun)
    self.assertLen(rewritten.dropped, 2)
    first, second = (
      str(e.params["jaxpr"])
      for e in rewritten.closed_jaxpr.eqns
      if e.primitive.name == "scan"
    )
    self.assertIn("debug_print", first)
    self.assertNotIn("debug_print", second)
    self.assert_equal_results(fun, rewritten)

  def test_masks_are_broadcast_in_the_loops(self):
    step, args = scan_cases.masked()
    rewritten = rewrite(step, "all", *args)
    size = 9 * scan_cases.BATCH**2  # Booleans, 9 rows of the batch.
    masks = [d for d in rewritten.dropped if "constant" in d.name]
    self.assertEqual([m.size_bytes for m in masks], [size - size // 9])
    self.assertEqual([m.seconds for m in masks], [0.0])
    jaxpr = jax.make_jaxpr(step)(*args)
    fused = scan.rewrite_step(jaxpr, "all", RATES, keep_bits=False)
    # Nobody writes or reads them any more.
    for mask in (d for d in fused.dropped if "constant" in d.name):
      self.assertLess(mask.seconds, 0.0)
    for eqn in rewritten.closed_jaxpr.eqns:
      if eqn.primitive.name == "scan":
        shapes = [v.aval.str_short() for v in eqn.invars]
        self.assertNotIn("bool[9,5,5]", shapes)
        self.assertIn("bool[5,5]", shapes)

  def test_residuals_of_inner_loops_go_too(self):
    step, args = scan_cases.nested()
    rewritten = rewrite(step, "all", *args)
    inside = [d.name for d in rewritten.dropped if "/" in d.name]
    self.assertNotEmpty(inside)

  def test_loops_within_a_loop(self):
    step, args = scan_cases.accumulated()
    rewritten = rewrite(step, "all", *args)
    self.assertTrue(all("/" in each.name for each in rewritten.dropped))

  def test_budget(self):
    step, args = scan_cases.layers()
    every = rewrite(step, "all", *args)
    half = every.saved_bytes // 2
    some = rewrite(step, half, *args)
    self.assertBetween(some.saved_bytes, half, every.saved_bytes - 1)
    self.assertLess(some.extra_seconds, every.extra_seconds)
    self.assertTrue(some.is_optimal)
    more = rewrite(step, 2 * every.saved_bytes, *args)
    self.assertEqual(more.saved_bytes, every.saved_bytes)
    self.assertFalse(rewrite(step, 0, *args).is_changed)

  def test_names(self):
    step, args = scan_cases.layers()
    jaxpr = jax.make_jaxpr(step)(*args)
    candidates, _ = scan.find_candidates(jaxpr, RATES)
    largest = max(candidates, key=lambda each: each.size_bytes)
    rewritten = scan.rewrite_step(jaxpr, [largest.name], RATES)
    self.assertEqual(rewritten.dropped, (largest,))
    saved = largest.size_bytes - largest.extra_bytes
    self.assertEqual(rewritten.saved_bytes, saved)
    self.assertEqual(rewritten.extra_seconds, largest.seconds)
    self.assertFalse(scan.rewrite_step(jaxpr, [], RATES).is_changed)
    with self.assertRaisesRegex(ValueError, "'nowhere' is not a residual"):
      scan.rewrite_step(jaxpr, ["nowhere"], RATES)
    with self.assertRaisesRegex(ValueError, "bytes or 'all'"):
      scan.rewrite_step(jaxpr, "most", RATES)

  def test_temporaries_shrink_as_predicted(self):
    step, (params, state, _) = scan_cases.layers(length=8)
    args = params, state, jnp.ones((4096, scan_cases.WIDTH))
    seen = []
    dropping = scan.drop_scan_residuals(
      step, rates=RATES, on_rewritten=seen.append
    )
    before, after = (
      memory(jax.jit(each).lower(*args)).temp_size_in_bytes
      for each in (step, dropping)
    )
    saved = before - after
    self.assertAlmostEqual(saved / seen[0].saved_bytes, 1.0, delta=0.1)


class WrapperTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    step, (params, _, x) = scan_cases.layers()
    del step
    self.args = {"params": params, "unused": None}, x

    def fun(tree, x, power, *, scale=1.0, names=("loss",)):
      self.num_traces += 1

      def loss(params):
        def body(x, p):
          return (scan_cases.block(x, p), None)

        y, _ = jax.lax.scan(body, x, params)
        return scale * jnp.mean(y**power)

      value, gradients = jax.value_and_grad(loss)(tree["params"])
      new = jax.tree.map(jnp.subtract, tree["params"], gradients)
      return {"params": new, "unused": None}, {name: value for name in names}

    self.num_traces = 0
    self.fun = fun
    self.seen: list[scan.Rewritten] = []
    self.dropping = scan.drop_scan_residuals(
      fun, rates=RATES, on_rewritten=self.seen.append
    )

  def assert_same(self, got: Any, expected: Any):
    self.assertEqual(jax.tree.structure(got), jax.tree.structure(expected))
    jax.tree.map(np.testing.assert_array_equal, got, expected)

  def test_trees_static_and_keyword_arguments(self):
    wrap = functools.partial(
      jax.jit, static_argnums=2, static_argnames=("names",)
    )
    names = ("a", "b")
    expected = wrap(self.fun)(*self.args, 2, scale=0.5, names=names)
    self.num_traces = 0
    dropping = wrap(self.dropping)
    got = dropping(*self.args, 2, scale=0.5, names=names)
    self.assert_same(got, expected)
    dropping(*self.args, power=2, scale=0.25, names=names)
    dropping(*self.args, 2, scale=0.125, names=names)
    self.assertEqual(self.num_traces, 2)
    self.assertTrue(all(each.is_changed for each in self.seen))

  def test_donation_and_shardings(self):
    mesh = jax.make_mesh((4,), ("data",))
    x = jnp.concatenate([self.args[1]] * 4)[: 4 * 4]
    whole = NamedSharding(mesh, PartitionSpec())
    rows = NamedSharding(mesh, PartitionSpec("data"))
    wrap = functools.partial(
      jax.jit,
      donate_argnums=0,
      static_argnums=2,
      in_shardings=(whole, rows),
      out_shardings=(whole, None),
    )
    copies = [jax.tree.map(jnp.copy, self.args[0]) for _ in range(2)]
    expected = wrap(self.fun)(copies[0], x, 2)
    dropping = wrap(self.dropping)
    aliased = memory(dropping.lower(copies[1], x, 2))
    self.assertGreater(aliased.alias_size_in_bytes, 0)
    self.assert_same(dropping(copies[1], x, 2), expected)
    self.assertTrue(copies[1]["params"]["w"].is_deleted())

  def test_derivatives_from_outside(self):
    def fun(params, x):
      new, metrics = self.fun({"params": params}, x, 2)
      return (
        metrics["loss"]
        + jnp.sum(new["params"]["b"])
        + jnp.sum(scan_cases.clipped(x))
      )

    dropping = scan.drop_scan_residuals(
      fun, rates=RATES, on_rewritten=self.seen.append
    )
    args = self.args[0]["params"], self.args[1]
    got = jax.jit(jax.grad(jax.jit(dropping), 1))(*args)
    self.assertTrue(self.seen[-1].is_changed)
    expected = jax.jit(jax.grad(fun, 1))(*args)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)

  def test_errors_of_the_function_come_through(self):
    def fun(x):
      raise KeyError("mine")

    with self.assertRaisesRegex(KeyError, "mine"):
      jax.jit(scan.drop_scan_residuals(fun, rates=RATES))(1.0)


class FullSizeTest(absltest.TestCase):
  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed."
  )
  def test_gpt2_on_an_h200(self):
    step = zoo.MODELS["scan_transformer"](8, "full")
    dropping = scan.drop_scan_residuals(step.function, rates=RATES)
    jitted = jax.jit(dropping, **step.jit_kwargs)
    lowered = targets.lower(jitted, step.args, {}, "h200")
    found = memory(lowered, targets.compile_options("h200"))
    # From 8951 MB; two buffers of logits alone take 1647 MB.
    self.assertLess(found.temp_size_in_bytes, 2030e6)


if __name__ == "__main__":
  absltest.main()
