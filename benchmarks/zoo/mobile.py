"""Networks of inverted residual blocks: MobileNet, EfficientNet, MNASNet.

None drops out units or blocks, so that a step is a function of its arguments
alone.
"""

import jax
from flax import linen as nn

from benchmarks.zoo import layers, training, vision

# Per stage: expansion, channels, blocks, stride of the first, kernel.
_Stages = tuple[tuple[int, int, int, int, int], ...]

_MOBILENET: _Stages = (
  (1, 16, 1, 1, 3),
  (6, 24, 2, 2, 3),
  (6, 32, 3, 2, 3),
  (6, 64, 4, 2, 3),
  (6, 96, 3, 1, 3),
  (6, 160, 3, 2, 3),
  (6, 320, 1, 1, 3),
)
EFFICIENTNET: _Stages = (
  (1, 16, 1, 1, 3),
  (6, 24, 2, 2, 3),
  (6, 40, 2, 2, 5),
  (6, 80, 3, 2, 3),
  (6, 112, 3, 1, 5),
  (6, 192, 4, 2, 5),
  (6, 320, 1, 1, 3),
)
_MNASNET: _Stages = (
  (1, 16, 1, 1, 3),
  (3, 24, 3, 2, 3),
  (3, 40, 3, 2, 5),
  (6, 80, 3, 2, 5),
  (6, 96, 2, 1, 3),
  (6, 192, 4, 2, 5),
  (6, 320, 1, 1, 3),
)
_SMALL: _Stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5))
_TINY: _Stages = ((2, 4, 1, 1, 3),)


class SqueezeExcite(nn.Module):
  """Scales channels by a gate computed from their means."""

  hidden: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    gate = x.mean((1, 2), keepdims=True)
    gate = nn.swish(nn.Dense(self.hidden, name="squeeze")(gate))
    return x * nn.sigmoid(nn.Dense(x.shape[-1], name="excite")(gate))


class InvertedResidual(nn.Module):
  """Expands, convolves each channel, and projects to few channels."""

  expansion: int
  channels: int
  stride: int
  kernel: int
  activation: layers.Activation
  squeeze: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    y, act = x, self.activation
    hidden = self.expansion * x.shape[-1]
    if self.expansion > 1:
      y = layers.ConvNorm(hidden, 1, activation=act, name="expand")(y)
    y = layers.ConvNorm(
      hidden, self.kernel, self.stride, hidden, act, name="depthwise"
    )(y)
    if self.squeeze:
      y = SqueezeExcite(x.shape[-1] // 4)(y)
    y = layers.ConvNorm(self.channels, 1, activation=None, name="project")(y)
    return x + y if x.shape == y.shape else y


class MobileNet(nn.Module):
  """A network of inverted residual blocks; the defaults are MobileNet V2.

  Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018;
  Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural
  Networks, 2019; Tan et al., MnasNet: Platform-Aware Neural Architecture Search
  for Mobile, 2018.
  """

  stages: _Stages = _MOBILENET
  stem: int = 32
  head: int = 1280
  num_classes: int = 1000
  activation: layers.Activation = nn.relu6
  squeeze: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    act = self.activation
    x = layers.ConvNorm(self.stem, 3, 2, activation=act)(x)
    for expansion, channels, depth, stride, kernel in self.stages:
      for block in range(depth):
        x = InvertedResidual(
          expansion, channels, 1 if block else stride, kernel, act, self.squeeze
        )(x)
    x = layers.ConvNorm(self.head, 1, activation=act)(x)
    return nn.Dense(self.num_classes)(x.mean((1, 2)))


_MOBILENETS = {
  "full": (MobileNet(), 224),
  "small": (MobileNet(_SMALL, 16, 256, 100), 64),
  "tiny": (MobileNet(_TINY, 4, 16, 10), 16),
}
_EFFICIENTNETS = {
  "full": (MobileNet(EFFICIENTNET, activation=nn.swish, squeeze=True), 224),
  "small": (MobileNet(_SMALL, 16, 256, 100, nn.swish, True), 64),
  "tiny": (MobileNet(_TINY, 4, 16, 10, nn.swish, True), 16),
}
_MNASNETS = {
  "full": (MobileNet(_MNASNET, activation=nn.relu), 224),
  "small": (MobileNet(_SMALL, 16, 256, 100, nn.relu), 64),
  "tiny": (MobileNet(_TINY, 4, 16, 10, nn.relu), 16),
}


def mobilenet_v2(batch: int, size: str) -> training.Step:
  """Builds MobileNet V2 on 224 by 224 images."""
  return _step("mobilenet_v2", _MOBILENETS[size], batch)


def efficientnet_b0(batch: int, size: str) -> training.Step:
  """Builds EfficientNet-B0 on 224 by 224 images."""
  return _step("efficientnet_b0", _EFFICIENTNETS[size], batch)


def mnasnet1_0(batch: int, size: str) -> training.Step:
  """Builds MNASNet of depth multiplier 1 on 224 by 224 images."""
  return _step("mnasnet1_0", _MNASNETS[size], batch)


def _step(name: str, model: tuple[MobileNet, int], batch: int) -> training.Step:
  """Trains a network on square images of the given side."""
  module, side = model
  return training.make_step(
    name,
    module,
    vision.image_batch(batch, side),
    num_classes=module.num_classes,
    optimizer=training.momentum(),
  )
