"""Tests of jaxmem.on_host: an optimizer's state in the host's memory."""

import functools
import unittest

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_steps
from absl.testing import absltest, parameterized

import jaxmem
from benchmarks import zoo
from jaxmem import targets

_NUM_STEPS = 3

needs_plugin = unittest.skipUnless(
  targets.is_available("h200"), "needs JAX's CUDA plugin"
)


_OPTIMIZER = optax.adam(1e-3)


def _step(params, state, x):
  """Few kernels: XLA takes long to compile them for a GPU."""

  def loss(params):
    hidden = x
    for weights in params:
      hidden = jnp.tanh(hidden @ weights)
    return jnp.mean(hidden**2)

  value, grads = jax.value_and_grad(loss)(params)
  updates, state = _OPTIMIZER.update(grads, state)
  return optax.apply_updates(params, updates), state, value


def _arguments():
  params = [small_steps.normal(i, 64, 64) for i in range(6)]
  return params, _OPTIMIZER.init(params), small_steps.normal(9, 256, 64)


def _plan(step, **kwargs):
  return jaxmem.plan(
    step, *_arguments(), target="h200", donate_argnums=(0, 1), **kwargs
  )


@functools.cache
def _moved():
  return _plan(jaxmem.on_host(_step, 1, 1))


def _bytes(tree) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


class OnHostTest(parameterized.TestCase):
  @pytest.mark.slow
  def test_nothing_changes_on_a_cpu(self):
    step = zoo.build("gpt2_small", 2, size="tiny")
    functions = (
      jax.jit(step.function, **step.jit_kwargs),
      jaxmem.jit(jaxmem.on_host(step.function, 1, 1), **step.jit_kwargs),
    )
    seen = []
    moves = (lambda x: x, jaxmem.to_host)
    for function, move in zip(functions, moves, strict=True):
      variables, opt_state, *batch = jax.tree.map(jnp.array, zoo.concrete(step))
      opt_state = move(opt_state)
      for _ in range(_NUM_STEPS):
        variables, opt_state, loss = function(variables, opt_state, *batch)
      seen.append(jax.tree.leaves((variables, opt_state, loss)))
    for plain, moved in zip(*seen, strict=True):
      np.testing.assert_array_equal(plain, moved)

  @needs_plugin
  @pytest.mark.slow
  def test_on_a_gpu_it_takes_no_device_memory(self):
    plain, plan = _plan(_step), _moved()
    # XLA's own figures: the state is gone from the arguments.
    state = _arguments()[1]
    state_bytes = _bytes(state)
    self.assertEqual(plain.argument_bytes - plan.argument_bytes, state_bytes)
    self.assertEqual(plan.model_error, 0)
    self.assertLess(plan.temp_bytes, plan.baseline_temp_bytes)
    # It comes in, and goes out.
    starts = [n for n in plan.order if n.startswith(("fetch-st", "copy-st"))]
    self.assertLen(starts, 2 * len(jax.tree.leaves(state)))
    host = plan.host
    assert host is not None
    self.assertEqual(host.argument_bytes, state_bytes)
    self.assertEqual(host.from_host_bytes, state_bytes)
    self.assertIn("come in", str(plan))
    self.assertEqual(jaxmem.Plan.from_json(plan.to_json()), plan)
    plan.verify()

  @needs_plugin
  def test_a_limit_that_the_state_alone_would_break(self):
    limit = _moved().total_bytes - _moved().temp_bytes // 10
    limited = _plan(jaxmem.on_host(_step, 1, 1), memory_limit=limit)
    self.assertLessEqual(limited.total_bytes, limit)
    self.assertEqual(limited.model_error, 0)

  def test_arrays_of_a_cpu_and_shapes_stay(self):
    for leaf in (jnp.ones(3), jax.ShapeDtypeStruct((3,), jnp.float32)):
      self.assertIs(jaxmem.to_host({"x": leaf})["x"], leaf)

  @parameterized.parameters(
    (2, 0, "argument 2, but the step has 2"), (0, (0, 1), "result 1")
  )
  def test_numbers_that_are_not_there(self, argnums, outnums, message):
    step = jaxmem.on_host(lambda x, y: (x + y,), argnums, outnums)
    with self.assertRaisesRegex(ValueError, message):
      step(1.0, 2.0)

  def test_a_step_that_returns_no_tuple(self):
    step = jaxmem.on_host(lambda x: [x], 0, 0)
    with self.assertRaisesRegex(TypeError, "returns a tuple"):
      step(1.0)


if __name__ == "__main__":
  absltest.main()
