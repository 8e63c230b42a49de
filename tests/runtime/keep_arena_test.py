"""Tests of jaxmem.jit with Options(keep_arena=True)."""

import warnings

import jax
import numpy as np
from absl.testing import absltest
from watched import WatchedTest, arrays, both, branches

import jaxmem
from jaxmem.runtime import kept_arena


class KeepArenaTest(WatchedTest):
  _OPTIONS = jaxmem.Options(keep_arena=True)

  def test_same_bits_and_one_arena_for_each_signature(self):
    x, y = arrays()
    plain = jaxmem.jit(both)
    kept = jaxmem.jit(both, options=self._OPTIONS)
    for args in ((x, y), (x[:8], y), (x, y), (np.asarray(x), y), (x * 2, y)):
      for got, want in zip(kept(*args), plain(*args), strict=True):
        np.testing.assert_array_equal(got, want)
    arenas = list(kept._compiled.values())
    self.assertLen(arenas, 3)  # Of a shape, another, and of numpy's array.
    for one in arenas:
      self.assertIsInstance(one, kept_arena.KeptArena)
      self.assertLen(one._free, 1)
    kept.release()
    self.assertFalse(any(one._free for one in arenas))
    np.testing.assert_array_equal(kept(x, y)[0], plain(x, y)[0])

  def test_decorator_and_donation(self):
    @jaxmem.jit(donate_argnums=0, options=self._OPTIONS)
    def step(x, y):
      """Says what it does."""
      return x + branches(x, y), y.sum()

    x, y = arrays()
    expected = x + jax.jit(branches)(x, y)
    for _ in range(2):
      given = x + 0
      result, _ = step(given, y)
      np.testing.assert_allclose(result, expected, rtol=1e-5)
      self.assertTrue(given.is_deleted())
    self.assertEqual(step.__doc__, "Says what it does.")
    self.assertIsInstance(step.lower(x, y), jax.stages.Lowered)

  def test_composes_with_jax(self):
    x, y = arrays()
    kept = jaxmem.jit(both, options=self._OPTIONS)

    def loss(x):
      return kept(x, y)[0]

    expected = jax.grad(lambda x: both(x, y)[0])(x)
    np.testing.assert_allclose(jax.grad(loss)(x), expected, rtol=1e-3)
    np.testing.assert_allclose(jax.jit(loss)(x), loss(x), rtol=1e-4)
    with jax.disable_jit():
      np.testing.assert_allclose(loss(x), both(x, y)[0], rtol=1e-4)

  def test_another_precision_is_another_program(self):
    x, y = arrays()
    kept = jaxmem.jit(both, options=self._OPTIONS)
    kept(x, y)
    with jax.default_matmul_precision("highest"):
      kept(x, y)
    self.assertLen(kept._compiled, 2)
    kept.clear_cache()
    self.assertEmpty(kept._compiled)

  def test_errors_are_jaxs(self):
    kept = jaxmem.jit(both, options=self._OPTIONS)
    with self.assertRaisesRegex(TypeError, "missing 1 required"):
      kept(arrays()[0])
    with self.assertRaisesRegex(TypeError, "as an abstract array"):
      kept("x", "y")

  def test_nothing_to_keep(self):
    kept = jaxmem.jit(lambda x: x + 1, options=self._OPTIONS)
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      self.assertEqual(kept(1.0), 2.0)

  def test_static_arguments_are_refused(self):
    with self.assertRaisesRegex(ValueError, "support static_argnums"):
      jaxmem.jit(both, static_argnums=1, options=self._OPTIONS)


if __name__ == "__main__":
  absltest.main()
