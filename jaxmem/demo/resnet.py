"""ResNet-50 in plain jax: parameters, loss and one step with momentum.

He et al., Deep Residual Learning for Image Recognition, 2015, with the stride
in the 3x3 convolution, as torchvision has it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]

_LEARNING_RATE = 0.1
_MOMENTUM = 0.9
_STATISTICS_MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The sizes of a model; the defaults are ResNet-50's.

  Attributes:
    depths: Blocks per stage; the channels double from stage to stage.
    width: Channels of the first stage; its blocks return four times as many.
    num_classes: Of the classifier.
  """

  depths: tuple[int, ...] = (3, 4, 6, 3)
  width: int = 64
  num_classes: int = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Conv:
  """A convolution without bias, and the batch normalization behind it."""

  name: str
  kernel: int
  inputs: int
  outputs: int
  stride: int = 1


def _block_convs(config: Config) -> list[list[_Conv]]:
  """Returns the convolutions of every block; a fourth one is a shortcut."""
  blocks = []
  inputs = config.width
  for stage, depth in enumerate(config.depths):
    width = config.width * 2**stage
    for block in range(depth):
      stride = 2 if stage and not block else 1
      prefix = f"stage_{stage}/block_{block}"
      convs = [
        _Conv(name=f"{prefix}/reduce", kernel=1, inputs=inputs, outputs=width),
        _Conv(
          name=f"{prefix}/filter",
          kernel=3,
          inputs=width,
          outputs=width,
          stride=stride,
        ),
        _Conv(
          name=f"{prefix}/expand", kernel=1, inputs=width, outputs=4 * width
        ),
      ]
      if not block:
        convs.append(
          _Conv(
            name=f"{prefix}/shortcut",
            kernel=1,
            inputs=inputs,
            outputs=4 * width,
            stride=stride,
          )
        )
      blocks.append(convs)
      inputs = 4 * width
  return blocks


def _stem(config: Config) -> _Conv:
  return _Conv(name="stem", kernel=7, inputs=3, outputs=config.width, stride=2)


def init_state(config: Config, key: jax.Array) -> Params:
  """Returns what a step updates: parameters, velocity, running statistics."""
  convs = [_stem(config), *(c for block in _block_convs(config) for c in block)]
  params: Params = {}
  statistics: Params = {}
  for conv in convs:
    key, own = jax.random.split(key)
    shape = (conv.kernel, conv.kernel, conv.inputs, conv.outputs)
    deviation = (2 / (conv.kernel**2 * conv.outputs)) ** 0.5
    params[conv.name] = {
      "kernel": deviation * jax.random.normal(own, shape),
      "scale": jnp.ones(conv.outputs),
      "bias": jnp.zeros(conv.outputs),
    }
    statistics[conv.name] = {
      "mean": jnp.zeros(conv.outputs),
      "variance": jnp.ones(conv.outputs),
    }
  features = (
    convs[-1].outputs
    if not config.depths
    else 4 * (config.width * 2 ** (len(config.depths) - 1))
  )
  params["classifier"] = {
    "kernel": 0.01 * jax.random.normal(key, (features, config.num_classes)),
    "bias": jnp.zeros(config.num_classes),
  }
  velocity = jax.tree.map(jnp.zeros_like, params)
  return {"params": params, "velocity": velocity, "statistics": statistics}


def _apply(
  conv: _Conv, params: Params, statistics: Params, x: jax.Array
) -> jax.Array:
  """Convolves and normalizes; adds the new statistics to `statistics`."""
  own = params[conv.name]
  padding = conv.kernel // 2
  x = jax.lax.conv_general_dilated(
    x,
    own["kernel"],
    (conv.stride, conv.stride),
    [(padding, padding)] * 2,
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )
  mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
  statistics[conv.name] = {"mean": mean, "variance": variance}
  x = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
  return x * own["scale"] + own["bias"]


def _loss(
  config: Config, params: Params, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, Params]:
  """Returns the mean cross-entropy and the batch's statistics."""
  statistics: Params = {}
  apply = functools.partial(_apply, params=params, statistics=statistics)
  x = jax.nn.relu(apply(_stem(config), x=images))
  x = jax.lax.reduce_window(
    x,
    -jnp.inf,
    jax.lax.max,
    (1, 3, 3, 1),
    (1, 2, 2, 1),
    [(0, 0), (1, 1), (1, 1), (0, 0)],
  )
  for reduce, filter_, expand, *shortcut in _block_convs(config):
    y = jax.nn.relu(apply(reduce, x=x))
    y = jax.nn.relu(apply(filter_, x=y))
    y = apply(expand, x=y)
    x = jax.nn.relu(y + (apply(shortcut[0], x=x) if shortcut else x))
  own = params["classifier"]
  logits = x.mean((1, 2)) @ own["kernel"] + own["bias"]
  log_probability = jax.nn.log_softmax(logits)
  picked = jnp.take_along_axis(log_probability, labels[:, None], -1)
  return -picked.mean(), statistics


def train_step(
  config: Config, state: Params, images: jax.Array, labels: jax.Array
) -> tuple[Params, jax.Array]:
  """Does one step of gradient descent with momentum.

  Args:
    config: Sizes.
    state: See `init_state`.
    images: float32 `[batch, height, width, 3]`.
    labels: int32 `[batch]`.

  Returns:
    The next state and the loss.
  """
  loss = functools.partial(_loss, config)
  (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(
    state["params"], images, labels
  )

  def average(old: jax.Array, new: jax.Array) -> jax.Array:
    return _STATISTICS_MOMENTUM * old + (1 - _STATISTICS_MOMENTUM) * new

  velocity = jax.tree.map(
    lambda v, g: _MOMENTUM * v + g, state["velocity"], gradient
  )
  params = jax.tree.map(
    lambda p, v: p - _LEARNING_RATE * v, state["params"], velocity
  )
  statistics = jax.tree.map(average, state["statistics"], statistics)
  return {
    "params": params,
    "velocity": velocity,
    "statistics": statistics,
  }, value
