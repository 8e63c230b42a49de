"""Steps that were added when those of `latest_steps` had been looked at.

Each was written down before it was planned. What `inner_updates` showed was
mended (docs/blocks.md, "How blocks are found"); the two others were written
beside it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  cross_entropy,
  floats,
  integers,
  layers_and_ends,
  make_train_step,
  normal_layers,
  standardize,
)

Params = Any


def inner_updates(policy: str | None = None) -> Step:
  """Builds 5 updates of a network for each of 16 tasks; Adam on its start.

  Finn et al., Model-Agnostic Meta-Learning, 2017: the loss after the updates is
  differentiated through all of them, so that gradients are taken of gradients.
  """
  width, num_updates, num_classes = 128, 5, 5
  shapes = {
    "first": (64, width),
    "second": (width, width),
    "third": (width, width),
    "head": (width, num_classes),
  }

  def task_loss(params: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    for name in ("first", "second", "third"):
      x = jax.nn.relu(x @ params[name])
    return cross_entropy(x @ params["head"], labels)

  def update(params: Params, x: jax.Array, labels: jax.Array) -> Params:
    gradients = jax.grad(task_loss)(params, x, labels)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, gradients)

  def loss_after(params: Params, *task: jax.Array) -> jax.Array:
    x, labels, new_x, new_labels = task
    for _ in range(num_updates):
      params = checkpointed(update, policy)(params, x, labels)
    return task_loss(params, new_x, new_labels)

  def loss(params: Params, *tasks: jax.Array) -> jax.Array:
    axes = (None, *(0 for _ in tasks))
    return jax.vmap(loss_after, axes)(params, *tasks).mean()

  return make_train_step(
    lambda key: normal_layers(key, 1, shapes)[0],
    loss,
    optax.adam(1e-3),
    [
      floats(16, 50, 64),
      integers(16, 50),
      floats(16, 75, 64),
      integers(16, 75),
    ],
    num_classes=num_classes,
  )


def coupling_flow(policy: str | None = None) -> Step:
  """Builds 12 affine couplings of 64 dimensions, 256 wide; Adam.

  Dinh et al., Density estimation using Real NVP, 2017: each half is shifted and
  scaled by what a network makes of the other.
  """
  width, size = 256, 64
  shapes = {
    "first": (size // 2, width),
    "second": (width, width),
    "last": (width, size),
  }

  def couple(
    layer: Params, kept: jax.Array, other: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    hidden = jax.nn.gelu(kept @ layer["first"])
    hidden = jax.nn.gelu(hidden @ layer["second"])
    scale, shift = jnp.split(hidden @ layer["last"], 2, axis=-1)
    scale = jnp.tanh(scale)
    return other * jnp.exp(scale) + shift, scale.sum(-1)

  def loss(params: Params, x: jax.Array) -> jax.Array:
    kept, other = jnp.split(x, 2, axis=-1)
    log_volume = jnp.zeros(len(x))
    for layer in params:
      changed, log_scale = checkpointed(couple, policy)(layer, kept, other)
      kept, other = changed, kept
      log_volume += log_scale
    squares = (kept**2).sum(-1) + (other**2).sum(-1)
    return (0.5 * squares - log_volume).mean()

  return make_train_step(
    lambda key: normal_layers(key, 12, shapes),
    loss,
    optax.adam(1e-3),
    [floats(4096, size)],
  )


def _mix(block: Params, x: jax.Array) -> jax.Array:
  """Adds up what earlier tokens hold, the less the longer ago."""
  before = jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0)))
  x = (x + before) / 2
  keys, values = jnp.exp(x @ block["key"]), x @ block["value"]
  decay = jnp.exp(-jnp.exp(block["decay"]))
  bonus = jnp.exp(block["bonus"])

  def attend(
    sums: tuple[jax.Array, jax.Array], token: tuple[jax.Array, jax.Array]
  ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    (numerator, denominator), (key, value) = sums, token
    mixed = numerator + bonus * key * value
    mixed /= denominator + bonus * key + 1e-6
    sums = decay * numerator + key * value, decay * denominator + key
    return sums, mixed

  zeros = jnp.zeros_like(keys[:, 0])
  tokens = keys.swapaxes(0, 1), values.swapaxes(0, 1)
  _, mixed = jax.lax.scan(attend, (zeros, zeros), tokens)
  gate = jax.nn.sigmoid(x @ block["gate"])
  return (gate * mixed.swapaxes(0, 1)) @ block["mixed"]


def time_mixing(policy: str | None = None) -> Step:
  """Builds 6 blocks that mix 128 tokens by a decaying sum, 128 wide; AdamW.

  Peng et al., RWKV: Reinventing RNNs for the Transformer Era, 2023: a scan in
  each block takes the place of attention.
  """
  width, num_tokens = 128, 1000
  shapes = {
    **{name: (width, width) for name in ("gate", "key", "value", "mixed")},
    "inner": (width, 4 * width),
    "outer": (4 * width, width),
    "decay": (1, width),
    "bonus": (1, width),
  }

  def run_block(block: Params, x: jax.Array) -> jax.Array:
    x += _mix(block, standardize(x))
    hidden = jax.nn.relu(standardize(x) @ block["inner"]) ** 2
    return x + hidden @ block["outer"]

  def loss(params: Params, tokens: jax.Array) -> jax.Array:
    blocks, ends = params
    x = ends["embed"][tokens[:, :-1]]
    for block in blocks:
      x = checkpointed(run_block, policy)(block, x)
    return cross_entropy(standardize(x) @ ends["head"], tokens[:, 1:])

  return make_train_step(
    layers_and_ends(
      6, shapes, {"embed": (num_tokens, width), "head": (width, num_tokens)}
    ),
    loss,
    optax.adamw(1e-3),
    [integers(8, 129)],
    num_classes=num_tokens,
  )
