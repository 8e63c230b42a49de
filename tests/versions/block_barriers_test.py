"""What the backward pass of recomputed blocks reads behind their barriers."""

import collections

import blocks_cases
import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized

from jaxmem import cost
from jaxmem.versions import blocks
from jaxmem.versions.values import operands

_RATES = cost.for_target("h200")


class BarriersTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_who_reads_behind_a_barrier(self, reads_again):
    def block(x, p):
      scale = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3)
      return x + jnp.tanh((x @ p["w"]) * scale + p["b"]) @ p["v"]

    def loss(params, x):
      for p in params:
        x = block(x, p)
      return jnp.sum(x)

    # The backward pass reads x for the gradients of the mean and of `w`.
    jaxpr = jax.make_jaxpr(jax.grad(loss))(
      blocks_cases.weights(), blocks_cases.batch()
    )
    choice = blocks.BlockChoice(num_groups=99, reads_again=reads_again)
    changed = blocks.BlockStep(jaxpr).recompute(choice, _RATES).closed_jaxpr
    # What blocks hand on in the forward pass; sums of gradients are `add_any`.
    handed_on, behind = set(), set()
    bare = {"mul": 0, "dot_general": 0}
    for eqn in changed.eqns:
      name = eqn.primitive.name
      if name == "optimization_barrier":
        behind = handed_on & {*operands(eqn)}
      elif name == "add" and not behind:
        handed_on |= {*eqn.outvars}
      elif name in bare:
        bare[name] += len(behind & {*operands(eqn)})
    self.assertEqual(bare["mul"], 0)
    self.assertEqual(bare["dot_general"] == 0, reads_again)

  def test_the_barrier_comes_before_all_that_reads_the_gradient(self):
    # The gradient of the last bias is a sum of what comes in, before anything
    # is read that is made again.
    def block(x, p):
      return x + (jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] + p["u"])

    def loss(params, x):
      for p in params:
        x = block(x, p)
      return jnp.sum(x**2)

    params = [
      p | {"u": jnp.ones(blocks_cases.WIDTH)} for p in blocks_cases.weights()
    ]
    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, blocks_cases.batch())
    choice = blocks.BlockChoice(num_groups=99)
    changed = blocks.BlockStep(jaxpr).recompute(choice, _RATES).closed_jaxpr
    names = [eqn.primitive.name for eqn in changed.eqns]
    barrier = names.index("optimization_barrier")
    sums = [
      index
      for index, eqn in enumerate(changed.eqns)
      if eqn.primitive.name == "reduce_sum" and eqn.params["axes"] == (0,)
    ]
    self.assertGreater(min(sums), barrier)

  def test_views_of_the_gradient_are_taken_behind_the_barrier(self):
    # Products read the gradient in another order: who reads the sum that it is
    # would make it anew for each of them.
    def block(x, p):
      return x + (jnp.tanh(x.T @ p["w"] + p["b"]) @ p["v"]).T

    def loss(params, x):
      for p in params:
        x = block(x, p)
      return jnp.sum(x**2)

    x = jnp.ones((blocks_cases.WIDTH, 8))
    jaxpr = jax.make_jaxpr(jax.grad(loss))(blocks_cases.weights(), x)
    choice = blocks.BlockChoice(num_groups=99)
    changed = blocks.BlockStep(jaxpr).recompute(choice, _RATES).closed_jaxpr
    made = {v: eqn for eqn in changed.eqns for v in eqn.outvars}
    barriers = [
      index
      for index, eqn in enumerate(changed.eqns)
      if eqn.primitive.name == "optimization_barrier"
    ]
    self.assertLen(barriers, len(blocks_cases.weights()))
    turned = [
      made[operands(eqn)[0]].primitive.name
      for eqn in changed.eqns[barriers[0] :]
      if eqn.primitive.name == "transpose"
      and getattr(eqn.invars[0].aval, "shape", None) == x.shape
      and operands(eqn)[0] in made
    ]
    # Of the gradient, and of what each block reads, to make it again.
    self.assertNotIn("add_any", turned)
    self.assertIn("optimization_barrier", turned)

  def test_views_of_weights_wait_for_no_gradient(self):
    @jax.custom_vjp
    def product(x, w):
      return x @ w

    def backward(residuals, gradient):
      x, w = residuals
      turned = w.T
      return gradient @ turned, x.T @ gradient

    product.defvjp(lambda x, w: (x @ w, (x, w)), backward)

    def block(x, p):
      return x + product(jnp.tanh(x @ p["w"] + p["b"]), p["v"])

    def loss(params, x):
      for p in params:
        x = block(x, p)
      return jnp.sum(x**2)

    # Weights are larger than gradients, and so are their views.
    x = jnp.ones((2, blocks_cases.WIDTH))
    jaxpr = jax.make_jaxpr(jax.grad(loss))(blocks_cases.weights(), x)
    choice = blocks.BlockChoice(num_groups=99)
    changed = blocks.BlockStep(jaxpr).recompute(choice, _RATES).closed_jaxpr
    made = {v: eqn for eqn in changed.eqns for v in eqn.outvars}
    # The first block that runs again waits for the gradient of the loss.
    gradient = {"mul": 1, "add_any": len(blocks_cases.weights()) - 1}
    waited_for = collections.Counter(
      made[v].primitive.name
      for eqn in changed.eqns
      if eqn.primitive.name == "optimization_barrier"
      for v in operands(eqn)
      if v in made and made[v].primitive.name in gradient
    )
    self.assertEqual(waited_for, gradient)


if __name__ == "__main__":
  absltest.main()
