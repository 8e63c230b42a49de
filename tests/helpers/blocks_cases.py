"""Train steps that repeat a block, for tests of versions.blocks.

Each builder returns a function of `(params, opt_state, batch)` and arrays for
it, as `scan_cases.train` does.
"""

import jax
import jax.numpy as jnp
import optax
from scan_cases import Case, accumulate, normal, train

from jaxmem.jaxpr.flatten import flatten
from jaxmem.versions.values import Values

WIDTH = 16
NUM_ROWS = 96
NUM_BLOCKS = 5


def weights(dtype=jnp.float32):
  return [
    {
      "w": normal(3 * i, WIDTH, 2 * WIDTH, dtype=dtype),
      "v": normal(3 * i + 1, 2 * WIDTH, WIDTH, dtype=dtype),
      "b": normal(3 * i + 2, 2 * WIDTH, dtype=dtype),
    }
    for i in range(NUM_BLOCKS)
  ]


def batch(dtype=jnp.float32):
  return normal(99, NUM_ROWS, WIDTH, dtype=dtype)


def block(x, p):
  scale = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3)
  return x + jnp.tanh((x * scale) @ p["w"] + p["b"]) @ p["v"]


def _mean_square(x):
  return jnp.mean(x.astype(jnp.float32) ** 2)


def stacked(params, x):
  for p in params:
    x = block(x, p)
  return _mean_square(x)


def _chain() -> Case:
  return train(stacked, weights(), batch(), optax.adamw(1e-2))


def _bfloat16() -> Case:
  def loss(params, x):
    low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    return stacked(low, x.astype(jnp.bfloat16))

  return train(loss, weights(), batch(), optax.sgd(1e-2))


def _dropout() -> Case:
  def loss(params, rest):
    x, seed = rest
    key = jax.random.key(seed)
    for i, p in enumerate(params):
      mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.7, x.shape)
      x = x + jnp.where(mask, block(x, p), 0)
    return _mean_square(x)

  return train(loss, weights(), (batch(), jnp.int32(7)))


@jax.custom_vjp
def _clipped(x):
  return jnp.sin(x)


_clipped.defvjp(
  lambda x: (jnp.sin(x), jnp.cos(x)), lambda cos, g: (jnp.clip(g * cos, -1, 1),)
)


def _custom_derivative() -> Case:
  def loss(params, x):
    for p in params:
      x = x + _clipped(x @ p["w"] + p["b"]) @ p["v"]
    return _mean_square(x)

  return train(loss, weights(), batch())


def _branches() -> Case:
  def loss(params, x):
    for p in params:
      hidden = x @ p["w"]
      hidden = jax.lax.cond(
        jnp.sum(hidden) > 0, jnp.tanh, lambda h: jnp.sin(h) * h, hidden
      )
      x = x + hidden @ p["v"]
    return _mean_square(x)

  return train(loss, weights(), batch())


def _ragged_experts() -> Case:
  def loss(params, x):
    for p in params:
      experts = p["w"].reshape(WIDTH, 2, WIDTH).transpose(1, 0, 2)
      chosen = (x[:, 0] > 0).astype(jnp.int32)
      rows, sizes = jnp.argsort(chosen), jnp.bincount(chosen, length=2)
      hidden = jnp.tanh(jax.lax.ragged_dot(jnp.sin(x)[rows], experts, sizes))
      x = x + jnp.zeros_like(x).at[rows].set(hidden)
    return _mean_square(x)

  return train(loss, weights(), batch())


def _inner_scan() -> Case:
  def loss(params, x):
    for p in params:
      hidden = jnp.tanh(x @ p["w"])

      def body(h, _):
        return jnp.sin(h) * 1.1, jnp.sum(h)

      hidden, sums = jax.lax.scan(body, hidden, None, length=3)
      x = x + hidden @ p["v"] + jnp.mean(sums)
    return _mean_square(x)

  return train(loss, weights(), batch())


def _while_loop() -> Case:
  def loss(params, x):
    for p in params:
      # A bound that no gradient goes through; its loop must not run again.
      bound = jax.lax.while_loop(
        lambda s: s < 2.0, lambda s: s * 1.5, jnp.float32(0.7)
      )
      x = x + jnp.tanh(x @ p["w"] * bound) @ p["v"]
    return _mean_square(x)

  return train(loss, weights(), batch())


