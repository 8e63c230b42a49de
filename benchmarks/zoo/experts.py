"""A language model with switched experts."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.zoo import language, layers, training

_BALANCE_WEIGHT = 1e-2
_CAPACITY_FACTOR = 1.25


class Switch(nn.Module):
  """A feed-forward layer of which each token uses one expert.

  Tokens are sent by products with one-hot arrays, each sequence a group of
  its own. An expert takes 1.25 times its even share of a group; tokens past
  that get zero, and live on in the residual sum.

  Fedus, Zoph and Shazeer, Switch Transformers, 2021.
  """

  num_experts: int
  hidden: int

  @nn.compact
  def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the output, of `x`'s shape, and the load-balancing loss."""
    router = nn.Dense(self.num_experts, use_bias=False, name="router")
    probability = jax.nn.softmax(router(x))
    dispatch, balance = self._dispatch(probability)
    gate = probability.max(-1)
    buffers = jnp.einsum("bsec,bsd->becd", dispatch, x)
    buffers = jnp.einsum(
      "becd,edf->becf", buffers, self._kernel("input", x.shape[-1], self.hidden)
    )
    buffers = jnp.einsum(
      "becf,efd->becd",
      nn.relu(buffers),
      self._kernel("output", self.hidden, x.shape[-1]),
    )
    combine = dispatch * gate[..., None, None]
    return jnp.einsum("bsec,becd->bsd", combine, buffers), balance

  def _kernel(self, name: str, rows: int, columns: int) -> jax.Array:
    shape = (self.num_experts, rows, columns)
    return self.param(f"{name}_experts", nn.initializers.zeros, shape)

  def _dispatch(self, probability: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the 0-1 array `[batch, token, expert, slot]` and the loss."""
    share = _CAPACITY_FACTOR * probability.shape[1] / self.num_experts
    capacity = max(int(share), 1)
    chosen = jax.nn.one_hot(probability.argmax(-1), self.num_experts)
    slot = jnp.cumsum(chosen, axis=1) * chosen - 1
    dispatch = jax.nn.one_hot(slot.astype(jnp.int32), capacity)
    load = chosen.mean(1) * probability.mean(1)
    return dispatch, self.num_experts * load.sum(-1).mean()


class MoeBlock(nn.Module):
  """A pre-normalized block whose feed-forward layer is switched."""

  num_heads: int
  num_experts: int

  @nn.compact
  def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    x += layers.SelfAttention(self.num_heads, causal=True)(nn.LayerNorm()(x))
    switch = Switch(self.num_experts, 4 * x.shape[-1])
    update, balance = switch(nn.LayerNorm()(x))
    return x + update, balance


class MoeTransformer(nn.Module):
  """A decoder with tied embeddings, every second block switched."""

  shape: language.Shape
  num_experts: int

  @nn.compact
  def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the logits and the sum of the load-balancing losses."""
    x, to_logits = language.embed(self.shape, tokens)
    total = jnp.zeros(())
    for layer in range(self.shape.num_layers):
      if layer % 2:
        x, balance = MoeBlock(self.shape.num_heads, self.num_experts)(x)
        total += balance
      else:
        x = layers.Block(self.shape.num_heads, causal=True)(x)
    return to_logits(nn.LayerNorm()(x)), total


def _loss(outputs: tuple[jax.Array, jax.Array], labels: jax.Array) -> jax.Array:
  logits, balance = outputs
  return training.cross_entropy(logits, labels) + _BALANCE_WEIGHT * balance


_MODULES = {
  "full": MoeTransformer(
    language.Shape(vocabulary=32_128, width=512, num_heads=8, num_layers=8), 8
  ),
  "small": MoeTransformer(language.SMALL, 4),
  "tiny": MoeTransformer(language.TINY, 2),
}


def moe_transformer(batch: int, size: str) -> training.Step:
  """Builds 8 layers, 512 wide, 4 of them with 8 experts; 512 tokens."""
  module = _MODULES[size]
  return training.make_step(
    "moe_transformer",
    module,
    [module.shape.tokens(batch)] * 2,
    num_classes=module.shape.vocabulary,
    optimizer=training.adam(),
    loss=_loss,
  )
