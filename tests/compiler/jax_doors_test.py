"""The functions of jax's that jaxmem replaces: where they are, what passes."""

from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jax._src import compiler, pjit
from jax._src.interpreters import pxla
from jaxmem_hlo.module import Module

from jaxmem.compiler import handling, jax_doors


def _other(first, second):
  del first, second


class SignatureTest(parameterized.TestCase):
  def test_nothing_moved(self):
    # Fails, and names the function, with a jax that jaxmem does not know.
    self.assertEqual(jax_doors.what_moved(), [])

  @parameterized.parameters(
    (pxla, "lower_sharding_computation"),
    (compiler, "compile_or_get_cached"),
    (compiler, "_cache_write"),
    (pjit, "pjit_staging_rule"),
  )
  def test_what_moved_is_named(self, module, name):
    with mock.patch.object(module, name, _other):
      (moved,) = jax_doors.what_moved()
    self.assertIn(f"{module.__name__}.{name} takes (first, second)", moved)
    with mock.patch.object(module, name, None):
      (moved,) = jax_doors.what_moved()
    self.assertEqual(moved, f"{module.__name__}.{name} is gone.")

  def test_an_unknown_jax_is_left_alone(self):
    with (
      mock.patch.object(jax_doors, "_is_installed", False),
      mock.patch.object(jax_doors, "what_moved", return_value=["It moved."]),
      self.assertRaisesRegex(RuntimeError, "version of jax: It moved."),
    ):
      jax_doors.install()


def _settings(*, as_scheduled, **compiler_options):
  """Returns what XLA is told of a program that `handling` shows."""
  seen = []
  with (
    jax_doors.compiles_seen(lambda compiling: seen.append(compiling.settings)),
    handling(lambda data, platform: None, as_scheduled=as_scheduled) as options,
  ):
    lowered = jax.jit(jnp.sin).lower(jnp.ones(3))
    lowered.compile(compiler_options={**options, **compiler_options})
  return seen[0]


class HandlingTest(absltest.TestCase):
  def test_a_handler_sees_the_scheduled_module(self):
    seen = []

    def handler(data, platform):
      seen.append((Module.from_bytes(data), platform))

    def step(x):
      return jnp.tanh(x @ x).sum()

    x = jnp.ones((8, 8))
    with handling(handler) as options:
      lowered = jax.jit(step).lower(x)
      compiled = lowered.compile(compiler_options=dict(options))
      jax.jit(step)(x)
    ((module, platform),) = seen
    self.assertEqual(platform, "cpu")
    self.assertEqual(module.name, "jit_step")
    self.assertTrue(module.is_scheduled(module.entry.id))
    # The user's lines are still known.
    sources = [module.source(i) for i in module.entry.instructions]
    self.assertTrue(any("jax_doors_test.py" in source for source in sources))
    self.assertEqual(compiled(x), jax.jit(step)(x))

  def test_what_runs_as_scheduled_is_not_rematerialised(self):
    seen = [_settings(as_scheduled=each) for each in (False, True)]
    self.assertEqual([b"rematerialization" in s for s in seen], [False, True])

  def test_passes_that_the_user_disabled_stay_so(self):
    found = _settings(as_scheduled=True, xla_disable_hlo_passes="dce")
    self.assertIn(b"dce,rematerialization", found)

  def test_options_of_the_user_stay(self):
    x = jnp.ones(3)
    seen = []
    with handling(lambda data, platform: seen.append(platform)) as options:
      lowered = jax.jit(jnp.sin).lower(x)
      with self.assertRaisesRegex(Exception, "No such compile option"):
        lowered.compile(compiler_options={**options, "no_such": "1"})
      lowered.compile(
        compiler_options={**options, "xla_backend_optimization_level": "0"}
      )
    self.assertEqual(seen, ["cpu"])


if __name__ == "__main__":
  absltest.main()
