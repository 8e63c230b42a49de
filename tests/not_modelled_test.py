"""What is not modelled is said to be so: no plan of it is called optimal."""

import types
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jaxmem_hlo.buffers import UnsupportedModuleError, dataflow

import jaxmem
from jaxmem import step_planner


def _step(x):
  return jnp.sort(jnp.tanh(x) @ x.T).sum(), jnp.cumsum(x, 0)


def _plan() -> jaxmem.Plan:
  return jaxmem.plan(_step, jax.ShapeDtypeStruct((64, 64), jnp.float32))


def _with_more_temporaries(missed_bytes: int):
  """Has XLA report more temporaries than it allocates."""
  real = step_planner._memory

  def memory(compiled):
    told = real(compiled)
    names = [name for name in dir(told) if name.endswith("_in_bytes")]
    found = {name: getattr(told, name) for name in names}
    found["temp_size_in_bytes"] += missed_bytes
    return types.SimpleNamespace(**found)

  return mock.patch.object(step_planner, "_memory", memory)


class NotModelledTest(parameterized.TestCase):
  def test_what_xla_confirms(self):
    plan = _plan()
    self.assertEqual(plan.model_error, 0)
    self.assertGreater(plan.lower_bound_bytes, 0)
    self.assertNotIn("not modelled", str(plan))

  def test_a_prediction_that_xla_does_not_confirm(self):
    with _with_more_temporaries(4096):
      plan = _plan()
    self.assertEqual(plan.model_error, -4096)
    self.assertNotEqual(plan.status, "optimal")
    self.assertEqual(plan.lower_bound_bytes, 0)
    self.assertIn("none: not modelled", str(plan))
    self.assertNotIn("gap", str(plan))

  def test_an_operation_that_is_not_known(self):
    with (
      mock.patch.object(
        dataflow, "_UNSUPPORTED", frozenset({"fusion", "call"})
      ),
      self.assertRaisesRegex(RuntimeError, "not modelled; .* has opcode") as e,
    ):
      _plan()
    self.assertIsInstance(e.exception.__cause__, UnsupportedModuleError)


if __name__ == "__main__":
  absltest.main()
