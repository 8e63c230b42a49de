"""Steps that were added when those of `later_steps` had been looked at.

Each was written down before it was planned.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  cross_entropy,
  floats,
  integers,
  layers_and_ends,
  make_train_step,
  standardize,
)

Params = Any


def shifted_windows(policy: str | None = None) -> Step:
  """Builds 4 blocks of attention in windows of 8 x 8, 96 wide; Lion.

  Liu et al., Swin Transformer: Hierarchical Vision Transformer using Shifted
  Windows, 2021: every second block has its windows moved by half of one.
  """
  width, num_heads, side = 96, 3, 8
  shapes = {
    **{name: (width, width) for name in ("query", "key", "value", "mixed")},
    "inner": (width, 4 * width),
    "outer": (4 * width, width),
  }

  def attend(block: Params, x: jax.Array) -> jax.Array:
    def heads(name: str) -> jax.Array:
      return (x @ block[name]).reshape(*x.shape[:2], num_heads, -1)

    scores = jnp.einsum("bqhd,bkhd->bhqk", heads("query"), heads("key"))
    weights = jax.nn.softmax(scores / (width // num_heads) ** 0.5)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, heads("value"))
    return mixed.reshape(x.shape) @ block["mixed"]

  def run_block(block: Params, x: jax.Array, shift: jax.Array) -> jax.Array:
    size, number = x.shape[1], x.shape[1] // side
    y = jnp.roll(standardize(x), shift, (1, 2))
    y = y.reshape(-1, number, side, number, side, width)
    y = attend(block, y.swapaxes(2, 3).reshape(-1, side * side, width))
    y = y.reshape(-1, number, number, side, side, width).swapaxes(2, 3)
    x += jnp.roll(y.reshape(-1, size, size, width), -shift, (1, 2))
    return x + jax.nn.gelu(standardize(x) @ block["inner"]) @ block["outer"]

  def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    blocks, ends = params
    run = checkpointed(run_block, policy)
    size = images.shape[1] // 4
    x = images.reshape(-1, size, 4, size, 4, 3).swapaxes(2, 3)
    x = x.reshape(-1, size, size, 4 * 4 * 3) @ ends["patches"]
    for number, block in enumerate(blocks):
      x = run(block, x, jnp.array(number % 2 * side // 2))
    return cross_entropy(x.mean((1, 2)) @ ends["head"], labels)

  return make_train_step(
    layers_and_ends(
      4, shapes, {"patches": (4 * 4 * 3, width), "head": (width, 10)}
    ),
    loss,
    optax.lion(1e-4),
    [floats(8, 128, 128, 3), integers(8)],
    num_classes=10,
  )


def dilated_convolutions(policy: str | None = None) -> Step:
  """Builds 10 gated convolutions along 2,048 samples, 64 wide; AdamW.

  van den Oord et al., WaveNet: A Generative Model for Raw Audio, 2016: each
  reads twice as far back as the one before it.
  """
  width, num_values = 64, 256
  shapes = {
    "filter": (2, width, width),
    "gate": (2, width, width),
    "residual": (width, width),
    "skip": (width, width),
  }

  def convolve(x: jax.Array, kernel: jax.Array, dilation: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
      x,
      kernel,
      (1,),
      [(dilation, 0)],
      rhs_dilation=(dilation,),
      dimension_numbers=("NWC", "WIO", "NWC"),
    )

  def loss(params: Params, samples: jax.Array) -> jax.Array:
    layers, ends = params
    x = ends["embed"][samples[:, :-1]]
    skips = jnp.zeros_like(x)
    for number, layer in enumerate(layers):

      def run_layer(
        layer: Params, x: jax.Array, dilation: int = 2**number
      ) -> tuple[jax.Array, jax.Array]:
        gate = jax.nn.sigmoid(convolve(x, layer["gate"], dilation))
        y = jnp.tanh(convolve(x, layer["filter"], dilation)) * gate
        return x + y @ layer["residual"], y @ layer["skip"]

      x, skip = checkpointed(run_layer, policy)(layer, x)
      skips += skip
    return cross_entropy(jax.nn.relu(skips) @ ends["last"], samples[:, 1:])

  return make_train_step(
    layers_and_ends(
      10, shapes, {"embed": (num_values, width), "last": (width, num_values)}
    ),
    loss,
    optax.adamw(1e-3),
    [integers(4, 2049)],
    num_classes=num_values,
  )
