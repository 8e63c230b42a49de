"""Steps whose loops recompute, against the same steps as they were written."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scan_cases
from absl.testing import absltest, parameterized
from rewritten import rewritten

from jaxmem.versions import scan
from jaxmem.versions.scan.levels import make_level
from jaxmem.versions.scan.rewrite import rewrite_level

_NUM_STEPS = 3
# Of each kind one.
_QUICK_CASES = (
  "layers",
  "scaled",
  "dropout",
  "masked",
  "nested",
  "custom",
  "branches",
)


def run(step: Any, args: tuple[Any, ...]) -> list[Any]:
  """Runs a jitted step a few times; returns all leaves of the results."""
  params, state, batch = args
  losses = []
  for _ in range(_NUM_STEPS):
    params, state, loss = step(params, state, batch)
    losses.append(loss)
  return jax.tree.leaves((params, state, losses))


class ParityTest(parameterized.TestCase):
  def assert_bit_equal(self, got: list[Any], expected: list[Any]):
    self.assertEqual(len(got), len(expected))
    for one, other in zip(got, expected, strict=True):
      one, other = np.asarray(one), np.asarray(other)
      self.assertEqual(one.dtype, other.dtype)
      np.testing.assert_array_equal(
        one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8)
      )

  def assert_close(self, got: list[Any], expected: list[Any]):
    for one, other in zip(got, expected, strict=True):
      tolerance = 2e-2 if one.dtype == jnp.bfloat16 else 1e-4
      np.testing.assert_allclose(
        np.asarray(one, np.float64),
        np.asarray(other, np.float64),
        rtol=tolerance,
        atol=tolerance / 10,
      )

  @parameterized.parameters(*_QUICK_CASES)
  def test_results_are_bit_equal(self, name):
    self._check(name)

  @parameterized.parameters(*sorted({*scan_cases.CASES} - {*_QUICK_CASES}))
  @pytest.mark.slow
  def test_results_of_others_are_bit_equal(self, name):
    self._check(name)

  def _check(self, name):
    step, args = scan_cases.CASES[name]()
    seen = []
    expected = run(jax.jit(step), args)
    got = run(jax.jit(scan_cases.dropping(step, seen=seen)), args)
    self.assertLen(seen, 1)
    self.assertNotEmpty(seen[0].dropped)
    self.assertGreater(seen[0].saved_bytes, 0)
    self.assert_bit_equal(got, expected)

  def test_bits_of_some_drops_are_equal(self):
    self._check_some(2)

  @parameterized.parameters(3, 5)
  @pytest.mark.slow
  def test_bits_of_fewer_drops_are_equal(self, stride):
    self._check_some(stride)

  def _check_some(self, stride):
    """What stays is read by what runs again, too, and by the backward pass."""
    step, args = scan_cases.CASES["scaled"]()

    def rewrite(jaxpr):
      level = make_level(jaxpr)
      ((pair, _),) = level.walk()
      names = [r.name for r in pair.residuals][::stride]
      return rewrite_level(level, {*names}, keep_bits=True)[0]

    got = run(jax.jit(rewritten(step, rewrite)), args)
    self.assert_bit_equal(got, run(jax.jit(step), args))

  def test_products_may_be_stacked_instead(self):
    self._check_stacks("cubes")

  @parameterized.parameters(
    "bfloat16", "custom", "dropout", "layers", "several"
  )
  @pytest.mark.slow
  def test_products_of_others_may_be_stacked_instead(self, name):
    self._check_stacks(name)

  def _check_stacks(self, name):
    """Drops all, and stacks all products instead, whatever that takes."""
    step, args = scan_cases.CASES[name]()
    stacked = []

    def rewrite(jaxpr):
      level = make_level(jaxpr)
      pairs = [pair for pair, _ in level.walk()]
      products = [
        pair.stack_name(var)
        for pair in pairs
        for eqn in pair.body.eqns
        if eqn.primitive.name == "dot_general"
        for var in eqn.outvars
      ]
      residuals = {r.name for pair in pairs for r in pair.residuals}
      stacked.extend(products)
      changed, _ = rewrite_level(
        level, {*residuals, *products}, keep_bits=False
      )
      return changed

    got = run(jax.jit(rewritten(step, rewrite)), args)
    self.assertNotEmpty(stacked)
    self.assert_close(got, run(jax.jit(step), args))

  def test_bits_may_go_for_time(self):
    step, args = scan_cases.CASES["layers"]()
    for keep_bits in (True, False):
      dropping = scan_cases.dropping(step, keep_bits=keep_bits)
      got = run(jax.jit(dropping), args)
      self.assert_close(got, run(jax.jit(step), args))
      text = str(jax.make_jaxpr(dropping)(*args))
      self.assertEqual("optimization_barrier" in text, keep_bits)

  @parameterized.parameters(*scan_cases.UNCHANGED)
  def test_what_has_nothing_to_drop_is_unchanged(self, name):
    step, args = scan_cases.UNCHANGED[name]()
    jaxpr = jax.make_jaxpr(step)(*args)
    rewritten = scan.rewrite_step(jaxpr, "all", scan_cases.RATES)
    self.assertIs(rewritten.closed_jaxpr, jaxpr)
    self.assertEmpty(rewritten.dropped)
    self.assertEqual(rewritten.saved_bytes, 0)


if __name__ == "__main__":
  absltest.main()
