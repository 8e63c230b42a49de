"""A stack of Llama's layers, all trained.

Touvron et al., LLaMA, 2023. The zoo's `llama_lora` trains adapters only, so
that its optimizer has almost no state.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.zoo import layers, lora, training

# The full size has 8 layers as wide as those of a model of a billion
# parameters, 0.54 billion in all.
_SHAPES = {
  "full": lora.Shape(8, 2048, 16, 5632, 32_000, 1024, 0),
  "small": lora.Shape(4, 256, 4, 688, 512, 64, 0),
  "tiny": lora.Shape(1, 32, 2, 64, 64, 16, 0),
}


class Block(nn.Module):
  """Attention and a gated feed-forward layer, each around a residual."""

  shape: lora.Shape

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    width, inner = self.shape.width, self.shape.inner
    normed = nn.RMSNorm()(x)
    query, key, value = (
      nn.Dense(width, use_bias=False, name=name)(normed).reshape(
        *x.shape[:2], self.shape.num_heads, -1
      )
      for name in ("query", "key", "value")
    )
    query, key = layers.rotate(query), layers.rotate(key)
    mixed = layers.attend(query, key, value, causal=True).reshape(x.shape)
    x = x + nn.Dense(width, use_bias=False, name="output")(mixed)
    normed = nn.RMSNorm()(x)
    gate = nn.silu(nn.Dense(inner, use_bias=False, name="gate")(normed))
    gated = gate * nn.Dense(inner, use_bias=False, name="inner")(normed)
    return x + nn.Dense(width, use_bias=False, name="outer")(gated)


class Llama(nn.Module):
  """Returns logits `[batch, length, vocabulary]` of tokens."""

  shape: lora.Shape
  block: type[nn.Module] = Block

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    x = nn.Embed(self.shape.vocabulary, self.shape.width, name="tokens")(tokens)
    block: Any = self.block
    for _ in range(self.shape.num_layers):
      x = block(self.shape)(x)
    return nn.Dense(self.shape.vocabulary, use_bias=False, name="head")(
      nn.RMSNorm()(x)
    )


def llama_stack(
  batch: int, size: str, block: type[nn.Module] = Block
) -> training.Step:
  """Builds a step of AdamW on all parameters.

  Args:
    batch: Examples per step.
    size: One of `zoo.SIZES`.
    block: The class of the blocks; `nn.remat` of it, to recompute them.
  """
  shape = _SHAPES[size]
  tokens = jax.ShapeDtypeStruct((batch, shape.length), jnp.int32)
  return training.make_step(
    "llama_stack",
    Llama(shape, block),
    (tokens, tokens),
    num_classes=shape.vocabulary,
    optimizer=training.adam(),
  )
