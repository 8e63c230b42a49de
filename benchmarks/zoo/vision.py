"""Image models after torchvision, and U-Net; images are `[batch, y, x, c]`.

None drops out units, so that a step is a function of its arguments alone.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.zoo import layers, training


def image_batch(
  batch: int, side: int, channels: int = 3
) -> list[jax.ShapeDtypeStruct]:
  """Returns the shapes of square images and one label each."""
  return [
    jax.ShapeDtypeStruct((batch, side, side, channels), jnp.float32),
    jax.ShapeDtypeStruct((batch,), jnp.int32),
  ]


class AlexNet(nn.Module):
  """The one-column AlexNet.

  Krizhevsky, One weird trick for parallelizing convolutional neural networks,
  2014.
  """

  width: int = 64
  hidden: int = 4096
  num_classes: int = 1000

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    width = self.width
    x = nn.relu(nn.Conv(width, (11, 11), strides=4, padding=2)(x))
    x = layers.max_pool(x, 3, 2)
    x = nn.relu(nn.Conv(3 * width, (5, 5), padding=2)(x))
    x = layers.max_pool(x, 3, 2)
    for channels in (6 * width, 4 * width, 4 * width):
      x = nn.relu(nn.Conv(channels, (3, 3), padding=1)(x))
    x = layers.max_pool(x, 3, 2).reshape(x.shape[0], -1)
    for _ in range(2):
      x = nn.relu(nn.Dense(self.hidden)(x))
    return nn.Dense(self.num_classes)(x)


class Vgg(nn.Module):
  """VGG, configuration D.

  Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale
  Image Recognition, 2014.
  """

  width: int = 64
  depths: tuple[int, ...] = (2, 2, 3, 3, 3)
  hidden: int = 4096
  num_classes: int = 1000

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for stage, depth in enumerate(self.depths):
      for _ in range(depth):
        channels = self.width * min(2**stage, 8)
        x = nn.relu(nn.Conv(channels, (3, 3), padding=1)(x))
      x = layers.max_pool(x, 2, 2)
    x = x.reshape(x.shape[0], -1)
    for _ in range(2):
      x = nn.relu(nn.Dense(self.hidden)(x))
    return nn.Dense(self.num_classes)(x)


class Bottleneck(nn.Module):
  """A residual block of three convolutions, the second strided."""

  channels: int
  stride: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    y = layers.ConvNorm(self.channels, 1)(x)
    y = layers.ConvNorm(self.channels, 3, self.stride)(y)
    y = layers.ConvNorm(4 * self.channels, 1, activation=None)(y)
    if x.shape != y.shape:
      x = layers.ConvNorm(
        4 * self.channels, 1, self.stride, activation=None, name="shortcut"
      )(x)
    return nn.relu(x + y)


class ResNet(nn.Module):
  """ResNet-50.

  He et al., Deep Residual Learning for Image Recognition, 2015.

  Attributes:
    block: The class of the blocks; `nn.remat` of it, to recompute them.
  """

  width: int = 64
  depths: tuple[int, ...] = (3, 4, 6, 3)
  num_classes: int = 1000
  block: type[nn.Module] = Bottleneck

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = layers.ConvNorm(self.width, 7, 2)(x)
    x = layers.max_pool(x, 3, 2, 1)
    block: Any = self.block
    for stage, depth in enumerate(self.depths):
      for i in range(depth):
        stride = 2 if stage and not i else 1
        x = block(self.width * 2**stage, stride)(x)
    return nn.Dense(self.num_classes)(x.mean((1, 2)))


class VisionTransformer(nn.Module):
  """A vision transformer with a class token; the defaults are ViT-B/16.

  Dosovitskiy et al., An Image is Worth 16x16 Words, 2020.

  Attributes:
    block: The class of the blocks; `nn.remat` of it, to recompute them.
  """

  patch: int = 16
  width: int = 768
  num_heads: int = 12
  num_layers: int = 12
  num_classes: int = 1000
  block: type[nn.Module] = layers.Block

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    kernel = (self.patch, self.patch)
    x = nn.Conv(self.width, kernel, strides=self.patch, padding="VALID")(x)
    x = x.reshape(x.shape[0], -1, self.width)
    zeros = nn.initializers.zeros
    token = self.param("class_token", zeros, (1, 1, self.width))
    token = jnp.broadcast_to(token, (x.shape[0], 1, self.width))
    x = jnp.concatenate([token, x], axis=1)
    x += self.param("positions", zeros, x.shape[1:])
    gelu = functools.partial(nn.gelu, approximate=False)
    block: Any = self.block
    for _ in range(self.num_layers):
      x = block(self.num_heads, causal=False, activation=gelu)(x)
    return nn.Dense(self.num_classes)(nn.LayerNorm()(x)[:, 0])


_ALEXNETS = {
  "full": (AlexNet(), 224),
  "small": (AlexNet(64, 512, 100), 192),
  "tiny": (AlexNet(4, 16, 10), 64),
}
_VGGS = {
  "full": (Vgg(), 224),
  "small": (Vgg(24, hidden=256, num_classes=100), 96),
  "tiny": (Vgg(4, (1, 1, 1, 1, 1), 16, 10), 32),
}
_RESNETS = {
  "full": (ResNet(), 224),
  "small": (ResNet(24, (1, 2, 2, 1), 100), 128),
  "tiny": (ResNet(4, (1, 1), 10), 16),
}
_VISION_TRANSFORMERS = {
  "full": (VisionTransformer(), 224),
  "small": (VisionTransformer(8, 256, 4, 4, 100), 96),
  "tiny": (VisionTransformer(4, 32, 2, 2, 10), 8),
}


def alexnet(batch: int, size: str) -> training.Step:
  """Builds AlexNet on 224 by 224 images."""
  module, side = _ALEXNETS[size]
  return training.make_step(
    "alexnet",
    module,
    image_batch(batch, side),
    num_classes=module.num_classes,
    optimizer=training.momentum(),
  )


def vgg16(batch: int, size: str) -> training.Step:
  """Builds VGG-16 on 224 by 224 images."""
  module, side = _VGGS[size]
  return training.make_step(
    "vgg16",
    module,
    image_batch(batch, side),
    num_classes=module.num_classes,
    optimizer=training.momentum(),
  )


def resnet50(
  batch: int, size: str, block: type[nn.Module] = Bottleneck
) -> training.Step:
  """Builds ResNet-50 on 224 by 224 images."""
  module, side = _RESNETS[size]
  return training.make_step(
    "resnet50",
    dataclasses.replace(module, block=block),
    image_batch(batch, side),
    num_classes=module.num_classes,
    optimizer=training.momentum(),
  )


def vit_b16(
  batch: int, size: str, block: type[nn.Module] = layers.Block
) -> training.Step:
  """Builds ViT-B/16 on 224 by 224 images."""
  module, side = _VISION_TRANSFORMERS[size]
  return training.make_step(
    "vit_b16",
    dataclasses.replace(module, block=block),
    image_batch(batch, side),
    num_classes=module.num_classes,
    optimizer=training.adam(),
  )
