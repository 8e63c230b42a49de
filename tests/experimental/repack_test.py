"""Tests of repack: real steps with their temporaries placed anew."""

import warnings

import cpu_steps
import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized
from jaxmem_hlo.cpu_executable import UnsupportedExecutableError

from benchmarks import zoo
from jaxmem.experimental.repack import repack


class RepackTest(parameterized.TestCase):
  @pytest.mark.slow
  def test_same_bits_in_less_memory(self):
    self._check(cpu_steps.MODELS[0])

  @parameterized.parameters(*cpu_steps.MODELS[1:])
  @pytest.mark.slow
  def test_same_bits_in_less_memory_of_others(self, name):
    self._check(name)

  def _check(self, name):
    compiled, repacked = cpu_steps.pair(name)
    self.assertIsNot(repacked, compiled)
    self.assertIsInstance(repacked, jax.stages.Compiled)
    self.assertLess(
      cpu_steps.temp_bytes(repacked), 0.99 * cpu_steps.temp_bytes(compiled)
    )
    self.assertEqual(
      cpu_steps.run(name, repacked), cpu_steps.run(name, compiled)
    )

  @pytest.mark.slow
  def test_donation_is_kept(self):
    name = cpu_steps.MODELS[-1]
    state = zoo.concrete(zoo.build(name, 2, size="tiny"))
    cpu_steps.pair(name)[1](*state)
    self.assertTrue(all(x.is_deleted() for x in jax.tree.leaves(state[:2])))

  def test_nothing_to_gain(self):
    def step(x):
      return jnp.tanh(x @ x) @ x

    compiled = jax.jit(step).lower(jnp.ones((32, 32))).compile()
    self.assertIs(repack(compiled, strict=True), compiled)

  def test_what_is_not_understood_is_returned_with_a_warning(self):
    compiled = jax.jit(lambda x: x + 1).lower(jnp.ones(4)).compile()
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      self.assertIs(repack(compiled), compiled)
    self.assertLen(caught, 1)
    self.assertIn("no temporaries", str(caught[0].message))
    with self.assertRaises(UnsupportedExecutableError):
      repack(compiled, strict=True)

  @pytest.mark.slow
  def test_an_executable_that_was_repacked_before(self):
    repacked = cpu_steps.pair(cpu_steps.MODELS[0])[1]
    with self.assertWarnsRegex(RuntimeWarning, "was loaded, not compiled"):
      self.assertIs(repack(repacked), repacked)


if __name__ == "__main__":
  absltest.main()
