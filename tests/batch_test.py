"""The largest batch that fits."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized

import jaxmem
from jaxmem import Options
from jaxmem.entry import memory

_OPTIONS = Options(effort="fast")


def _factory(batch: int) -> tuple[Any, Any, dict[str, Any]]:
  def step(params, x):
    def loss(params):
      hidden = x
      for weights in params:
        hidden = jnp.tanh(hidden @ weights)
      return jnp.mean(hidden**2)

    grads = jax.grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)]

  weights = jax.ShapeDtypeStruct((32, 32), jnp.float32)
  x = jax.ShapeDtypeStruct((batch, 32), jnp.float32)
  return step, ([weights] * 3, x), {"donate_argnums": 0}


class MaxBatchTest(parameterized.TestCase):
  @parameterized.parameters((1, 1), (64, 32))
  @pytest.mark.slow
  def test_the_next_batch_does_not_fit(self, start, multiple_of):
    found = jaxmem.max_batch(
      _factory,
      limit="400KB",
      start=start,
      multiple_of=multiple_of,
      options=_OPTIONS,
    )
    self.assertEqual(found.batch % multiple_of, 0)
    self.assertLessEqual(found.plan.total_bytes, 400_000)
    self.assertLess(len(found.smallest_bytes), 10)
    step, args, jit_kwargs = _factory(found.batch + multiple_of)
    with self.assertRaises(jaxmem.InfeasibleError):
      jaxmem.plan(
        step, *args, memory_limit="400KB", options=_OPTIONS, **jit_kwargs
      )
    self.assertIn(f"largest batch {found.batch}", str(found))

  def test_not_even_one_fits(self):
    with self.assertRaisesRegex(jaxmem.InfeasibleError, "Not even batch 1 "):
      jaxmem.max_batch(_factory, limit="10KB", options=_OPTIONS)

  @parameterized.parameters(
    (None, "90% of jax's pool of 488 KiB"), ("50%", "50% of jax's pool of")
  )
  def test_a_limit_may_be_a_share_of_the_pool(self, limit, words):
    with mock.patch.object(memory, "pool_bytes", return_value=500_000):
      found = jaxmem.max_batch(
        _factory, limit=limit, multiple_of=32, options=_OPTIONS
      )
    assert found.plan.budget is not None
    expected = 450_000 if limit is None else 250_000
    self.assertEqual(found.plan.budget.limit_bytes, expected)
    self.assertLessEqual(found.plan.total_bytes, expected)
    self.assertIn(words, str(found))

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, "positive multiple of"):
      jaxmem.max_batch(_factory, limit="1MB", start=5, multiple_of=2)
    with self.assertRaisesRegex(ValueError, "^limit must be a number of bytes"):
      jaxmem.max_batch(_factory, limit="many")
    with self.assertRaisesRegex(ValueError, "step_factory must return"):
      jaxmem.max_batch(lambda batch: (batch,), limit="1MB")


if __name__ == "__main__":
  absltest.main()
