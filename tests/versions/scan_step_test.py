"""Tests of versions.scan: what is found, chosen and left alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scan_cases
from absl.testing import absltest, parameterized
from drop_problems import saving
from jax.extend import core

from benchmarks import zoo
from jaxmem import cost, targets
from jaxmem.versions import scan
from jaxmem.versions.equation_cost import is_lone_product
from jaxmem.versions.knapsack import choose
from jaxmem.versions.scan.levels import make_level
from jaxmem.versions.scan.pairs import Residual
from jaxmem.versions.scan.problem import make_problem
from jaxmem.versions.scan.rewrite import make_recipe, rewrite_level

RATES = scan_cases.RATES
X = jnp.linspace(0.1, 1.0, 4)
XS = jnp.linspace(0.2, 0.9, 12).reshape(3, 4)


def forward(body: Any, reverse: bool = False, xs: Any = XS) -> tuple[Any, Any]:
  return jax.lax.scan(body, X, xs, reverse=reverse)


def backward(stacks: Any, reverse: bool = True) -> Any:
  def body(carry, slices):
    leaves = jax.tree.leaves(slices)
    return carry * 0.5 + sum(leaf.astype(jnp.float32) for leaf in leaves), None

  return jax.lax.scan(body, jnp.zeros(4), stacks, reverse=reverse)[0]


def rewrite(
  fun: Any, save: Any = "all", *args: Any, keep_bits: bool = True
) -> scan.Rewritten:
  jaxpr = jax.make_jaxpr(fun)(*args)
  return scan.rewrite_step(jaxpr, save, RATES, keep_bits=keep_bits)


def residuals(fun: Any, *args: Any) -> list[Residual]:
  """Returns what could be dropped, if what it takes did not matter."""
  level = make_level(jax.make_jaxpr(fun)(*args))
  return [r for pair, _ in level.walk() for r in pair.residuals]


def seconds(fun: Any, save: int | None, *args: Any) -> float:
  """Returns what the best choice takes of all that could be dropped."""
  level = make_level(jax.make_jaxpr(fun)(*args))
  problem = make_problem(level, RATES, is_fused=False)
  found = saving(problem, choose(problem, save))
  assert found is not None
  return found[1]


def memory(lowered: jax.stages.Lowered, options: Any = None) -> Any:
  return lowered.compile(compiler_options=options).memory_analysis()


def expensive(x: Any, _: Any) -> tuple[Any, Any]:
  return jnp.tanh(x), jnp.exp(jnp.sin(x))


class StaysTest(absltest.TestCase):
  def assert_stays(self, fun: Any):
    self.assertEmpty(residuals(fun))
    self.assertEqual(scan.droppable_bytes(jax.make_jaxpr(fun)()), 0)
    self.assertEmpty(rewrite(fun).dropped)

  def test_can_be_dropped_otherwise(self):
    def fun():
      return backward(forward(expensive)[1])

    self.assertLen(residuals(fun), 1)
    self.assertEqual(scan.droppable_bytes(jax.make_jaxpr(fun)()), 48)
    # The carry, as large as the residual, would have to be stacked instead.
    self.assertEmpty(rewrite(fun).dropped)

    def two(x, _):
      return (jnp.tanh(x), (jnp.exp(jnp.sin(x)), jnp.cos(x)))

    rewritten = rewrite(lambda: backward(forward(two)[1]))
    self.assertLen(rewritten.dropped, 2)
    self.assertEqual(rewritten.saved_bytes, 2 * 48 - 48)

  def test_no_scan(self):
    self.assert_stays(lambda: jnp.sin(X))

  def test_result(self):
    def fun():
      _, ys = forward(expensive)
      return ys, backward(ys)

    self.assert_stays(fun)

  def test_read_outside(self):
    def fun():
      _, ys = forward(expensive)
      return ys.sum(), backward(ys)

    self.assert_stays(fun)

  def test_read_by_two_loops(self):
    def fun():
      _, ys = forward(expensive)
      return backward(ys), backward(ys) + 1

    self.assert_stays(fun)

  def test_read_whole(self):
    def fun():
      _, ys = forward(expensive)

      def body(c, y):
        return (c + y + ys.sum(0), None)

      return jax.lax.scan(body, X, ys, reverse=True)[0]

    self.assert_stays(fun)

  def test_same_direction(self):
    def fun():
      _, ys = forward(expensive)
      return backward(ys, reverse=True), backward(ys, reverse=False)

    self.assert_stays(fun)

  def test_one_iteration(self):
    def fun():
      return backward(forward(expensive, xs=XS[:1])[1])

    self.assert_stays(fun)

  def test_host_call(self):
    def body(x, y):
      result = jax.ShapeDtypeStruct(x.shape, x.dtype)
      return jnp.tanh(x), jax.pure_callback(np.sin, result, x + y)

    def fun():
      return backward(forward(body)[1])

    self.assert_stays(fun)

  def test_unknown_length(self):
    def body(x, y):
      def done(z):
        return z[0] < 10

      return jnp.tanh(x), jax.lax.while_loop(done, lambda z: 2 * z, x + y)

    def fun():
      return backward(forward(body)[1])

    self.assert_stays(fun)

  def test_mutable_arrays(self):
    def fun():
      counter = jax.new_ref(jnp.zeros(()))

      def body(x, _):
        counter[...] += 1.0
        return jnp.tanh(x), (jnp.exp(x), jnp.sin(x) * counter[...])

      return backward(forward(body)[1]), counter[...]

    self.assert_stays(fun)

  def test_carry(self):
    def fun():
      return backward(forward(lambda x, _: (jnp.tanh(x), x))[1])

    self.assert_stays(fun)


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

  def test_a_kernel_writes_each_stack(self):
    def body(x, weights):
      x = x @ weights
      # All of this is one kernel, if nothing else reads what is between.
      x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True))
      return jnp.sin(x), None

    def loss(weights, x):
      return jnp.sum(jax.lax.scan(body, x, weights)[0])

    weights, x = jnp.ones((5, 8, 8)), jnp.ones((16, 8))
    level = make_level(jax.make_jaxpr(jax.grad(loss))(weights, x))
    ((pair, _),) = level.walk()
    number = {"dot_general": 0.0, "rsqrt": 0.0, "cos": 0.0}
    for is_fused in (False, True):
      problem = make_problem(level, RATES, is_fused=is_fused)
      for residual, drop in zip(pair.residuals, problem.drops, strict=True):
        moving_s = RATES.seconds({}, 0.0, 2.0 * drop.size_bytes)
        launches_s = drop.relief_s - (moving_s - RATES.launch_s)
        assert isinstance(residual.value, core.Var)
        made = pair.body.definers.get(residual.value)
        if made is None:
          continue  # What is carried.
        name = pair.body.eqns[made].primitive.name
        if name in number:
          number[name] = round(launches_s / RATES.launch_s, 6)
      expected = (5, 10, 10) if is_fused else (0, 0, 0)
      self.assertSequenceEqual(tuple(number.values()), expected)

  def test_masks_are_broadcast_in_the_loops(self):
    step, args = scan_cases.masked()
    rewritten = rewrite(step, "all", *args)
    size = 9 * scan_cases.BATCH**2  # Booleans, 9 rows of the batch.
    level = make_level(jax.make_jaxpr(step)(*args))
    for is_fused in (False, True):
      problem = make_problem(level, RATES, is_fused=is_fused)
      (drop,) = (each for each in problem.drops if "constant" in each.name)
      self.assertEqual(drop.size_bytes, size - size // 9)
      # If it is fused, nobody writes or reads it any more.
      self.assertEqual(drop.relief_s > 0.0, is_fused)
      self.assertIn(drop.name, rewritten.dropped)
    for eqn in rewritten.closed_jaxpr.eqns:
      if eqn.primitive.name == "scan":
        shapes = [v.aval.str_short() for v in eqn.invars]
        self.assertNotIn("bool[9,5,5]", shapes)
        self.assertIn("bool[5,5]", shapes)

  def test_residuals_of_inner_loops_go_too(self):
    step, args = scan_cases.nested()
    rewritten = rewrite(step, "all", *args)
    inside = [name for name in rewritten.dropped if "/" in name]
    self.assertNotEmpty(inside)

  def test_loops_within_a_loop(self):
    step, args = scan_cases.accumulated()
    rewritten = rewrite(step, "all", *args)
    self.assertTrue(all("/" in name for name in rewritten.dropped))

  def test_budget(self):
    step, args = scan_cases.layers()
    every = rewrite(step, "all", *args)
    half = every.saved_bytes // 2
    some = rewrite(step, half, *args)
    self.assertBetween(some.saved_bytes, half, every.saved_bytes - 1)
    self.assertLess(seconds(step, half, *args), seconds(step, None, *args))
    more = rewrite(step, 2 * every.saved_bytes, *args)
    self.assertEqual(more.saved_bytes, every.saved_bytes)
    self.assertEmpty(rewrite(step, 0, *args).dropped)

  def test_one_residual_can_be_dropped_alone(self):
    step, args = scan_cases.layers()
    level = make_level(jax.make_jaxpr(step)(*args))
    ((pair, _),) = level.walk()
    largest = max(pair.residuals, key=lambda each: each.size_bytes)
    recipe = make_recipe(pair, (largest.name,))
    self.assertEqual(recipe.dropped, (largest,))
    changed, saved_bytes = rewrite_level(level, {largest.name}, keep_bits=True)
    self.assertEqual(saved_bytes, largest.size_bytes - recipe.extra_bytes)
    before, after = (
      sum(len(e.outvars) for e in j.eqns if e.primitive.name == "scan")
      for j in (level.jaxpr, changed)
    )
    self.assertEqual(after, before - 1 + len(recipe.further))

  def test_temporaries_shrink_as_predicted(self):
    step, (params, state, _) = scan_cases.layers(length=8)
    args = params, state, jnp.ones((4096, scan_cases.WIDTH))
    seen = []
    dropping = scan_cases.dropping(step, seen=seen)
    before, after = (
      memory(jax.jit(each).lower(*args)).temp_size_in_bytes
      for each in (step, dropping)
    )
    saved = before - after
    self.assertAlmostEqual(saved / seen[0].saved_bytes, 1.0, delta=0.1)

  def test_a_product_is_stacked_in_place_of_what_is_made_of_it(self):
    rates = cost.for_target("cpu")
    step, args = scan_cases.cubes(512)
    jaxpr = jax.make_jaxpr(step)(*args)
    level = make_level(jaxpr)
    ((pair, _),) = level.walk()
    # Less than half: what is dropped is twice what is stacked.
    save_bytes = sum(r.size_bytes for r in pair.residuals) // 3
    rewritten = scan.rewrite_step(jaxpr, save_bytes, rates, keep_bits=False)
    self.assertNotEmpty(rewritten.stacked)
    names = {pair.stack_name(v): v for e in pair.body.eqns for v in e.outvars}
    for name in rewritten.stacked:
      made = pair.body.eqns[pair.body.definers[names[name]]]
      self.assertEqual(made.primitive.name, "dot_general")
    self.assertGreaterEqual(rewritten.saved_bytes, save_bytes)
    # No product runs again.
    recipe = make_recipe(pair, {*rewritten.dropped, *rewritten.stacked})
    again = [pair.body.eqns[index].primitive.name for index in recipe.eqns]
    self.assertNotIn("dot_general", again)

  def test_all_but_products_is_made_again(self):
    # Rates at which products take next to nothing: they run again by choice.
    rates = cost.for_target("h200")
    layers, x = jnp.ones((5, 2, 16, 16)), jnp.linspace(0.1, 1.0, 8 * 16)
    x = x.reshape(8, 16)

    def step(layers):
      def layer(x, weights):
        heads = (x @ weights[0]).reshape(8, 4, 4)
        scores = jax.nn.softmax(jnp.einsum("ahd,bhd->hab", heads, heads))
        mixed = jnp.einsum("hab,bhd->ahd", scores, heads).reshape(8, 16)
        return x + jnp.sin(mixed) @ weights[1], None

      return jnp.sum(jax.lax.scan(layer, x, layers)[0] ** 2)

    jaxpr = jax.make_jaxpr(jax.grad(step))(layers)
    ((pair, _),) = make_level(jaxpr).walk()

    def products_again(rewritten):
      recipe = make_recipe(pair, {*rewritten.dropped, *rewritten.stacked})
      eqns = [pair.body.eqns[index] for index in recipe.eqns]
      return [e for e in eqns if e.primitive.name == "dot_general"]

    every = scan.rewrite_step(jaxpr, "all", rates, keep_bits=False)
    self.assertTrue(any(map(is_lone_product, products_again(every))))
    some = scan.rewrite_step(jaxpr, "but products", rates, keep_bits=False)
    # What runs again are those of heads, within a batch.
    self.assertNotEmpty(products_again(some))
    self.assertFalse(any(map(is_lone_product, products_again(some))))
    again = scan.rewrite_step(
      jaxpr, "all", rates, keep_bits=False, known=some.answers
    )
    self.assertEqual(again.dropped, some.dropped)
    self.assertEqual(again.stacked, some.stacked)
    got = jax.jit(core.jaxpr_as_fun(some.closed_jaxpr))(layers)
    expected = jax.jit(jax.grad(step))(layers)
    np.testing.assert_allclose(got[0], expected, rtol=1e-5, atol=1e-6)

  @pytest.mark.slow
  def test_derivatives_from_outside(self):
    step, (params, state, x) = scan_cases.layers()

    def fun(x):
      new, _, loss = step(params, state, x)
      return (
        loss
        + sum(map(jnp.sum, jax.tree.leaves(new)))
        + jnp.sum(scan_cases.clipped(x))
      )

    seen = []
    got = jax.jit(jax.grad(jax.jit(scan_cases.dropping(fun, seen=seen))))(x)
    self.assertNotEmpty(seen[-1].dropped)
    expected = jax.jit(jax.grad(fun))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


class FullSizeTest(absltest.TestCase):
  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed."
  )
  @pytest.mark.slow
  def test_gpt2_on_an_h200(self):
    step = zoo.MODELS["scan_transformer"](8, "full")
    dropping = scan_cases.dropping(step.function)
    jitted = jax.jit(dropping, **step.jit_kwargs)
    lowered = targets.lower(jitted, step.args, {}, "h200")
    found = memory(lowered, targets.compile_options("h200"))
    # From 8951 MB; two buffers of logits alone take 1647 MB.
    self.assertLess(found.temp_size_in_bytes, 2030e6)


if __name__ == "__main__":
  absltest.main()
