"""Layers that several zoo models share."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

Activation = Callable[[jax.Array], jax.Array]


class ConvNorm(nn.Module):
  """Convolution without bias, batch normalization, activation.

  Attributes:
    channels: Channels of the output.
    kernel: Side of the square or cubic kernel; the padding keeps
      `size // stride`.
    stride: In all directions.
    groups: Feature groups; equal to the input's channels if depthwise.
    activation: Applied last, or None.
  """

  channels: int
  kernel: int = 3
  stride: int = 1
  groups: int = 1
  activation: Activation | None = nn.relu

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = nn.Conv(
      self.channels,
      (self.kernel,) * (x.ndim - 2),
      strides=self.stride,
      padding=self.kernel // 2,
      feature_group_count=self.groups,
      use_bias=False,
    )(x)
    x = nn.BatchNorm(use_running_average=False, momentum=0.9)(x)
    return x if self.activation is None else self.activation(x)


def max_pool(
  x: jax.Array, window: int, stride: int, padding: int = 0
) -> jax.Array:
  """Returns the maxima of square windows over `[batch, y, x, channel]`."""
  return jax.lax.reduce_window(
    x,
    -jnp.inf,
    jax.lax.max,
    (1, window, window, 1),
    (1, stride, stride, 1),
    ((0, 0), (padding, padding), (padding, padding), (0, 0)),
  )


def attend(
  query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool
) -> jax.Array:
  """Returns softmax attention over `[batch, position, head, feature]`."""
  scale = 1 / math.sqrt(query.shape[-1])
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
  if causal:
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
  return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


def rotate(x: jax.Array) -> jax.Array:
  """Turns pairs of features by angles that grow with the position.

  Su et al., RoFormer, 2021; the pairs are a half of the features apart.

  Args:
    x: `[batch, position, head, feature]`, with an even number of features.
  """
  half = x.shape[-1] // 2
  rates = 10_000 ** (-jnp.arange(half) / half)
  angles = jnp.arange(x.shape[1])[:, None] * rates
  cos, sin = (
    f(angles)[None, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin)
  )
  first, second = x[..., :half], x[..., half:]
  return jnp.concatenate(
    [first * cos - second * sin, first * sin + second * cos], -1
  )


class SelfAttention(nn.Module):
  """Multi-head self-attention, its three projections fused."""

  num_heads: int
  causal: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    fused = nn.Dense(3 * width, name="query_key_value")(x)
    fused = fused.reshape(batch, length, 3, self.num_heads, -1)
    x = attend(*jnp.moveaxis(fused, 2, 0), causal=self.causal)
    return nn.Dense(width, name="output")(x.reshape(batch, length, width))


class FeedForward(nn.Module):
  """Two dense layers around an activation."""

  hidden: int
  activation: Activation

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    hidden = self.activation(nn.Dense(self.hidden, name="input")(x))
    return nn.Dense(x.shape[-1], name="output")(hidden)


class Block(nn.Module):
  """A pre-normalized transformer block, its hidden layer 4 widths wide."""

  num_heads: int
  causal: bool
  activation: Activation = nn.gelu

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x += SelfAttention(self.num_heads, self.causal)(nn.LayerNorm()(x))
    hidden = 4 * x.shape[-1]
    return x + FeedForward(hidden, self.activation)(nn.LayerNorm()(x))
