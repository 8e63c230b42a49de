"""Which blocks a train step consists of."""

import itertools

import blocks_cases
import jax
import jax.numpy as jnp
import scan_cases
from absl.testing import absltest, parameterized

from jaxmem import cost
from jaxmem.jaxpr.flatten import flatten
from jaxmem.versions import blocks
from jaxmem.versions.blocks.find import find_blocks
from jaxmem.versions.blocks.recipe import make_groups, make_recipe
from jaxmem.versions.equation_cost import product_flops
from jaxmem.versions.values import Values, num_bytes

_RATES = cost.for_target("h200")


class FindTest(parameterized.TestCase):
  def test_blocks_of_a_chain_are_its_layers(self):
    values = blocks_cases.values("chain")
    found = find_blocks(values)
    # One block per layer: each makes one sum that the next one reads.
    self.assertLen(found, blocks_cases.NUM_BLOCKS)
    groups = make_groups(values, found, len(found))
    size = 4 * blocks_cases.NUM_ROWS * blocks_cases.WIDTH
    for before, after in itertools.pairwise(found):
      self.assertEqual(before.stop, after.start)
      (made,) = values.jaxpr.eqns[before.stop - 1].outvars
      self.assertEqual(num_bytes(made), size)
      self.assertEqual(values.jaxpr.eqns[before.stop - 1].primitive.name, "add")
    # The last product of a layer is not needed to make its residuals anew.
    for group in groups:
      recipe = make_recipe(group, ())
      assert recipe is not None
      again = [values.jaxpr.eqns[index] for index in recipe.eqns]
      self.assertEqual(sum(product_flops(eqn) > 0 for eqn in again), 1)
    described = blocks.BlockStep(blocks_cases.closed_jaxpr("chain")).blocks
    self.assertEqual(described.number, blocks_cases.NUM_BLOCKS)
    self.assertEqual(described.crossing_bytes, size)

  def test_casts_of_weights_are_no_blocks(self):
    found = find_blocks(blocks_cases.values("bfloat16"))
    self.assertLen(found, blocks_cases.NUM_BLOCKS)

  @parameterized.parameters(
    (jnp.bfloat16, 64, False),
    # Fewer rows than are looked up are cheap to convert again, and in the
    # table's own type there is nothing to convert.
    (jnp.bfloat16, 4, True),
    (jnp.float32, 64, True),
    # Nor is it by a loop, which could convert it once.
    (jnp.bfloat16, 64, False, True),
    (jnp.bfloat16, 4, True, True),
    (jnp.float32, 64, True, True),
  )
  def test_a_table_is_not_converted_again(
    self, dtype, num_rows, is_in_block, is_in_loop=False
  ):
    width = 64

    def loss(params, tokens):
      table, layers = jax.tree.map(lambda x: x.astype(dtype), params)
      x = table[tokens]
      for layer in layers:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x + jnp.sin(jnp.tanh(centred @ layer))
      return jnp.mean(x.astype(jnp.float32) ** 2)

    layers = [jnp.ones((width, width))] * 4
    params = jnp.ones((num_rows, width)), layers
    tokens = jnp.zeros(16, jnp.int32)
    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, tokens)
    num_constants = len(jax.tree.leaves(params)) if is_in_loop else 0
    values = Values(flatten(jaxpr), num_constants)
    found = find_blocks(values)
    self.assertLen(found, 4)
    first, *_ = make_groups(values, found, 4)
    recipe = make_recipe(first, ())
    assert recipe is not None
    again = {values.eqns[index].primitive.name for index in recipe.eqns}
    self.assertEqual("gather" in again, is_in_block)

  @parameterized.parameters((256, True), (24, False))
  def test_functions_of_few_weights_are_kept(self, num_rows, is_kept):
    # A decay of each channel, as of a state-space model. With few rows it is no
    # small part of what a block makes.
    width = 16

    def loss(layers, x):
      for matrix, decay in layers:
        rate = jnp.exp(-jnp.exp(decay))
        x = x + jnp.sin(jnp.tanh((x * rate) @ matrix))
      return jnp.mean(x**2)

    layers = [(jnp.ones((width, width)), jnp.ones(width))] * 4
    jaxpr = jax.make_jaxpr(jax.grad(loss))(layers, jnp.ones((num_rows, width)))
    values = Values(flatten(jaxpr))
    found = find_blocks(values)
    self.assertLen(found, 4)
    for group in make_groups(values, found, 4):
      recipe = make_recipe(group, ())
      assert recipe is not None
      again = {values.eqns[index].primitive.name for index in recipe.eqns}
      self.assertEqual("exp" not in again, is_kept)
      self.assertIn("tanh", again)

  def test_sums_and_products_of_weights_are_no_functions_of_elements(self):
    def step(weight, x):
      rate = jnp.exp(weight)
      return weight + x.sum() * (rate + jnp.exp(weight.sum()) + rate @ rate)

    jaxpr = jax.make_jaxpr(step)(jnp.ones((4, 4)), jnp.ones(3))
    values = Values(flatten(jaxpr))
    (exponential,) = values.of_weights
    eqn = values.eqns[values.definers[exponential]]
    self.assertEqual(eqn.primitive.name, "exp")
    self.assertEqual(num_bytes(exponential), 4 * 4 * 4)

  def test_each_forward_pass_has_its_blocks(self):
    found = find_blocks(blocks_cases.values("two losses"))
    self.assertLen(found, 2 * blocks_cases.NUM_BLOCKS)
    self.assertLen({block.end for block in found}, 2)

  def test_blocks_of_a_function_that_takes_gradients_are_its_updates(self):
    values = blocks_cases.values("inner updates")
    found = find_blocks(values)
    # All that it does is one forward pass, its backward passes included.
    self.assertLen({block.end for block in found}, 1)
    self.assertGreaterEqual(len(found), blocks_cases.NUM_BLOCKS)
    scopes = [str(eqn.source_info.name_stack) for eqn in values.eqns]
    outer = [scope.startswith("transpose(") for scope in scopes]
    self.assertSequenceEqual(values.is_backward, outer)

  def test_forward_over_reverse(self):
    # Nothing transposes the outer derivative: the inner ones' blocks count.
    jaxpr = jax.make_jaxpr(blocks_cases.curvature)(
      blocks_cases.weights(), blocks_cases.batch()
    )
    found = find_blocks(Values(flatten(jaxpr)))
    self.assertGreaterEqual(len(found), blocks_cases.NUM_BLOCKS)

  def test_nothing_repeats(self):
    def loss(params, x):
      return jnp.mean(blocks_cases.block(x, params[0]) ** 2)

    step, args = scan_cases.train(
      loss, blocks_cases.weights(), blocks_cases.batch()
    )
    jaxpr = jax.make_jaxpr(step)(*args)
    found = blocks.BlockStep(jaxpr)
    self.assertEqual(found.blocks.number, 0)
    choice = blocks.BlockChoice(num_groups=1)
    recomputed = found.recompute(choice, _RATES)
    self.assertIs(recomputed.closed_jaxpr, jaxpr)
    self.assertEqual(recomputed.num_dropped, 0)

  def test_a_step_without_gradients_has_none(self):
    jaxpr = jax.make_jaxpr(blocks_cases.stacked)(
      blocks_cases.weights(), blocks_cases.batch()
    )
    self.assertEqual(blocks.BlockStep(jaxpr).blocks.number, 0)


if __name__ == "__main__":
  absltest.main()
