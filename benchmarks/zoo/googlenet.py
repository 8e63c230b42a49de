"""GoogLeNet with batch normalization and without auxiliary classifiers."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.zoo import layers, training, vision

# Channels of a block's branches: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5;
# pooled. None halves the image.
_Blocks = tuple[tuple[int, ...] | None, ...]

_BLOCKS: _Blocks = (
  (64, 96, 128, 16, 32, 32),
  (128, 128, 192, 32, 96, 64),
  None,
  (192, 96, 208, 16, 48, 64),
  (160, 112, 224, 24, 64, 64),
  (128, 128, 256, 24, 64, 64),
  (112, 144, 288, 32, 64, 64),
  (256, 160, 320, 32, 128, 128),
  None,
  (256, 160, 320, 32, 128, 128),
  (384, 192, 384, 48, 128, 128),
)


class Inception(nn.Module):
  """Four branches side by side; the widest kernel is 3, as in torchvision."""

  channels: tuple[int, ...]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    single, reduce_a, wide_a, reduce_b, wide_b, pooled = self.channels
    branches = [
      layers.ConvNorm(single, 1)(x),
      layers.ConvNorm(wide_a)(layers.ConvNorm(reduce_a, 1)(x)),
      layers.ConvNorm(wide_b)(layers.ConvNorm(reduce_b, 1)(x)),
      layers.ConvNorm(pooled, 1)(layers.max_pool(x, 3, 1, 1)),
    ]
    return jnp.concatenate(branches, axis=-1)


class GoogLeNet(nn.Module):
  """GoogLeNet.

  Szegedy et al., Going Deeper with Convolutions, 2014.

  Attributes:
    divisor: Divides the channels of every layer.
    blocks: See `_Blocks`.
    num_classes: Of the one classifier.
  """

  divisor: int = 1
  blocks: _Blocks = _BLOCKS
  num_classes: int = 1000

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    width = 64 // self.divisor
    x = layers.max_pool(layers.ConvNorm(width, 7, 2)(x), 3, 2, 1)
    x = layers.ConvNorm(3 * width)(layers.ConvNorm(width, 1)(x))
    x = layers.max_pool(x, 3, 2, 1)
    for channels in self.blocks:
      if channels is None:
        x = layers.max_pool(x, 3, 2, 1)
      else:
        x = Inception(tuple(count // self.divisor for count in channels))(x)
    return nn.Dense(self.num_classes)(x.mean((1, 2)))


_MODULES = {
  "full": (GoogLeNet(), 224),
  "small": (GoogLeNet(2, _BLOCKS[:5], 100), 128),
  "tiny": (GoogLeNet(16, _BLOCKS[:1], 10), 32),
}


def googlenet(batch: int, size: str) -> training.Step:
  """Builds GoogLeNet on 224 by 224 images."""
  module, side = _MODULES[size]
  return training.make_step(
    "googlenet",
    module,
    vision.image_batch(batch, side),
    num_classes=module.num_classes,
    optimizer=training.momentum(),
  )
