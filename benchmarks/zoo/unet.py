"""U-Net on padded images."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.zoo import layers, training

# Takes the network, what goes through it, and the channels to come.
Block = Callable[[Any, jax.Array, int], jax.Array]


class UNet(nn.Module):
  """U-Net, its convolutions padded so that labels have the image's size.

  Ronneberger, Fischer and Brox, U-Net: Convolutional Networks for Biomedical
  Image Segmentation, 2015.

  Attributes:
    block: What convolves at each level, by default `CONVOLVE`; `nn.remat` of
      that, the channels static, to recompute it.
  """

  width: int = 64
  depth: int = 4
  num_classes: int = 2
  block: Block | None = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    block = self.block or UNet._convolve
    skips = []
    for level in range(self.depth):
      skips.append(block(self, x, self.width * 2**level))
      x = layers.max_pool(skips[-1], 2, 2)
    x = block(self, x, self.width * 2**self.depth)
    for level in reversed(range(self.depth)):
      channels = self.width * 2**level
      x = nn.ConvTranspose(channels, (2, 2), strides=(2, 2))(x)
      x = jnp.concatenate([skips[level], x], axis=-1)
      x = block(self, x, channels)
    return nn.Conv(self.num_classes, (1, 1))(x)

  def _convolve(self, x: jax.Array, channels: int) -> jax.Array:
    for _ in range(2):
      x = nn.relu(nn.Conv(channels, (3, 3), padding=1)(x))
    return x


CONVOLVE: Block = UNet._convolve

_MODULES = {
  "full": (UNet(), 256),
  "small": (UNet(16, 3), 96),
  "tiny": (UNet(4, 2), 8),
}


def unet(batch: int, size: str, block: Block = CONVOLVE) -> training.Step:
  """Builds U-Net on 256 by 256 gray images, each pixel labelled."""
  module, side = _MODULES[size]
  return training.make_step(
    "unet",
    dataclasses.replace(module, block=block),
    [
      jax.ShapeDtypeStruct((batch, side, side, 1), jnp.float32),
      jax.ShapeDtypeStruct((batch, side, side), jnp.int32),
    ],
    num_classes=module.num_classes,
    optimizer=training.momentum(),
  )
