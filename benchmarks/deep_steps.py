"""Train steps that grow by their depth: what planning costs at which size.

Each is written in plain jax and unrolled, so that the number of instructions is
about proportional to the depth.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out import (
  Step,
  cross_entropy,
  floats,
  integers,
  make_train_step,
)

_Weights = dict[str, jax.Array]

_WIDTH = 64
_CLASSES = 64


def _draw(key: jax.Array, shapes: dict[str, tuple[int, ...]]) -> _Weights:
  """Returns weights of these shapes, the same for the same key."""
  keys = jax.random.split(key, len(shapes))
  return {
    name: 0.1 * jax.random.normal(each, shape)
    for each, (name, shape) in zip(keys, shapes.items(), strict=True)
  }


def _draw_layers(
  key: jax.Array, depth: int, shapes: dict[str, tuple[int, ...]]
) -> list[_Weights]:
  return [_draw(each, shapes) for each in jax.random.split(key, depth)]


def _normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
  return scale * x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def _attend(weights: _Weights, x: jax.Array) -> jax.Array:
  query, key, value = jnp.split(x @ weights["qkv"], 3, axis=-1)
  batch, length, width = x.shape
  heads = (batch, length, 4, width // 4)
  query, key, value = (each.reshape(heads) for each in (query, key, value))
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / width**0.5
  scores = jnp.where(jnp.tri(length, dtype=bool), scores, -1e9)
  mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
  return mixed.reshape(x.shape) @ weights["out"]


def _token_step(
  depth: int,
  shapes: dict[str, tuple[int, ...]],
  block: Callable[[_Weights, jax.Array], jax.Array],
) -> Step:
  """A stack of blocks between an embedding and its transpose, AdamW."""

  def init(key: jax.Array) -> tuple[_Weights, list[_Weights]]:
    return (
      _draw(key, {"embed": (_CLASSES, _WIDTH)}),
      _draw_layers(key, depth, shapes),
    )

  def loss(params: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    ends, layers = params
    x = ends["embed"][tokens]
    for weights in layers:
      x = block(weights, x)
    return cross_entropy(x @ ends["embed"].T, labels)

  batch = [integers(4, 32), integers(4, 32)]
  return make_train_step(
    init, loss, optax.adamw(1e-3), batch, num_classes=_CLASSES
  )


_ATTENTION = {"qkv": (_WIDTH, 3 * _WIDTH), "out": (_WIDTH, _WIDTH)}


def decoder(depth: int) -> Step:
  """A decoder of gated blocks, normalized by root mean squares."""
  shapes = _ATTENTION | {
    "first": (_WIDTH,),
    "second": (_WIDTH,),
    "gate": (_WIDTH, 4 * _WIDTH),
    "up": (_WIDTH, 4 * _WIDTH),
    "down": (4 * _WIDTH, _WIDTH),
  }

  def block(weights: _Weights, x: jax.Array) -> jax.Array:
    x += _attend(weights, _normalize(x, weights["first"]))
    y = _normalize(x, weights["second"])
    y = jax.nn.silu(y @ weights["gate"]) * (y @ weights["up"])
    return x + y @ weights["down"]

  return _token_step(depth, shapes, block)


def experts(depth: int) -> Step:
  """A decoder whose blocks weigh the outputs of three experts."""
  shapes = _ATTENTION | {
    "router": (_WIDTH, 3),
    "up": (3, _WIDTH, 2 * _WIDTH),
    "down": (3, 2 * _WIDTH, _WIDTH),
  }

  def block(weights: _Weights, x: jax.Array) -> jax.Array:
    x += _attend(weights, x)
    share = jax.nn.softmax(x @ weights["router"])
    outputs = [
      jax.nn.gelu(x @ weights["up"][e]) @ weights["down"][e] for e in range(3)
    ]
    return x + sum(share[..., e, None] * y for e, y in enumerate(outputs))

  return _token_step(depth, shapes, block)


def recurrent(depth: int) -> Step:
  """Long short-term memory, unrolled over its time steps, plain descent."""

  def init(key: jax.Array) -> _Weights:
    return _draw(
      key,
      {
        "input": (_WIDTH, 4 * _WIDTH),
        "state": (_WIDTH, 4 * _WIDTH),
        "output": (_WIDTH, _CLASSES),
      },
    )

  def loss(params: _Weights, inputs: jax.Array, labels: jax.Array) -> jax.Array:
    hidden = cell = jnp.zeros((len(inputs), _WIDTH))
    total = jnp.zeros(())
    for step in range(depth):
      gates = inputs[:, step] @ params["input"] + hidden @ params["state"]
      forget, write, read, new = jnp.split(gates, 4, axis=-1)
      cell = jax.nn.sigmoid(forget) * cell
      cell += jax.nn.sigmoid(write) * jnp.tanh(new)
      hidden = jax.nn.sigmoid(read) * jnp.tanh(cell)
      total += cross_entropy(hidden @ params["output"], labels[:, step])
    return total

  batch = [floats(16, depth, _WIDTH), integers(16, depth)]
  return make_train_step(
    init, loss, optax.sgd(1e-2), batch, num_classes=_CLASSES
  )


def residual(depth: int) -> Step:
  """A convolutional net of residual blocks, with momentum."""
  shapes = {"first": (3, 3, 16, 16), "second": (3, 3, 16, 16), "scale": (16,)}

  def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
      x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )

  def init(key: jax.Array) -> tuple[_Weights, list[_Weights]]:
    ends = {"stem": (3, 3, 3, 16), "head": (16, _CLASSES)}
    return _draw(key, ends), _draw_layers(key, depth, shapes)

  def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    ends, layers = params
    x = convolve(images, ends["stem"])
    for weights in layers:
      y = convolve(jax.nn.relu(x), weights["first"])
      x += convolve(_normalize(y, weights["scale"]), weights["second"])
    return cross_entropy(x.mean((1, 2)) @ ends["head"], labels)

  batch = [floats(4, 16, 16, 3), integers(4)]
  optimizer = optax.sgd(1e-2, momentum=0.9)
  return make_train_step(init, loss, optimizer, batch, num_classes=_CLASSES)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GrowingStep:
  """A step of any depth.

  Attributes:
    build: Returns the step of a depth.
    instructions_per_layer: About how many instructions XLA schedules for one.
    max_size: The most instructions that XLA shows in bearable time.
  """

  build: Callable[[int], Step]
  instructions_per_layer: int
  max_size: int


STEPS: dict[str, GrowingStep] = {
  "decoder": GrowingStep(
    build=decoder, instructions_per_layer=124, max_size=100_000
  ),
  "experts": GrowingStep(
    build=experts, instructions_per_layer=143, max_size=10_000
  ),
  # XLA fuses sums over all time steps, so that a module of them grows with the
  # square of their number: 25 MB at 3,300 instructions.
  "recurrent": GrowingStep(
    build=recurrent, instructions_per_layer=33, max_size=3_000
  ),
  "residual": GrowingStep(
    build=residual, instructions_per_layer=39, max_size=30_000
  ),
}
SMALLEST = "residual"
