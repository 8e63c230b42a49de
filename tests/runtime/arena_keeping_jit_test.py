"""Functions that keep their arenas choose what runs as jax does."""

import copy
import threading

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.experimental.layout import Format, Layout

import jaxmem

_OPTIONS = jaxmem.Options(keep_arena=True)


def _step(x):
  hidden = x
  for _ in range(4):
    hidden = jnp.tanh(hidden @ x) @ x
  return hidden


def _kept(fun=_step):
  return jaxmem.jit(fun, options=_OPTIONS)


def _array():
  generator = np.random.default_rng(0)
  return jnp.asarray(generator.normal(size=(32, 32)) / 6, jnp.float32)


class ArenaKeepingJitTest(parameterized.TestCase):
  def assert_equal_to_jax(self, result, x=None):
    expected = jax.jit(_step)(_array() if x is None else x)
    np.testing.assert_array_equal(result, expected)

  def test_settings_of_jax_have_programs_of_their_own(self):
    def noisy(key, x):
      for _ in range(4):
        x = jnp.tanh(x @ x) + jax.random.normal(key, x.shape)
      return x

    kept = _kept(noisy)
    key, x = jax.random.key(0), jnp.ones((32, 32))
    results = []
    for partitionable in (True, False, True):
      with jax.threefry_partitionable(partitionable):
        np.testing.assert_array_equal(kept(key, x), jax.jit(noisy)(key, x))
        results.append(np.asarray(kept(key, x)))
    self.assertFalse(np.array_equal(results[0], results[1]))
    np.testing.assert_array_equal(results[0], results[2])

  def test_the_default_device(self):
    kept = _kept()
    for device in (*jax.devices()[:2], jax.devices()[0]):
      with jax.default_device(device):
        x = np.asarray(_array())
        self.assertEqual(kept(x).devices(), {device})

  def test_references(self):
    def add(ref, x):
      ref[...] += _step(x)
      return ref[...].sum()

    results = []
    for jit in (jax.jit, lambda fun: _kept(fun)):
      ref = jax.new_ref(jnp.zeros((32, 32)))
      jitted = jit(add)
      results.append([jitted(ref, _array()) for _ in range(3)])
      closed = jit(lambda x, ref=ref: add(ref, x))
      results[-1] += [closed(_array()) for _ in range(2)]
    np.testing.assert_array_equal(*results)

  def test_a_first_call_inside_a_trace(self):
    kept, x = _kept(), _array()
    np.testing.assert_allclose(
      jax.jit(lambda y: kept(x) + y)(1.0), jax.jit(_step)(x) + 1.0, rtol=1e-6
    )
    self.assert_equal_to_jax(kept(x))

  def test_a_call_of_itself_while_it_compiles(self):
    calls = []

    def step(x):
      if len(x) == 32 and not calls:
        calls.append(kept(jnp.ones((16, 16))))
      return _step(x)

    kept = _kept(lambda x: step(x))
    self.assert_equal_to_jax(kept(_array()))
    self.assertLen(calls, 1)

  def test_a_thread_that_calls_it_while_it_compiles(self):
    found = []

    def step(x):
      if len(x) == 32 and not found:
        thread = threading.Thread(
          target=lambda: found.append(kept(jnp.ones((16, 16)))), daemon=True
        )
        thread.start()
        thread.join(60)
      return _step(x)

    kept = _kept(lambda x: step(x))
    self.assert_equal_to_jax(kept(_array()))
    self.assertLen(found, 1)

  def test_exports_hold_the_plain_program(self):
    kept, x = _kept(), _array()
    kept(x)
    exported = jax.export.export(kept)(x)
    self.assertEqual(exported.fun_name, "_step")
    self.assertLen(exported.in_avals, 1)
    own = jax.export.export(jax.jit(_step))(x)
    self.assertEqual(exported.mlir_module(), own.mlir_module())
    self.assert_equal_to_jax(exported.call(x))

  def test_copies(self):
    kept = _kept()
    self.assert_equal_to_jax(copy.copy(kept)(_array()))

  def test_layouts(self):
    kept, x = _kept(), _array()
    self.assert_equal_to_jax(kept(x))
    column_major = Format(Layout((1, 0)), x.sharding)
    y = jax.device_put(x, column_major)
    np.testing.assert_allclose(kept(y), jax.jit(_step)(y), rtol=1e-6)

  def test_transfer_guard(self):
    kept, x = _kept(), _array()
    expected = jax.jit(_step)(x)
    with jax.transfer_guard("disallow"):
      result = kept(x)
    np.testing.assert_array_equal(result, expected)

  def test_debug_nans(self):
    kept = _kept(lambda x: jnp.log(_step(x) - 100.0) @ x)
    self.assertTrue(np.isnan(np.asarray(kept(_array()))).all())
    with jax.debug_nans(True), self.assertRaises(FloatingPointError):
      kept(_array())


if __name__ == "__main__":
  absltest.main()
