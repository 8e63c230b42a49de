"""Stacks of fewer bits, and plans of steps whose loops stack no gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest
from stacked_layers import OPTIMIZERS, case, stacks, train_step, updated

import jaxmem
from jaxmem import targets
from jaxmem.compiler import TracedStep
from jaxmem.versions import scan


class NarrowTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    step, self.args = case(OPTIMIZERS["adamw"], jnp.bfloat16)
    self.traced = TracedStep(jax.jit(step).trace(*self.args))

  def test_gradients_are_stacked_as_they_were_computed(self):
    found = scan.narrow_stacks(self.traced.jaxpr)
    self.assertEqual(found.num_stacks, 2)
    self.assertSameElements(
      [aval.dtype for aval in stacks(found.closed_jaxpr)],
      [jnp.dtype(jnp.bfloat16)],
    )

  def test_results_are_the_same_where_all_is_rounded(self):
    found = scan.narrow_stacks(self.traced.jaxpr)
    options = {"xla_allow_excess_precision": False}
    results = [
      step.compile(options)(*self.args)
      for step in (self.traced, self.traced.with_jaxpr(found.closed_jaxpr))
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)

  def test_gradients_that_are_clipped_by_their_norm(self):
    step, args = case(
      optax.chain(optax.clip_by_global_norm(1.0), OPTIMIZERS["adamw"]),
      jnp.bfloat16,
    )
    traced, found = updated(step, args, (0, 1))
    self.assertEmpty(found.names)
    self.assertEqual(scan.narrow_stacks(traced.jaxpr).num_stacks, 2)

  def test_what_else_is_read_or_made_stays(self):
    def forward(dtype, use):
      def body(x, y):
        x = jnp.sin(x + y)
        return x, (x * y).astype(dtype)

      return lambda xs: use(jax.lax.scan(body, xs[0], xs)[1])

    for dtype, use in (
      (jnp.float32, lambda s: s[::-1]),
      (jnp.float32, lambda s: s),
      (jnp.int32, lambda s: s + 1),
      (jnp.float8_e4m3fn, lambda s: -s),
    ):
      shape = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16)
      jaxpr = jax.make_jaxpr(forward(dtype, use))(shape)
      found = scan.narrow_stacks(jaxpr)
      self.assertIs(found.closed_jaxpr, jaxpr)
    jaxpr = jax.make_jaxpr(forward(jnp.float32, lambda s: -s))(shape)
    self.assertEqual(scan.narrow_stacks(jaxpr).num_stacks, 1)


class PlansTest(absltest.TestCase):
  """Whole steps under limits that nothing else meets."""

  def setUp(self):
    super().setUp()
    params = {
      "inner": jnp.eye(256) + jnp.zeros((24, 256, 256)),
      "scale": jnp.ones((24, 256)),
    }
    self.step, _ = case(OPTIMIZERS["adamw"])
    x = jax.random.normal(jax.random.key(1), (4, 256))
    self.args = params, OPTIMIZERS["adamw"].init(params), x

  def test_on_a_cpu(self):
    plain = jax.jit(self.step, donate_argnums=(0, 1)).lower(*self.args)
    found: Any = plain.compile().memory_analysis()
    state_bytes = found.argument_size_in_bytes
    limited = jaxmem.jit(
      self.step, donate_argnums=(0, 1), memory_limit=int(1.2 * state_bytes)
    )
    compiled = limited.lower(*self.args).compile()
    memory: Any = compiled.memory_analysis()
    # The gradients alone would be a third of the state.
    self.assertLess(memory.temp_size_in_bytes, 0.2 * state_bytes)
    copies = [jax.tree.map(jnp.copy, self.args) for _ in range(2)]
    jax.tree.map(
      np.testing.assert_array_equal,
      compiled(*copies[0]),
      plain.compile()(*copies[1]),
    )

  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed."
  )
  def test_for_a_described_gpu(self):
    step = train_step(OPTIMIZERS["adamw"], jnp.bfloat16)
    plans = [
      jaxmem.plan(
        step,
        *self.args,
        target="h200",
        donate_argnums=(0, 1),
        memory_limit=limit,
      )
      for limit in (None, int(1.12 * 3 * 4 * 24 * 256 * 257))
    ]
    budget = plans[1].budget
    assert budget is not None
    self.assertEqual(plans[1].temp_bytes, plans[1].predicted_temp_bytes)
    # Each gradient in half the bits, then the larger updated in the loop.
    self.assertGreaterEqual(budget.num_stacks, 3)
    self.assertIn(
      f"{budget.num_stacks} stacks of loops made smaller", str(plans[1])
    )


if __name__ == "__main__":
  absltest.main()
