"""Steps whose loops recompute, against the same steps as they were written."""

from typing import Any

import jax
import numpy as np
import pytest
import scan_cases
from absl.testing import absltest, parameterized

from jaxmem import cost
from jaxmem.versions import scan

_NUM_STEPS = 3
# Of each kind one.
_QUICK_CASES = ("layers", "dropout", "masked", "nested", "custom", "branches")


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

  def test_a_product_may_be_stacked_instead(self):
    step, args = scan_cases.cubes(128)
    seen = []
    size_bytes = 4 * 128 * 128 * scan_cases.LENGTH
    dropping = scan_cases.dropping(
      step, save_bytes=size_bytes, rates=cost.for_target("cpu"), seen=seen
    )
    got, expected = run(jax.jit(dropping), args), run(jax.jit(step), args)
    self.assertNotEmpty(seen[0].stacked)
    self.assert_bit_equal(got, expected)

  def test_bits_may_go_for_time(self):
    step, args = scan_cases.CASES["layers"]()
    for keep_bits in (True, False):
      dropping = scan_cases.dropping(step, keep_bits=keep_bits)
      got = run(jax.jit(dropping), args)
      for one, other in zip(got, run(jax.jit(step), args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
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
