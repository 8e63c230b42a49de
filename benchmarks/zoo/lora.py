"""LoRA training of a LLaMA-like model of a billion parameters.

Touvron et al., LLaMA, 2023; Hu et al., LoRA, 2021.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.zoo import layers, training


class Shape(NamedTuple):
  """The size of a model and of its examples.

  Attributes:
    num_layers: Transformer blocks.
    width: Of the residual stream.
    num_heads: Attention heads.
    inner: Width of the feed-forward layers.
    vocabulary: Tokens.
    length: Tokens of an example.
    rank: Of the adapters.
  """

  num_layers: int
  width: int
  num_heads: int
  inner: int
  vocabulary: int
  length: int
  rank: int


_SHAPES = {
  "full": Shape(22, 2048, 32, 5632, 32_000, 1024, 16),
  "small": Shape(6, 256, 4, 688, 512, 64, 8),
  "tiny": Shape(2, 32, 2, 64, 64, 16, 2),
}


class Adapted(nn.Module):
  """A linear layer whose matrix is frozen, with an adapter that is trained."""

  width: int
  rank: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    source = x.shape[-1]
    down = self.param("down", nn.initializers.normal(), (source, self.rank))
    up = self.param("up", nn.initializers.zeros, (self.rank, self.width))
    return Frozen(self.width, name="base")(x) + (x @ down) @ up


class Frozen(nn.Module):
  """A linear layer that is not trained."""

  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    shape = (x.shape[-1], self.width)
    return x @ self.variable("frozen", "kernel", jnp.zeros, shape).value


class Norm(nn.Module):
  """Divides by the root of the mean square; its scale is not trained."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = self.variable("frozen", "scale", jnp.ones, x.shape[-1:]).value
    square = jnp.square(x).mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(square + 1e-6) * scale


class Block(nn.Module):
  """Attention and a gated feed-forward layer, each around a residual."""

  shape: Shape

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    normed = Norm()(x)
    query, key, value = (
      self._adapted(self.shape.width, name)(normed).reshape(
        *x.shape[:2], self.shape.num_heads, -1
      )
      for name in ("query", "key", "value")
    )
    query, key = layers.rotate(query), layers.rotate(key)
    mixed = layers.attend(query, key, value, causal=True)
    x = x + Frozen(self.shape.width, name="output")(mixed.reshape(x.shape))
    normed = Norm()(x)
    gate = nn.silu(self._adapted(self.shape.inner, "gate")(normed))
    inner = gate * self._adapted(self.shape.inner, "inner")(normed)
    return x + self._adapted(self.shape.width, "outer")(inner)

  def _adapted(self, width: int, name: str) -> Adapted:
    return Adapted(width, self.shape.rank, name=name)


class Llama(nn.Module):
  """Returns logits `[batch, length, vocabulary]` of tokens."""

  shape: Shape
  block: type[nn.Module] = Block

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    table = self.variable(
      "frozen",
      "embedding",
      jnp.zeros,
      (self.shape.vocabulary, self.shape.width),
    )
    x = table.value[tokens]
    block: Any = self.block
    for _ in range(self.shape.num_layers):
      x = block(self.shape)(x)
    return Frozen(self.shape.vocabulary, name="head")(Norm()(x))


def llama_lora(
  batch: int, size: str, block: type[nn.Module] = Block
) -> training.Step:
  """Builds a step of AdamW on the adapters; all else is frozen."""
  shape = _SHAPES[size]
  tokens = jax.ShapeDtypeStruct((batch, shape.length), jnp.int32)
  return training.make_step(
    "llama_lora",
    Llama(shape, block),
    (tokens, tokens),
    num_classes=shape.vocabulary,
    optimizer=training.adam(),
  )
