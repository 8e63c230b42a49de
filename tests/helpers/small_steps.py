"""Small train steps, one for each construct that XLA:CPU treats differently.

Each is `step(params, x) -> (params, value)`; `params` keep their shapes.
"""

import jax
import jax.numpy as jnp
import numpy as np


def normal(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _mlp(params, x):
  def loss(params):
    hidden = x
    for weights in params[:-1]:
      hidden = jnp.tanh(hidden @ weights)
    return jnp.mean((hidden @ params[-1]) ** 2)

  value, grads = jax.value_and_grad(loss)(params)
  return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


def _scan(params, x):
  def loss(params):
    def layer(hidden, weights):
      return jnp.sin(hidden @ weights), jnp.sum(hidden)

    hidden, sums = jax.lax.scan(layer, x, params)
    return jnp.mean(hidden**2) + jnp.mean(sums) * 1e-3

  value, grads = jax.value_and_grad(loss)(params)
  return params - 0.1 * grads, value


def stacking_scan(params, x):
  """A scan over layers, which stacks activations for its backward pass."""

  def loss(params):
    def layer(hidden, weights):
      return jnp.tanh(jnp.sin(hidden @ weights) * hidden), None

    hidden, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(hidden**2)

  value, grads = jax.value_and_grad(loss)(params)
  return params - 0.1 * grads, value


def _small_loop(params, x):
  # Few enough bytes for XLA to compile the whole loop into one kernel.
  def body(_, carry):
    first, second = carry
    return jnp.sin(second) + first[::-1], first * second

  first, second = jax.lax.fori_loop(0, 7, body, (params, jnp.cos(x) * 2))
  return jnp.sin(first + second), jnp.sum(first)


def _cond(params, x):
  def many(operand):
    return jnp.sin(operand @ operand) @ operand

  def few(operand):
    return jnp.cos(operand.T @ operand)

  hidden = jnp.tanh(params @ x)
  result = jax.lax.cond(jnp.sum(hidden) > 0, many, few, hidden)
  return jnp.tanh(result @ x.T), jnp.sum(result)


def _update_slice(params, x):
  hidden = params @ x
  rows = jnp.sin(x[:8]) @ hidden
  updated = jax.lax.dynamic_update_slice(hidden, rows, (4, 0))
  return jnp.tanh(updated @ updated.T), jnp.sum(updated)


def _conv(params, x):
  def loss(params):
    hidden = x
    for kernel in params:
      hidden = jax.nn.relu(
        jax.lax.conv_general_dilated(
          hidden,
          kernel,
          (1, 1),
          "SAME",
          dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
      )
    return jnp.mean(hidden**2)

  value, grads = jax.value_and_grad(loss)(params)
  return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


def _sort(params, x):
  hidden = jnp.sin(params @ x)
  order = jnp.argsort(hidden @ x, axis=1)
  return jnp.tanh(hidden @ x), jnp.sum(order * hidden)


def _solve(params, x):
  system = params @ params.T + 10 * jnp.eye(params.shape[0])
  return jnp.linalg.solve(system, x), jnp.sum(system)


# Name -> (step, params, x).
STEPS = {
  "mlp": (_mlp, [normal(i, 64, 64) for i in range(4)], normal(9, 32, 64)),
  "scan": (_scan, normal(0, 5, 48, 48) * 0.2, normal(1, 16, 48)),
  "small_loop": (_small_loop, normal(0, 6), normal(1, 6)),
  "cond": (_cond, normal(0, 48, 48) * 0.1, normal(1, 48, 48)),
  "update_slice": (_update_slice, normal(0, 48, 48), normal(1, 48, 48)),
  "conv": (
    _conv,
    [normal(i, 3, 3, 4, 4) * 0.2 for i in range(3)],
    normal(9, 2, 12, 12, 4),
  ),
  "sort": (_sort, normal(0, 32, 32) * 0.1, normal(1, 32, 32)),
  "solve": (_solve, normal(0, 24, 24), normal(1, 24, 24)),
}
