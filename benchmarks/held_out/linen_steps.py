"""Steps in the manner of Flax's examples, in flax.linen."""

import itertools
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks.held_out.step import (
  Step,
  cross_entropy,
  floats,
  integers,
  make_train_step,
)
from benchmarks.policies import policy_named


def _block(block: type[nn.Module], policy: str | None) -> Any:
  """Returns a block's class, recomputed under a policy if one is named."""
  if policy is None:
    return block
  return cast(Any, nn.remat(block, policy=policy_named(policy)))


class DigitNet(nn.Module):
  """Two convolutions, each pooled, and two dense layers."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for channels in (32, 64):
      x = nn.relu(nn.Conv(channels, (3, 3))(x))
      x = nn.avg_pool(x, (2, 2), strides=(2, 2))
    x = nn.relu(nn.Dense(256)(x.reshape(len(x), -1)))
    return nn.Dense(10)(x)


def mnist_cnn() -> Step:
  """Builds a small classifier of gray 28 by 28 images, SGD with momentum."""
  net = DigitNet()

  def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = cast(jax.Array, net.apply(params, images))
    return cross_entropy(logits, labels)

  return make_train_step(
    lambda key: net.init(key, jnp.zeros((1, 28, 28, 1))),
    loss,
    optax.sgd(0.1, momentum=0.9),
    [floats(256, 28, 28, 1), integers(256)],
    num_classes=10,
  )


class Translator(nn.Module):
  """An LSTM reads a sequence; another writes one from where that ended."""

  vocabulary: int
  width: int

  @nn.compact
  def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
    embed = nn.Embed(self.vocabulary, self.width // 2)
    reader = nn.RNN(nn.LSTMCell(self.width), return_carry=True)
    state, _ = reader(embed(source))
    writer = nn.RNN(nn.LSTMCell(self.width))
    outputs = writer(embed(target), initial_carry=state)
    return nn.Dense(self.vocabulary)(outputs)


def lstm_seq2seq() -> Step:
  """Builds a translator of two LSTMs, 32 tokens each way, Adam."""
  net = Translator(512, 256)

  def loss(params: Any, source: jax.Array, target: jax.Array) -> jax.Array:
    logits = cast(jax.Array, net.apply(params, source, target[:, :-1]))
    return cross_entropy(logits, target[:, 1:])

  tokens = jnp.zeros((1, 2), jnp.int32)
  return make_train_step(
    lambda key: net.init(key, tokens, tokens),
    loss,
    optax.adam(1e-3),
    [integers(64, 32), integers(64, 33)],
    num_classes=512,
  )


class DecoderBlock(nn.Module):
  """Causal attention and a feed-forward layer, each normalized before."""

  num_heads: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    mask = nn.make_causal_mask(x[..., 0])
    attend = nn.MultiHeadDotProductAttention(self.num_heads)
    x = x + attend(nn.LayerNorm()(x), mask=mask)
    hidden = nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x)))
    return x + nn.Dense(x.shape[-1])(hidden)


class Decoder(nn.Module):
  """A GPT with its output tied to its embedding."""

  vocabulary: int
  width: int
  num_heads: int
  num_layers: int
  policy: str | None

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    embed = nn.Embed(self.vocabulary, self.width)
    positions = nn.Embed(tokens.shape[-1], self.width)
    x = embed(tokens) + positions(jnp.arange(tokens.shape[-1]))
    block = _block(DecoderBlock, self.policy)
    for i in range(self.num_layers):
      # The name says nothing of the policy.
      x = block(self.num_heads, name=f"block_{i}")(x)
    return embed.attend(nn.LayerNorm()(x))


def gpt(policy: str | None = None) -> Step:
  """Builds a GPT of 4 layers, 256 wide, 6 sequences of 256 tokens, AdamW."""
  net = Decoder(4096, 256, 4, 4, policy)

  def loss(params: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    logits = cast(jax.Array, net.apply(params, tokens))
    return cross_entropy(logits, labels)

  return make_train_step(
    lambda key: net.init(key, jnp.zeros((1, 256), jnp.int32)),
    loss,
    optax.adamw(3e-4),
    [integers(6, 256), integers(6, 256)],
    num_classes=4096,
  )


class ResidualBlock(nn.Module):
  """Two convolutions, told the time of the noise between them."""

  channels: int

  @nn.compact
  def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
    h = nn.Conv(self.channels, (3, 3))(nn.swish(nn.GroupNorm(8)(x)))
    h = h + nn.Dense(self.channels)(time)[:, None, None]
    h = nn.Conv(self.channels, (3, 3))(nn.swish(nn.GroupNorm(8)(h)))
    if x.shape[-1] != self.channels:
      x = nn.Conv(self.channels, (1, 1))(x)
    return x + h


class Denoiser(nn.Module):
  """A U-Net of residual blocks, two at each size on each way."""

  widths: tuple[int, ...]
  policy: str | None

  @nn.compact
  def __call__(self, x: jax.Array, noise_level: jax.Array) -> jax.Array:
    kind = _block(ResidualBlock, self.policy)
    names = (f"block_{i}" for i in itertools.count())

    def block(width: int) -> Any:
      # The name says nothing of the policy.
      return kind(width, name=next(names))

    time = nn.swish(nn.Dense(64)(noise_level[:, None]))
    x = nn.Conv(self.widths[0], (3, 3))(x)
    skips = []
    for width in self.widths:
      for _ in range(2):
        x = block(width)(x, time)
      skips.append(x)
      x = nn.Conv(width, (3, 3), strides=(2, 2))(x)
    x = block(self.widths[-1])(x, time)
    for width, skip in zip(self.widths[::-1], skips[::-1], strict=True):
      x = nn.ConvTranspose(width, (2, 2), strides=(2, 2))(x)
      x = jnp.concatenate([x, skip], axis=-1)
      for _ in range(2):
        x = block(width)(x, time)
    return nn.Conv(3, (3, 3))(nn.swish(nn.GroupNorm(8)(x)))


def diffusion_unet(policy: str | None = None) -> Step:
  """Builds a U-Net that learns to find noise in 32 by 32 images, AdamW."""
  net = Denoiser((32, 64), policy)

  def loss(params: Any, images: jax.Array, noise: jax.Array) -> jax.Array:
    level = jnp.linspace(0, 1, len(images))
    mixed = images + level[:, None, None, None] * noise
    found = cast(jax.Array, net.apply(params, mixed, level))
    return jnp.square(found - noise).mean()

  return make_train_step(
    lambda key: net.init(key, jnp.zeros((1, 32, 32, 3)), jnp.zeros(1)),
    loss,
    optax.adamw(1e-4),
    [floats(8, 32, 32, 3), floats(8, 32, 32, 3)],
  )
