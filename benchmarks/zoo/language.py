"""Language models: GPT-2, unrolled and scanned, a translator, and experts.

None drops out units, so that a step is a function of its arguments alone.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.zoo import layers, training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
  """The sizes of a transformer; the defaults are GPT-2 small's.

  Attributes:
    vocabulary: Number of tokens.
    num_positions: Rows of the position table, at least `length`.
    length: Tokens per sequence of the batch.
    width: Features per token.
    num_heads: Divides `width`.
    num_layers: Blocks, of the encoder and of the decoder each if both exist.
  """

  vocabulary: int = 50_257
  num_positions: int = 1024
  length: int = 512
  width: int = 768
  num_heads: int = 12
  num_layers: int = 12

  def tokens(self, batch: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, self.length), jnp.int32)


SMALL = Shape(
  vocabulary=2048,
  num_positions=256,
  length=128,
  width=256,
  num_heads=4,
  num_layers=4,
)
TINY = Shape(
  vocabulary=64,
  num_positions=32,
  length=16,
  width=32,
  num_heads=2,
  num_layers=2,
)


def embed(
  shape: Shape, tokens: jax.Array
) -> tuple[jax.Array, layers.Activation]:
  """Returns the embedded tokens and the tied map back to logits."""
  table = nn.Embed(shape.vocabulary, shape.width, name="tokens")
  positions = nn.Embed(shape.num_positions, shape.width, name="positions")
  x = table(tokens) + positions.embedding[: shape.length]
  return x, table.attend


class Gpt2(nn.Module):
  """A decoder with tied embeddings, its blocks unrolled or scanned.

  Radford et al., Language Models are Unsupervised Multitask Learners, 2019.

  Attributes:
    shape: Sizes.
    scanned: Whether one `lax.scan` runs over all blocks.
    block: The class of the blocks; `nn.remat` of it, to recompute them.
  """

  shape: Shape
  scanned: bool
  block: type[nn.Module] = layers.Block

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    x, to_logits = embed(self.shape, tokens)
    num_heads = self.shape.num_heads
    block: Any = self.block
    if self.scanned:
      scan = nn.scan(
        lambda block, x: (block(x), None),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=self.shape.num_layers,
      )
      x, _ = scan(block(num_heads, causal=True, name="blocks"), x)
    else:
      for _ in range(self.shape.num_layers):
        x = block(num_heads, causal=True)(x)
    return to_logits(nn.LayerNorm()(x))


_GPT2_SHAPES = {"full": Shape(), "small": SMALL, "tiny": TINY}


def _gpt2(
  name: str,
  scanned: bool,
  batch: int,
  size: str,
  block: type[nn.Module],
  num_layers: int | None = None,
) -> training.Step:
  shape = _GPT2_SHAPES[size]
  if num_layers is not None:
    shape = dataclasses.replace(shape, num_layers=num_layers)
  return training.make_step(
    name,
    Gpt2(shape, scanned, block),
    [shape.tokens(batch)] * 2,
    num_classes=shape.vocabulary,
    optimizer=training.adam(),
  )


def gpt2_small(
  batch: int, size: str, block: type[nn.Module] = layers.Block
) -> training.Step:
  """Builds GPT-2 small: 12 unrolled layers, 512 of its 1,024 positions."""
  return _gpt2("gpt2_small", False, batch, size, block)


def gpt2_4_layers(
  batch: int, size: str, block: type[nn.Module] = layers.Block
) -> training.Step:
  """Builds GPT-2 small with its first four layers alone."""
  return _gpt2("gpt2_small", False, batch, size, block, num_layers=4)


def scan_transformer(
  batch: int, size: str, block: type[nn.Module] = layers.Block
) -> training.Step:
  """Builds GPT-2 small with one `lax.scan` over its stacked layers."""
  return _gpt2("scan_transformer", True, batch, size, block)


def _sinusoids(length: int, width: int) -> jax.Array:
  """Returns the fixed position encoding `[length, width]`."""
  rate = jnp.exp(jnp.arange(0, width, 2) * (-math.log(10_000) / width))
  angle = jnp.arange(length)[:, None] * rate
  return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


class CrossAttention(nn.Module):
  """Multi-head attention of the decoder to the encoder's output."""

  num_heads: int

  @nn.compact
  def __call__(self, x: jax.Array, memory: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    query = nn.Dense(width, name="query")(x)
    fused = nn.Dense(2 * width, name="key_value")(memory)
    query = query.reshape(batch, length, self.num_heads, -1)
    fused = fused.reshape(batch, memory.shape[1], 2, self.num_heads, -1)
    x = layers.attend(query, *jnp.moveaxis(fused, 2, 0), causal=False)
    return nn.Dense(width, name="output")(x.reshape(batch, length, width))


class Translator(nn.Module):
  """The encoder-decoder transformer, normalized after each sum.

  Vaswani et al., Attention Is All You Need, 2017.
  """

  shape: Shape

  @nn.compact
  def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
    table = nn.Embed(self.shape.vocabulary, self.shape.width, name="tokens")
    memory = self._embed(table, source)
    for _ in range(self.shape.num_layers):
      memory = self._attend(memory, causal=False)
      memory = self._transform(memory)
    x = self._embed(table, target)
    for _ in range(self.shape.num_layers):
      x = self._attend(x, causal=True)
      cross = CrossAttention(self.shape.num_heads)(x, memory)
      x = self._transform(nn.LayerNorm()(x + cross))
    return table.attend(x)

  def _embed(self, table: nn.Embed, tokens: jax.Array) -> jax.Array:
    scaled = table(tokens) * math.sqrt(self.shape.width)
    return scaled + _sinusoids(self.shape.length, self.shape.width)

  def _attend(self, x: jax.Array, *, causal: bool) -> jax.Array:
    attention = layers.SelfAttention(self.shape.num_heads, causal)
    return nn.LayerNorm()(x + attention(x))

  def _transform(self, x: jax.Array) -> jax.Array:
    feed_forward = layers.FeedForward(4 * self.shape.width, nn.relu)
    return nn.LayerNorm()(x + feed_forward(x))


_TRANSLATOR_SHAPES = {
  "full": Shape(
    vocabulary=37_000, length=128, width=512, num_heads=8, num_layers=6
  ),
  "small": dataclasses.replace(SMALL, num_layers=3, length=64),
  "tiny": dataclasses.replace(TINY, num_layers=1),
}


def wmt_transformer(batch: int, size: str) -> training.Step:
  """Builds the base translator: 128 source and 128 target tokens."""
  shape = _TRANSLATOR_SHAPES[size]
  return training.make_step(
    "wmt_transformer",
    Translator(shape),
    [shape.tokens(batch)] * 3,
    num_classes=shape.vocabulary,
    optimizer=training.adam(),
  )
