"""The figures that `jaxmem run` prints and draws of a planned compile."""

from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest

import jaxmem
from jaxmem.entry import PLANNED
from jaxmem.script.pictures import main_figures
from tests.helpers import small_steps

_FUNCTIONS = (
  jnp.sin,
  jnp.tanh,
  jax.nn.silu,
  jax.nn.gelu,
  jax.nn.softplus,
  jnp.cos,
  jax.nn.sigmoid,
  jax.nn.elu,
)
_FAST = jaxmem.Options(effort="fast")


def _unrolled(params, x):
  def loss(params):
    hidden = x
    for i, weights in enumerate(params):
      # No two layers are alike, so there are no blocks.
      hidden = _FUNCTIONS[i](hidden @ weights) + i * hidden
    return jnp.mean(hidden**2)

  return jax.grad(loss)(params)


def _figures(step, limit_bytes=None):
  """Compiles a step; returns the compiled one and its main figures."""
  args = 0.2 * small_steps.normal(0, 8, 16, 16), small_steps.normal(1, 512, 16)
  heard = []
  with mock.patch.object(
    PLANNED.records, "listener", lambda *told: heard.append(main_figures(*told))
  ):
    jitted = jaxmem.jit(step, memory_limit=limit_bytes, options=_FAST)
    compiled = jitted.lower(*args).compile()
  (figures,) = heard
  return compiled, dict(figures)


def _limit(compiled):
  """Returns a limit that takes three quarters of a step's temporaries."""
  memory = compiled.memory_analysis()
  fixed_bytes = memory.argument_size_in_bytes + memory.output_size_in_bytes
  return fixed_bytes + memory.temp_size_in_bytes * 3 // 4


class MainFiguresTest(absltest.TestCase):
  def test_xlas_plan_is_of_the_step_as_it_is_written(self):
    compiled, free = _figures(small_steps.stacking_scan)
    _, limited = _figures(small_steps.stacking_scan, _limit(compiled))
    self.assertEqual(limited["XLA's temporaries"], free["XLA's temporaries"])
    self.assertNotIn("XLA's with less kept", free)
    self.assertIn("XLA's with less kept", limited)
    self.assertNotEqual(
      limited["XLA's with less kept"], limited["XLA's temporaries"]
    )
    self.assertEqual(limited["Status"], "feasible")

  def test_edits_change_nothing_that_xla_saw(self):
    compiled, free = _figures(_unrolled)
    _, limited = _figures(_unrolled, _limit(compiled))
    self.assertEqual(limited["XLA's temporaries"], free["XLA's temporaries"])
    self.assertGreater(int(limited["Operations run twice"]), 0)
    self.assertNotIn("XLA's with less kept", limited)
    self.assertEqual(limited["Status"], "feasible")


if __name__ == "__main__":
  absltest.main()
