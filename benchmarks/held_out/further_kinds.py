"""Steps of kinds that no other file here has.

Each was written down before it was planned.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  convolve,
  cross_entropy,
  encoder_layer,
  encoder_shapes,
  floats,
  integers,
  layers_and_ends,
  make_step,
  make_train_step,
  standardize,
  with_optimizer,
)

Params = Any
Residuals = tuple[jax.Array, ...]


def private_gradients(policy: str | None = None) -> Step:
  """Builds 3 layers, 96 wide, whose 16 gradients are clipped one by one; Adam.

  Abadi et al., Deep Learning with Differential Privacy, 2016: noise is added to
  the sum.
  """
  width, num_values = 96, 512
  optimizer = optax.adam(1e-3)

  def loss(params: Params, tokens: jax.Array) -> jax.Array:
    layers, ends = params
    x = ends["embed"][tokens[:-1]][None]
    run_layer = functools.partial(encoder_layer, num_heads=4)
    for layer in layers:
      x = checkpointed(run_layer, policy)(layer, x)
    return cross_entropy(x[0] @ ends["last"], tokens[1:])

  def train_step(params: Params, state: Any, tokens: jax.Array) -> Any:
    of_each = jax.vmap(jax.value_and_grad(loss), (None, 0))
    values, gradients = of_each(params, tokens)
    scales = jnp.minimum(1.0, 1.0 / jax.vmap(optax.global_norm)(gradients))
    leaves, tree = jax.tree.flatten(gradients)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    noisy = [
      jnp.einsum("b,b...->...", scales, leaf)
      + 0.1 * jax.random.normal(key, leaf.shape[1:])
      for key, leaf in zip(keys, leaves, strict=True)
    ]
    total = jax.tree.unflatten(tree, noisy)
    updates, state = optimizer.update(total, state, params)
    return optax.apply_updates(params, updates), state, values.mean()

  init = layers_and_ends(
    3,
    encoder_shapes(width),
    {"embed": (num_values, width), "last": (width, num_values)},
  )
  init_both = with_optimizer(init, optimizer)
  return make_step(
    train_step, init_both, [integers(16, 65)], num_classes=num_values
  )


def gradient_penalty(policy: str | None = None) -> Step:
  """Builds a critic of 4 convolutions whose slope is to be 1; Adam.

  Gulrajani et al., Improved Training of Wasserstein GANs, 2017: gradients of a
  norm of gradients.
  """
  channels = (3, 32, 64, 128, 256)

  def init(key: jax.Array) -> Params:
    *keys, last_key = jax.random.split(key, len(channels))
    initializer = jax.nn.initializers.he_normal()
    filters = [
      initializer(each, (4, 4, old, new))
      for each, old, new in zip(keys, channels, channels[1:], strict=False)
    ]
    return filters, 0.01 * jax.random.normal(last_key, (4 * 4 * 256,))

  def layer(kernel: jax.Array, x: jax.Array) -> jax.Array:
    return jax.nn.silu(standardize(convolve(x, kernel, 2)))

  def critic(params: Params, x: jax.Array) -> jax.Array:
    filters, last = params
    for kernel in filters:
      x = checkpointed(layer, policy)(kernel, x)
    return x.reshape(x.shape[0], -1) @ last

  def loss(
    params: Params, real: jax.Array, fake: jax.Array, mixed: jax.Array
  ) -> jax.Array:
    share = jax.nn.sigmoid(mixed)[:, None, None, None]
    between = share * real + (1.0 - share) * fake
    slope = jax.grad(lambda x: critic(params, x).sum())(between)
    norm = jnp.sqrt(jnp.square(slope).sum((1, 2, 3)) + 1e-6)
    gap = critic(params, fake).mean() - critic(params, real).mean()
    return gap + 10.0 * jnp.square(norm - 1.0).mean()

  images = floats(16, 64, 64, 3)
  optimizer = optax.adam(1e-4, b1=0.0, b2=0.9)
  return make_train_step(init, loss, optimizer, [images, images, floats(16)])


def blockwise_attention(policy: str | None = None) -> Step:
  """Builds 4 layers, 128 wide, that attend to 128 of 512 keys at a time; Lion.

  Dao et al., FlashAttention: Fast and Memory-Efficient Exact Attention with
  IO-Awareness, 2022: both passes are loops over parts of the keys, and the
  backward pass is written by hand.
  """
  run_layer = functools.partial(
    encoder_layer, num_heads=4, attend=_attend_in_parts
  )
  return _language_model(run_layer, policy, optax.lion(1e-4), integers(2, 513))


def orthogonal_updates(policy: str | None = None) -> Step:
  """Builds 4 layers, 128 wide, whose updates are made orthogonal; Muon.

  Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024:
  five products of each gradient with itself.
  """
  run_layer = functools.partial(encoder_layer, num_heads=4)
  muon = optax.contrib.muon(1e-3)
  return _language_model(run_layer, policy, muon, integers(4, 129))


def _language_model(
  run_layer: Callable[[Params, jax.Array], jax.Array],
  policy: str | None,
  optimizer: optax.GradientTransformation,
  tokens: jax.ShapeDtypeStruct,
) -> Step:
  """Builds 4 layers, 128 wide, that predict each of the 1,024 words."""
  width, num_values = 128, 1024

  def loss(params: Params, tokens: jax.Array) -> jax.Array:
    layers, ends = params
    x = ends["embed"][tokens[:, :-1]]
    for layer in layers:
      x = checkpointed(run_layer, policy)(layer, x)
    return cross_entropy(standardize(x) @ ends["last"], tokens[:, 1:])

  ends = {"embed": (num_values, width), "last": (width, num_values)}
  init = layers_and_ends(4, encoder_shapes(width), ends)
  return make_train_step(
    init, loss, optimizer, [tokens], num_classes=num_values
  )


_PART = 128


def _parts(x: jax.Array) -> jax.Array:
  """Divides (batch, length, ...) into (parts, batch, _PART, ...)."""
  return jnp.moveaxis(x.reshape(x.shape[0], -1, _PART, *x.shape[2:]), 1, 0)


def _logits(query: jax.Array, key: jax.Array, part: jax.Array) -> jax.Array:
  """Returns those of one part of the keys, (batch, heads, length, _PART)."""
  logits = jnp.einsum("blhd,bmhd->bhlm", query, key) * query.shape[-1] ** -0.5
  rows, columns = jnp.arange(query.shape[1]), part * _PART + jnp.arange(_PART)
  return jnp.where(rows[:, None] >= columns, logits, -1e30)


@jax.custom_vjp
def _attend_in_parts(
  query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
  return _attend_forward(query, key, value)[0]


def _attend_forward(
  query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, Residuals]:
  keys, values = _parts(key), _parts(value)
  numbers = jnp.arange(len(keys))
  size, length, heads, width = query.shape

  def add(carry: Any, part: Any) -> tuple[Any, None]:
    largest, total, mixed = carry
    number, key, value = part
    logits = _logits(query, key, number)
    larger = jnp.maximum(largest, logits.max(-1))
    scale = jnp.exp(largest - larger)
    weights = jnp.exp(logits - larger[..., None])
    added = jnp.einsum("bhlm,bmhd->bhld", weights, value)
    total = scale * total + weights.sum(-1)
    return (larger, total, scale[..., None] * mixed + added), None

  shape = size, heads, length
  start = jnp.full(shape, -1e30), jnp.zeros(shape), jnp.zeros((*shape, width))
  (largest, total, mixed), _ = jax.lax.scan(add, start, (numbers, keys, values))
  result = jnp.moveaxis(mixed / total[..., None], 1, 2)
  return result, (query, key, value, result, largest + jnp.log(total))


def _attend_backward(saved: Residuals, cotangent: jax.Array) -> Residuals:
  query, key, value, result, log_total = saved
  slope = jnp.einsum("blhd,blhd->bhl", cotangent, result)
  keys, values = _parts(key), _parts(value)
  numbers = jnp.arange(len(keys))

  def add(total: jax.Array, part: Any) -> tuple[jax.Array, Any]:
    number, key, value = part
    weights = jnp.exp(_logits(query, key, number) - log_total[..., None])
    of_value = jnp.einsum("bhlm,blhd->bmhd", weights, cotangent)
    of_weights = jnp.einsum("blhd,bmhd->bhlm", cotangent, value)
    of_logits = weights * (of_weights - slope[..., None])
    of_logits *= query.shape[-1] ** -0.5
    total += jnp.einsum("bhlm,bmhd->blhd", of_logits, key)
    of_key = jnp.einsum("bhlm,blhd->bmhd", of_logits, query)
    return total, (of_key, of_value)

  start = jnp.zeros_like(query)
  total, parts = jax.lax.scan(add, start, (numbers, keys, values))
  of_key, of_value = (
    jnp.moveaxis(part, 0, 1).reshape(query.shape) for part in parts
  )
  return total, of_key, of_value


_attend_in_parts.defvjp(_attend_forward, _attend_backward)


def world_model(policy: str | None = None) -> Step:
  """Builds frames, 16 steps of a recurrent state, and frames of it; Adam.

  Hafner et al., Learning Latent Dynamics for Planning from Pixels, 2019: the
  state is drawn anew at each step, from what is seen and what was expected.
  """
  hidden, drawn, num_steps, size = 200, 32, 16, 8
  shapes = {
    "seen_1": (4, 4, 3, 32),
    "seen_2": (4, 4, 32, 64),
    "seen_3": (8 * 8 * 64, hidden),
    "gates": (drawn + hidden, 3 * hidden),
    "expected": (hidden, 2 * drawn),
    "found": (2 * hidden, 2 * drawn),
    "shown_1": (hidden + drawn, 8 * 8 * 64),
    "shown_2": (4, 4, 64, 32),
    "shown_3": (4, 4, 32, 3),
  }

  def loss(params: Params, frames: jax.Array, noise: jax.Array) -> jax.Array:
    def move(carry: Any, inputs: Any) -> tuple[Any, Any]:
      state, drawn = carry
      seen, noise = inputs
      gates = jnp.concatenate([drawn, state], -1) @ params["gates"]
      reset, update, new = jnp.split(gates, 3, -1)
      update = jax.nn.sigmoid(update)
      new = jnp.tanh(jax.nn.sigmoid(reset) * new)
      state = update * state + (1.0 - update) * new
      expected = _mean_and_deviation(state @ params["expected"])
      both = jnp.concatenate([state, seen], -1)
      found = _mean_and_deviation(both @ params["found"])
      drawn = found[0] + found[1] * noise
      features = jnp.concatenate([state, drawn], -1)
      return (state, drawn), (features, _divergence(found, expected))

    flat = frames.reshape(-1, *frames.shape[2:])
    seen = checkpointed(_see, policy)(params, flat)
    start = jnp.zeros((size, hidden)), jnp.zeros((size, drawn))
    inputs = seen.reshape(num_steps, size, -1), noise
    _, (features, divergences) = jax.lax.scan(move, start, inputs)
    features = features.reshape(num_steps * size, -1)
    shown = checkpointed(_show, policy)(params, features)
    return jnp.square(shown - flat).mean() + 0.1 * divergences.mean()

  def init(key: jax.Array) -> Params:
    return layers_and_ends(0, {}, shapes)(key)[1]

  return make_train_step(
    init,
    loss,
    optax.adam(1e-3),
    [floats(num_steps, size, 32, 32, 3), floats(num_steps, size, drawn)],
  )


def _see(params: Params, x: jax.Array) -> jax.Array:
  x = jax.nn.silu(convolve(x, params["seen_1"], 2))
  x = jax.nn.silu(convolve(x, params["seen_2"], 2))
  return jax.nn.silu(x.reshape(x.shape[0], -1) @ params["seen_3"])


def _show(params: Params, x: jax.Array) -> jax.Array:
  x = jax.nn.silu(x @ params["shown_1"]).reshape(-1, 8, 8, 64)
  x = jax.lax.conv_transpose(x, params["shown_2"], (2, 2), "SAME")
  x = jax.nn.silu(x)
  return jax.lax.conv_transpose(x, params["shown_3"], (2, 2), "SAME")


def _mean_and_deviation(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  mean, deviation = jnp.split(x, 2, -1)
  return mean, jax.nn.softplus(deviation) + 0.1


def _divergence(
  found: tuple[jax.Array, jax.Array], expected: tuple[jax.Array, jax.Array]
) -> jax.Array:
  """Returns how far one normal distribution is from another, in nats."""
  ratio = found[1] / expected[1]
  distance = (found[0] - expected[0]) / expected[1]
  halves = (jnp.square(ratio) + jnp.square(distance) - 1.0) / 2.0
  return (halves - jnp.log(ratio)).sum(-1).mean()
