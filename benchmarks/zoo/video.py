"""Residual networks of basic blocks: ResNet3D-18 on clips, and ResNet-18.

None drops out units, so that a step is a function of its arguments alone.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.zoo import layers, training


class BasicBlock(nn.Module):
  """A residual block of two convolutions, the first strided."""

  channels: int
  stride: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    y = layers.ConvNorm(self.channels, 3, self.stride)(x)
    y = layers.ConvNorm(self.channels, 3, activation=None)(y)
    if x.shape != y.shape:
      x = layers.ConvNorm(
        self.channels, 1, self.stride, activation=None, name="shortcut"
      )(x)
    return nn.relu(x + y)


class BasicResNet(nn.Module):
  """ResNet-18 on images, or on clips; the number of dimensions decides.

  He et al., Deep Residual Learning for Image Recognition, 2015; Tran et al.,
  A Closer Look at Spatiotemporal Convolutions for Action Recognition, 2018,
  whose R3D begins with a kernel of 3 by 7 by 7 and without pooling.
  """

  width: int = 64
  depths: tuple[int, ...] = (2, 2, 2, 2)
  num_classes: int = 1000

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    is_clip = x.ndim == 5
    if is_clip:
      x = nn.Conv(
        self.width,
        (3, 7, 7),
        strides=(1, 2, 2),
        padding=((1, 1), (3, 3), (3, 3)),
        use_bias=False,
      )(x)
      norm = nn.BatchNorm(use_running_average=False, momentum=0.9)
      x = nn.relu(norm(x))
    else:
      x = layers.max_pool(layers.ConvNorm(self.width, 7, 2)(x), 3, 2, 1)
    for stage, depth in enumerate(self.depths):
      for block in range(depth):
        stride = 2 if stage and not block else 1
        x = BasicBlock(self.width * 2**stage, stride)(x)
    return nn.Dense(self.num_classes)(x.mean(tuple(range(1, x.ndim - 1))))


def clip_batch(
  batch: int, num_frames: int, side: int
) -> list[jax.ShapeDtypeStruct]:
  """Returns the shapes of clips `[batch, frame, y, x, 3]`, one label each."""
  shape = (batch, num_frames, side, side, 3)
  return [
    jax.ShapeDtypeStruct(shape, jnp.float32),
    jax.ShapeDtypeStruct((batch,), jnp.int32),
  ]


_MODULES = {
  "full": (BasicResNet(num_classes=400), 16, 112),
  "small": (BasicResNet(16, (1, 1, 1), 100), 4, 32),
  "tiny": (BasicResNet(4, (1, 1), 10), 2, 16),
}


def resnet3d_18(batch: int, size: str) -> training.Step:
  """Builds ResNet3D-18 on clips of 16 frames, 112 by 112."""
  module, num_frames, side = _MODULES[size]
  return training.make_step(
    "resnet3d_18",
    module,
    clip_batch(batch, num_frames, side),
    num_classes=module.num_classes,
    optimizer=training.momentum(),
  )
