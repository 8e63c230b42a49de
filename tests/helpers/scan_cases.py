"""Train steps with loops, small enough to run, for tests of versions.scan.

Each builder returns a function of `(params, opt_state, batch)` and arrays for
it. The function returns new parameters and state, and the loss.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend import core
from rewritten import rewritten

from jaxmem import cost
from jaxmem.versions import scan

Case = tuple[Callable[..., Any], tuple[Any, ...]]

WIDTH = 16
LENGTH = 3
BATCH = 5
RATES = cost.for_target("h200")


def dropping(
  step: Callable[..., Any],
  *,
  save_bytes: scan.SaveBytes = "all",
  rates: cost.Rates = RATES,
  keep_bits: bool = True,
  seen: list[scan.Rewritten] | None = None,
) -> Callable[..., Any]:
  """Returns a step whose loops drop so much, which is added to `seen`."""

  def rewrite(jaxpr: core.Jaxpr) -> core.Jaxpr:
    result = scan.rewrite_step(jaxpr, save_bytes, rates, keep_bits=keep_bits)
    if seen is not None:
      seen.append(result)
    return result.closed_jaxpr

  return rewritten(step, rewrite)


def train(
  loss: Callable[..., jax.Array],
  params: Any,
  batch: Any,
  optimizer: optax.GradientTransformation | None = None,
) -> Case:
  """Makes a step from a loss of `(params, batch)`, of plain descent if None."""
  optimizer = optimizer or optax.sgd(1e-2)

  def step(params, opt_state, batch):
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value

  return step, (params, optimizer.init(params), batch)


def accumulate(
  loss: Callable[..., jax.Array], params: Any, batches: jax.Array
) -> Case:
  """Makes a step whose gradients a loop over microbatches sums."""
  optimizer = optax.sgd(1e-2)

  def step(params, opt_state, batches):
    def add(total, batch):
      value, gradients = jax.value_and_grad(loss)(params, batch)
      return jax.tree.map(jnp.add, total, gradients), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    gradients, values = jax.lax.scan(add, zeros, batches)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, values.sum()

  return step, (params, optimizer.init(params), batches)


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
  values = np.random.default_rng(seed).standard_normal(shape, np.float32)
  return jnp.asarray(values * 0.3, dtype)


def weights(dtype: Any = jnp.float32, length: int = LENGTH) -> dict[str, Any]:
  return {
    "w": normal(0, length, WIDTH, WIDTH, dtype=dtype),
    "v": normal(1, length, WIDTH, WIDTH, dtype=dtype),
    "b": normal(2, length, WIDTH, dtype=dtype),
  }


def block(x: jax.Array, p: dict[str, Any]) -> jax.Array:
  """A layer with products, a softmax and a norm."""
  scale = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3)
  hidden = jnp.tanh((x * scale) @ p["w"] + p["b"])
  gate = jax.nn.softmax(hidden @ p["v"])
  return x + gate * jnp.exp(-hidden)


def scanned_loss(
  body: Callable[..., tuple[jax.Array, None]], **scan_kwargs: Any
) -> Callable[..., jax.Array]:
  """Returns the mean square of what a body makes of a batch, layer by layer."""

  def loss(params, batch):
    x, _ = jax.lax.scan(body, batch, params, **scan_kwargs)
    return jnp.mean(jnp.square(x.astype(jnp.float32)))

  return loss


def layers(
  wrap: Callable[[Any], Any] = lambda body: body,
  dtype: Any = jnp.float32,
  length: int = LENGTH,
  optimizer: optax.GradientTransformation | None = None,
  **scan_kwargs: Any,
) -> Case:
  """Blocks over stacked weights."""

  body = wrap(lambda x, p: (block(x, p), None))
  loss = scanned_loss(body, **scan_kwargs)
  batch = normal(3, BATCH, WIDTH, dtype=dtype)
  return train(loss, weights(dtype, length), batch, optimizer)


def cubes(size: int) -> Case:
  """Two products of each layer, `size` wide, and the cubes of each.

  Autodiff stacks cubes, which a product reads, and thrice the squares; both are
  made of the product, which it does not stack.
  """

  def body(x, p):
    hidden = jax.lax.integer_pow(x @ p["w"], 3)
    return x + jax.lax.integer_pow(hidden @ p["v"], 3), None

  params = {
    "w": normal(0, LENGTH, size, size),
    "v": normal(1, LENGTH, size, size),
  }
  return train(scanned_loss(body), params, normal(3, size, size))


def scaled() -> Case:
  """Two norms of each layer that share a scale, which Flax multiplies first.

  What is multiplied is broadcast, each along other dimensions, and the scale is
  broadcast once more for the gradients of either norm.
  """
  width = 64

  def norm(x, scale):
    mean = jnp.square(x).mean(-1, keepdims=True)
    return x * (jax.lax.rsqrt(mean + 1e-3) * scale)

  def body(x, p):
    x = x + jnp.tanh(norm(x, p["b"]) @ p["w"])
    return x + jnp.tanh(norm(x, p["b"]) @ p["v"]), None

  params = {
    "w": normal(0, LENGTH, width, width),
    "v": normal(1, LENGTH, width, width),
    "b": 1 + normal(2, LENGTH, width),
  }
  return train(scanned_loss(body), params, normal(3, 4, 64, width))


def dropout() -> Case:
  """Masks from a key that is carried, and from keys that are scanned."""

  def loss(params, batch):
    def body(carry, inputs):
      x, key = carry
      p, layer_key = inputs
      key, sub = jax.random.split(key)
      x = block(x, p)
      x = jnp.where(jax.random.bernoulli(sub, 0.8, x.shape), x / 0.8, 0.0)
      mask = jax.random.bernoulli(layer_key, 0.9, x.shape)
      return (jnp.where(mask, x / 0.9, 0.0), key), None

    key = jax.random.wrap_key_data(batch["key"])
    keys = jax.random.split(jax.random.fold_in(key, 1), LENGTH)
    carry = (batch["x"], key)
    (x, _), _ = jax.lax.scan(body, carry, (params, keys))
    return jnp.mean(x * x)

  key = jax.random.key_data(jax.random.key(7))
  batch = {"x": normal(3, BATCH, WIDTH), "key": key}
  return train(loss, weights(), batch)


def recurrent() -> Case:
  """An RNN whose states are all read, over embedded integers."""

  def loss(params, tokens):
    def cell(state, token):
      hidden, memory = state
      x = params["table"][token]
      gates = x @ params["w"] + hidden @ params["u"]
      forget, new = jnp.split(gates, 2, -1)
      memory = jax.nn.sigmoid(forget) * memory + jnp.tanh(new)
      hidden = jnp.tanh(memory)
      return (hidden, memory), hidden

    state = jnp.zeros((BATCH, WIDTH)), jnp.zeros((BATCH, WIDTH))
    _, outputs = jax.lax.scan(cell, state, tokens)
    logits = outputs @ params["table"].T
    labels = jnp.roll(tokens, -1, 0)
    entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.mean(entropy)

  params = {
    "table": normal(0, 11, WIDTH),
    "w": normal(1, WIDTH, 2 * WIDTH),
    "u": normal(2, WIDTH, 2 * WIDTH),
  }
  tokens = np.random.default_rng(3).integers(11, size=(7, BATCH))
  return train(loss, params, jnp.asarray(tokens))


def masked() -> Case:
  """Attention, whose mask is broadcast to all rows outside of the loops."""

  def loss(params, batch):
    def body(x, p):
      scores = jnp.einsum("bqd,bkd->bqk", x @ p["w"], x @ p["v"])
      mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
      scores = jnp.where(mask, scores, -1e9)
      return x + jax.nn.softmax(scores) @ x, None

    x, _ = jax.lax.scan(body, batch, params)
    return jnp.mean(x * x)

  params = {k: v for k, v in weights().items() if k != "b"}
  return train(loss, params, normal(3, 9, BATCH, WIDTH))


def nested() -> Case:
  """A loop of two blocks, each a loop of its own."""

  def loss(params, batch):
    def outer(x, p):
      x = jnp.tanh(x)
      return jax.lax.scan(lambda x, p: (block(x, p), None), x, p)[0], None

    x, _ = jax.lax.scan(outer, batch, params)
    return jnp.mean(x * x)

  stacked = jax.tree.map(lambda w: jnp.stack([w, 0.9 * w]), weights())
  return train(loss, stacked, normal(3, BATCH, WIDTH))


def accumulated() -> Case:
  """Gradients of a scanned model, summed by a loop over microbatches."""

  def loss(params, batch):
    x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), batch, params)
    return jnp.mean(x * x)

  batch = normal(3, BATCH, WIDTH)
  return accumulate(loss, weights(), jnp.stack([batch, batch + 0.1]))


def several() -> Case:
  """An encoder and a decoder, which reads what the encoder returns."""

  def loss(params, batch):
    x, _ = jax.lax.scan(
      lambda x, p: (block(x, p), None), batch, params["encoder"]
    )

    def decode(y, p):
      return block(y + jnp.sin(x), p), jnp.sum(y)

    y, sums = jax.lax.scan(decode, batch * 0.5, params["decoder"], reverse=True)
    return jnp.mean(y * y) + jnp.mean(sums * sums)

  params = {"encoder": weights(), "decoder": weights()}
  return train(loss, params, normal(3, BATCH, WIDTH))


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
  """The identity, whose gradient is clipped."""
  return jnp.sin(x)


def _clipped_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  return jnp.sin(x), jnp.cos(x) * jnp.exp(x)


def _clipped_backward(
  residual: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array]:
  return (jnp.clip(cotangent * residual, -1e-2, 1e-2),)


clipped.defvjp(_clipped_forward, _clipped_backward)


def custom() -> Case:
  """Blocks with a derivative of their own."""

  def loss(params, batch):
    def body(x, p):
      return clipped(block(jax.nn.relu(x), p)), None

    x, _ = jax.lax.scan(body, batch, params)
    return jnp.mean(x * x)

  return train(loss, weights(), normal(3, BATCH, WIDTH))


def whole_checkpoint() -> Case:
  """A loop that is recomputed as a whole."""

  def loss(params, batch):
    @jax.checkpoint
    def apply(params, x):
      return jax.lax.scan(lambda x, p: (block(x, p), None), x, params)[0]

    return jnp.mean(jnp.square(apply(params, jnp.cos(batch))))

  return train(loss, weights(), normal(3, BATCH, WIDTH))


def branches() -> Case:
  """Layers of two kinds, told apart by a scanned integer."""

  def loss(params, batch):
    def body(x, inputs):
      kind, p = inputs
      x = jax.lax.switch(kind, [block, lambda x, p: jnp.tanh(x @ p["w"])], x, p)
      return x, None

    x, _ = jax.lax.scan(body, batch, (jnp.arange(LENGTH) % 2, params))
    return jnp.mean(x * x)

  return train(loss, weights(), normal(3, BATCH, WIDTH))


def not_scanned() -> Case:
  """Two layers without a loop."""

  def loss(params, batch):
    first, second = (jax.tree.map(lambda w, i=i: w[i], params) for i in (0, 1))
    return jnp.mean(jnp.square(block(block(batch, first), second)))

  return train(loss, weights(), normal(3, BATCH, WIDTH))


_DOTS = jax.checkpoint_policies.dots_saveable
_NOTHING = jax.checkpoint_policies.nothing_saveable

# Every step that must lose residuals and keep its results.
CASES: dict[str, Callable[[], Case]] = {
  "cubes": functools.partial(cubes, WIDTH),
  "scaled": scaled,
  "layers": functools.partial(layers, optimizer=optax.adamw(1e-2)),
  "bfloat16": functools.partial(layers, dtype=jnp.bfloat16),
  "reverse_unrolled": functools.partial(layers, reverse=True, unroll=2),
  "checkpointed_dots": functools.partial(
    layers, functools.partial(jax.checkpoint, policy=_DOTS)
  ),
  "dropout": dropout,
  "recurrent": recurrent,
  "masked": masked,
  "nested": nested,
  "accumulated": accumulated,
  "several": several,
  "custom": custom,
  "whole_checkpoint": whole_checkpoint,
  "branches": branches,
}
# Every step that has nothing to lose.
UNCHANGED: dict[str, Callable[[], Case]] = {
  "length_one": functools.partial(layers, length=1),
  "checkpointed": functools.partial(
    layers, functools.partial(jax.checkpoint, policy=_NOTHING)
  ),
  "not_scanned": not_scanned,
}
