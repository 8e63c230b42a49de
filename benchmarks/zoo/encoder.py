"""XLM-R, a masked language model of a hundred languages.

It does not drop out units, so that a step is a function of its arguments alone.
"""

import functools

import jax
from flax import linen as nn

from benchmarks.zoo import language, layers, training


class Encoder(nn.Module):
  """A transformer encoder, normalized after each sum, with tied embeddings.

  Conneau et al., Unsupervised Cross-lingual Representation Learning at Scale,
  2020.

  Attributes:
    shape: The sizes.
    has_head: Whether the output is logits of tokens, else features.
  """

  shape: language.Shape
  has_head: bool = True

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    x, to_logits = language.embed(self.shape, tokens)
    x = nn.LayerNorm()(x)
    gelu = functools.partial(nn.gelu, approximate=False)
    hidden = 4 * self.shape.width
    for _ in range(self.shape.num_layers):
      attention = layers.SelfAttention(self.shape.num_heads, causal=False)
      x = nn.LayerNorm()(x + attention(x))
      x = nn.LayerNorm()(x + layers.FeedForward(hidden, gelu)(x))
    return to_logits(x) if self.has_head else x


BASE = language.Shape(vocabulary=250_002, num_positions=514, length=128)
_SHAPES = {"full": BASE, "small": language.SMALL, "tiny": language.TINY}


def xlm_r_base(batch: int, size: str) -> training.Step:
  """Builds XLM-R base on 128 tokens; every token is predicted."""
  shape = _SHAPES[size]
  return training.make_step(
    "xlm_r_base",
    Encoder(shape),
    [shape.tokens(batch)] * 2,
    num_classes=shape.vocabulary,
    optimizer=training.adam(),
  )
