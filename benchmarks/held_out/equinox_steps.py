"""Steps of models written in Equinox."""

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Step,
  cross_entropy,
  floats,
  integers,
  make_train_step,
)
from benchmarks.policies import policy_named


def split_arrays(
  build: Callable[[jax.Array], Any],
) -> tuple[Callable[[jax.Array], Any], Any]:
  """Returns what makes a model's arrays, and all of it that is none."""
  shapes = eqx.filter_eval_shape(build, jax.random.key(0))
  is_array = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)  # noqa: E731
  _, rest = eqx.partition(shapes, is_array)
  return lambda key: eqx.filter(build(key), eqx.is_array), rest


def checkpointed_module(
  block: Callable[..., jax.Array], policy: str | None
) -> Callable[..., jax.Array]:
  """Returns a module, recomputed under a policy if one is named."""
  if policy is None:
    return block
  return eqx.filter_checkpoint(block, policy=policy_named(policy))


class MixerBlock(eqx.Module):
  """Mixes `[channels, patches]` along patches, then along channels."""

  norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
  patch_mixer: eqx.nn.MLP
  channel_mixer: eqx.nn.MLP

  def __init__(self, channels: int, patches: int, *, key: jax.Array):
    keys = jax.random.split(key)
    shape = (channels, patches)
    self.norms = (eqx.nn.LayerNorm(shape), eqx.nn.LayerNorm(shape))
    self.patch_mixer = eqx.nn.MLP(
      patches, patches, 2 * patches, 1, jax.nn.gelu, key=keys[0]
    )
    self.channel_mixer = eqx.nn.MLP(
      channels, channels, 4 * channels, 1, jax.nn.gelu, key=keys[1]
    )

  def __call__(self, x: jax.Array) -> jax.Array:
    x = x + jax.vmap(self.patch_mixer)(self.norms[0](x))
    mixed = jax.vmap(self.channel_mixer)(self.norms[1](x).T)
    return x + mixed.T


class Mixer(eqx.Module):
  """An MLP-Mixer of images `[3, 32, 32]`."""

  stem: eqx.nn.Conv2d
  blocks: list[MixerBlock]
  norm: eqx.nn.LayerNorm
  head: eqx.nn.Linear

  def __init__(self, channels: int, num_blocks: int, *, key: jax.Array):
    stem_key, head_key, *keys = jax.random.split(key, 2 + num_blocks)
    self.stem = eqx.nn.Conv2d(3, channels, 4, 4, key=stem_key)
    self.blocks = [MixerBlock(channels, 64, key=k) for k in keys]
    self.norm = eqx.nn.LayerNorm((channels, 64))
    self.head = eqx.nn.Linear(channels, 10, key=head_key)

  def __call__(self, image: jax.Array, policy: str | None) -> jax.Array:
    x = self.stem(image)
    x = x.reshape(len(x), -1)
    for block in self.blocks:
      x = checkpointed_module(block, policy)(x)
    return self.head(self.norm(x).mean(1))


def mlp_mixer(policy: str | None = None) -> Step:
  """Builds a mixer of 8 blocks, 128 wide, on 32 images, AdamW."""
  init, rest = split_arrays(lambda key: Mixer(128, 8, key=key))

  def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    model = eqx.combine(params, rest)
    logits = jax.vmap(lambda image: model(image, policy))(images)
    return cross_entropy(logits, labels)

  return make_train_step(
    init,
    loss,
    optax.adamw(1e-3),
    [floats(32, 3, 32, 32), integers(32)],
    num_classes=10,
  )


class Autoencoder(eqx.Module):
  """Convolutions that halve an image's sides, and as many that double them."""

  down: list[eqx.nn.Conv2d]
  up: list[eqx.nn.ConvTranspose2d]

  def __init__(self, channels: tuple[int, ...], *, key: jax.Array):
    pairs = list(itertools.pairwise(channels))
    keys = jax.random.split(key, (2, len(pairs)))
    self.down = [
      eqx.nn.Conv2d(few, many, 4, 2, 1, key=k)
      for (few, many), k in zip(pairs, keys[0], strict=True)
    ]
    self.up = [
      eqx.nn.ConvTranspose2d(many, few, 4, 2, padding=1, key=k)
      for (few, many), k in zip(pairs[::-1], keys[1], strict=True)
    ]

  def __call__(self, x: jax.Array) -> jax.Array:
    for layer in self.down:
      x = jax.nn.elu(layer(x))
    for layer in self.up[:-1]:
      x = jax.nn.elu(layer(x))
    return self.up[-1](x)


def conv_autoencoder() -> Step:
  """Builds an autoencoder of 32 images of 64 by 64, Lion."""
  init, rest = split_arrays(lambda key: Autoencoder((3, 32, 64, 128), key=key))

  def loss(params: Any, images: jax.Array) -> jax.Array:
    made = jax.vmap(eqx.combine(params, rest))(images)
    return jnp.square(made - images).mean()

  return make_train_step(init, loss, optax.lion(1e-4), [floats(32, 3, 64, 64)])