def _printing() -> Case:
  def loss(params, x):
    for p in params:
      hidden = jnp.tanh(x @ p["w"])
      jax.debug.callback(lambda _: None, jnp.sum(hidden))
      x = x + hidden @ p["v"]
    return _mean_square(x)

  return train(loss, weights(), batch())


def _mask_of_all() -> Case:
  def loss(params, x):
    mask = jnp.tril(jnp.ones((NUM_ROWS, NUM_ROWS)))
    for p in params:
      x = x + mask @ jnp.tanh(x @ p["w"]) @ p["v"] / NUM_ROWS
    return _mean_square(x)

  return train(loss, weights(), batch())


def _convolutions() -> Case:
  def loss(params, x):
    x = x.reshape(4, 24, 8, 2)
    for p in params:
      kernel = p["w"][:3, :6].reshape(3, 3, 2, 1)
      kernel = jnp.concatenate([kernel, kernel[::-1]], -1)
      hidden = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
      )
      mean = jnp.mean(hidden, (0, 1, 2))
      hidden = (hidden - mean) * jax.lax.rsqrt(
        jnp.var(hidden, (0, 1, 2)) + 1e-3
      )
      x = x + jax.nn.relu(hidden)
    return _mean_square(x)

  return train(loss, weights(), batch())


def _parts_of_a_batch() -> Case:
  return accumulate(stacked, weights(), batch().reshape(2, -1, WIDTH))


def _two_losses() -> Case:
  """Two forward and backward passes in turn, the second on new parameters."""

  def step(params, state, x):
    for sign in (1, -1):
      value, gradients = jax.value_and_grad(stacked)(params, sign * x)
      params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    return params, state, value

  return step, (weights(), (), batch())


def updated(params, x):
  """Returns parameters after one update by the gradients of their own loss."""
  p, *others = params
  gradients = jax.grad(lambda p: _mean_square(block(x, p)))(p)
  return [jax.tree.map(lambda a, b: a - 0.1 * b, p, gradients), *others]


def learned(params, x, update=updated):
  """Returns the loss after as many updates as there are blocks."""
  for _ in range(NUM_BLOCKS):
    params = update(params, x)
  return _mean_square(block(jnp.sin(x), params[0]))


def _inner_updates() -> Case:
  """Derivatives of a function that takes gradients itself."""
  return train(learned, weights(), batch())


def curvature(params, x):
  """Returns the product of a Hessian and a vector, forward over reverse."""
  tangents = jax.tree.map(jnp.sign, params)
  gradient = jax.grad(stacked)
  return jax.jvp(lambda p: gradient(p, x), (params,), (tangents,))[1]


def _activations_returned() -> Case:
  """Returns what a block holds, so that it stays anyway."""

  def loss(params, x):
    held = []
    for p in params:
      hidden = jnp.tanh(x @ p["w"])
      held.append(hidden)
      x = x + hidden @ p["v"]
    return _mean_square(x), held

  def step(params, state, x):
    del state
    (value, held), gradients = jax.value_and_grad(loss, has_aux=True)(params, x)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    return params, held, value

  return step, (weights(), (), batch())


CASES = {
  "chain": _chain,
  "bfloat16": _bfloat16,
  "dropout": _dropout,
  "custom derivative": _custom_derivative,
  "branches": _branches,
  "ragged experts": _ragged_experts,
  "inner scan": _inner_scan,
  "while loop": _while_loop,
  "callbacks": _printing,
  "mask of all": _mask_of_all,
  "convolutions": _convolutions,
  "parts of a batch": _parts_of_a_batch,
  "two losses": _two_losses,
  "inner updates": _inner_updates,
  "activations returned": _activations_returned,
}


def closed_jaxpr(name):
  """Returns the jaxpr of a case."""
  step, args = CASES[name]()
  return jax.make_jaxpr(step)(*args)


def values(name):
  """Returns the values of a case's flat jaxpr."""
  return Values(flatten(closed_jaxpr(name)))
