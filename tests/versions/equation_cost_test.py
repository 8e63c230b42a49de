"""Tests of versions.equation_cost, by hand-computed times."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized

from jaxmem.cost.rates import Efficiency, Rates
from jaxmem.versions import equation_cost

# 1 byte per second, 10 flops per second, no launch: times are easy to see.
SLOW = Rates(
  memory_bytes_per_s=1.0,
  tf32_flops_per_s=20.0,
  bf16_flops_per_s=40.0,
  fp32_flops_per_s=10.0,
  launch_s=0.0,
  efficiency=Efficiency(flops=1.0, memory=1.0),
)
FAST_MEMORY = dataclasses.replace(SLOW, memory_bytes_per_s=1e12)


def seconds(fun: Any, *shapes: Any, rates: Rates = FAST_MEMORY) -> float:
  return equation_cost.jaxpr_seconds(jax.make_jaxpr(fun)(*shapes), rates)


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype)


class SecondsTest(parameterized.TestCase):
  @parameterized.parameters(
    (jnp.float32, None, 20.0),
    (jnp.bfloat16, None, 40.0),
    (jnp.float32, "highest", 10.0),
  )
  def test_products(self, dtype, precision, rate):
    # 2 * 3 * 5 outputs of 7 multiply-adds each: 2 * 30 * 7 flops.
    found = seconds(
      lambda a, b: jnp.einsum("bij,jk->bik", a, b, precision=precision),
      array(2, 3, 7, dtype=dtype),
      array(7, 5, dtype=dtype),
    )
    self.assertAlmostEqual(found, 2 * 30 * 7 / rate, places=5)

  def test_ragged_products(self):
    # XLA multiplies all of 12 rows with the matrix of each of three groups, as
    # it does for the gradients of both.
    def product(x, weights, sizes):
      return jax.lax.ragged_dot(x, weights, sizes).sum()

    shapes = array(12, 7), array(3, 7, 5), array(3, dtype=jnp.int32)
    jaxpr = jax.make_jaxpr(jax.grad(product, argnums=(0, 1)))(*shapes)
    ragged = [e for e in jaxpr.eqns if e.primitive.name == "ragged_dot_general"]
    self.assertLen(ragged, 3)
    for eqn in ragged:
      self.assertEqual(equation_cost.product_flops(eqn), 2 * 3 * 12 * 7 * 5)
      self.assertTrue(equation_cost.is_heavy_eqn(eqn))

  @parameterized.parameters(
    (lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False), 6**3 / 3),
    (lambda a: jax.lax.linalg.eigh(a, symmetrize_input=False), 9 * 6**3),
    (jax.lax.linalg.lu, 2 / 3 * 6**3),
  )
  def test_factorizations(self, fun, expected):
    jaxpr = jax.make_jaxpr(fun)(array(6, 6))
    heavy = [e for e in jaxpr.eqns if equation_cost.is_heavy_eqn(e)]
    (flops,) = (equation_cost.scalar_flops(eqn, SLOW) for eqn in heavy)
    self.assertAlmostEqual(flops, expected)

  def test_triangular_solve(self):
    # 6 by 6, with 4 columns on the right: 6 multiply-adds for each of 24.
    jaxpr = jax.make_jaxpr(
      lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True)
    )(array(6, 6), array(6, 4))
    (eqn,) = jaxpr.eqns
    self.assertEqual(equation_cost.scalar_flops(eqn, SLOW), 6 * 24)

  def test_product_bound_by_memory(self):
    # Reads 2x4 and 4x3, writes 2x3 of 4 bytes: 104 bytes.
    found = seconds(jnp.matmul, array(2, 4), array(4, 3), rates=SLOW)
    self.assertAlmostEqual(found, 104.0)

  def test_product_whose_factors_are_arranged(self):
    # 48 flops at 10 a second, or 20 of tf32; 104 bytes at 10 besides.
    rates = dataclasses.replace(FAST_MEMORY, packed_bytes_per_s=10.0)
    found = seconds(jnp.matmul, array(2, 4), array(4, 3), rates=rates)
    self.assertAlmostEqual(found, 48 / 20 + 10.4)

  def test_scalar_flops(self):
    def smooth(x):
      return jax.nn.relu(jnp.tanh(x) * 2.0)

    def flops(fun, *shapes):
      eqns = jax.make_jaxpr(fun)(*shapes).eqns
      return sum(equation_cost.scalar_flops(eqn, SLOW) for eqn in eqns)

    # Of 20 numbers a hyperbolic tangent takes 10 flops each; a product and a
    # maximum, which is called, one.
    self.assertEqual(flops(smooth, array(20)), 20 * (10 + 1 + 1))
    # What is reduced counts, and products and views do not.
    self.assertEqual(flops(lambda x: x.reshape(4, 5).sum(0), array(20)), 20)
    self.assertEqual(flops(jnp.matmul, array(2, 4), array(4, 3)), 0)

  def test_what_is_fused_is_not_written(self):
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) * x)(array(20))
    # A sine and a product of 20 numbers at 1 and 10 per second, or 80 bytes
    # written.
    self.assertAlmostEqual(equation_cost.jaxpr_seconds(jaxpr, SLOW), 2 * 80.0)
    fused = equation_cost.jaxpr_seconds(jaxpr, SLOW, is_fused=True)
    self.assertAlmostEqual(fused, 20.0 + 2.0)
    # Products are.
    jaxpr = jax.make_jaxpr(jnp.matmul)(array(2, 4), array(4, 3))
    fused = equation_cost.jaxpr_seconds(jaxpr, SLOW, is_fused=True)
    self.assertAlmostEqual(fused, 104.0)

  def test_convolution(self):
    # 8 x 8 x 6 outputs of 3 x 3 x 4 multiply-adds.
    found = seconds(
      lambda x, k: jax.lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
      ),
      array(1, 8, 8, 4),
      array(3, 3, 4, 6),
    )
    self.assertAlmostEqual(found, 2 * 384 * 36 / 20.0, places=5)

  def test_elementwise_writes_once_reductions_read(self):
    self.assertAlmostEqual(seconds(jnp.exp, array(10), rates=SLOW), 40.0)
    total = seconds(lambda x: jnp.sum(x, 0), array(10), rates=SLOW)
    self.assertAlmostEqual(total, 44.0)

  def test_views_are_free(self):
    self.assertEqual(seconds(lambda x: x.reshape(5, 2), array(10)), 0.0)

  def test_loops_and_branches(self):
    def loop(x):
      return jax.lax.scan(lambda c, _: (jnp.exp(c), None), x, length=6)[0]

    self.assertAlmostEqual(seconds(loop, array(10)), 6 * 10 / 1.0)

    def branch(x):
      def twice(x):
        return jnp.exp(jnp.sin(x))

      return jax.lax.cond(x[0] > 0, twice, jnp.exp, x)

    one = seconds(lambda x: x[0] > 0, array(10))
    self.assertAlmostEqual(seconds(branch, array(10)) - one, 20.0, delta=0.3)

  def test_shard_map_counts_for_all_devices(self):
    auto = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(auto, auto))
    spec = jax.sharding.PartitionSpec("a")
    mapped = jax.shard_map(jnp.exp, mesh=mesh, in_specs=spec, out_specs=spec)
    # Each of the four makes half of the numbers.
    self.assertAlmostEqual(seconds(mapped, array(10)), 4 * 5 / 1.0)


if __name__ == "__main__":
  absltest.main()
