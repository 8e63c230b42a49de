"""Steps of stacked layers whose gradients only an optimizer reads.

They were written down when loops could update such weights themselves, before
either was planned or run.
"""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks.held_out.equinox_steps import split_arrays
from benchmarks.held_out.step import (
  Step,
  checkpointed,
  cross_entropy,
  floats,
  integers,
  make_train_step,
)
from benchmarks.policies import policy_named


class ScannedBlock(nn.Module):
  """Causal attention and a gated feed-forward layer, each on a residual."""

  num_heads: int

  @nn.compact
  def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
    width = x.shape[-1]
    attend = nn.MultiHeadDotProductAttention(self.num_heads)
    x = x + attend(nn.RMSNorm()(x), mask=mask)
    normed = nn.RMSNorm()(x)
    gated = nn.silu(nn.Dense(3 * width)(normed)) * nn.Dense(3 * width)(normed)
    return x + nn.Dense(width)(gated), None


class ScannedDecoder(nn.Module):
  """A language model whose layers are one `nn.scan`."""

  vocabulary: int
  width: int
  num_layers: int
  num_heads: int
  policy: str | None

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    embed = nn.Embed(self.vocabulary, self.width)
    block: Any = ScannedBlock
    if self.policy is not None:
      # Inside a loop, nothing merges the two runs.
      policy = policy_named(self.policy)
      block = nn.remat(block, policy=policy, prevent_cse=False)
    stack = nn.scan(
      block,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      in_axes=cast(Any, nn.broadcast),
      length=self.num_layers,
    )
    mask = nn.make_causal_mask(tokens)
    layers = stack(self.num_heads, name="layers")
    x, _ = layers(embed(tokens), mask)
    return embed.attend(nn.RMSNorm()(x))


def scanned_decoder(policy: str | None = None) -> Step:
  """Builds 12 layers, 256 wide, in one `nn.scan` of Flax; AdamW."""
  net = ScannedDecoder(2048, 256, 12, 4, policy)

  def loss(params: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    return cross_entropy(cast(jax.Array, net.apply(params, tokens)), labels)

  return make_train_step(
    lambda key: net.init(key, jnp.zeros((1, 64), jnp.int32)),
    loss,
    optax.adamw(3e-4),
    [integers(4, 64), integers(4, 64)],
    num_classes=2048,
  )


class SetLayer(eqx.Module):
  """Mixes each point with what all points of its set have in common."""

  norm: eqx.nn.LayerNorm
  own: eqx.nn.Linear
  common: eqx.nn.Linear
  out: eqx.nn.Linear

  def __init__(self, width: int, *, key: jax.Array):
    keys = jax.random.split(key, 3)
    self.norm = eqx.nn.LayerNorm(width)
    self.own, self.common, self.out = (
      eqx.nn.Linear(width, width, key=k) for k in keys
    )

  def __call__(self, points: jax.Array) -> jax.Array:
    """Takes and returns `[points, width]`."""
    normed = jax.vmap(self.norm)(points)
    mixed = jax.vmap(self.own)(normed) + self.common(normed.mean(0))
    return points + jax.vmap(self.out)(jax.nn.gelu(mixed))


def scanned_sets(policy: str | None = None) -> Step:
  """Builds 16 layers on sets, 320 wide, in one `lax.scan`, Equinox; Lion."""
  width, num_layers = 320, 16
  init_layer, rest = split_arrays(lambda key: SetLayer(width, key=key))

  def init(key: jax.Array) -> Any:
    return jax.vmap(init_layer)(jax.random.split(key, num_layers))

  def run(layer: Any, sets: jax.Array) -> jax.Array:
    return jax.vmap(eqx.combine(layer, rest))(sets)

  def loss(params: Any, sets: jax.Array, labels: jax.Array) -> jax.Array:
    again = checkpointed(run, policy, prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, p: (again(p, x), None), sets, params)
    return cross_entropy(x.mean(1)[:, :10], labels)

  return make_train_step(
    init,
    loss,
    optax.lion(1e-4),
    [floats(8, 32, width), integers(8)],
    num_classes=10,
  )
