"""Steps of fields that the other files leave out, and of how users write them.

They were written down, with those of `own_gradients`, before the first of them
was planned.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  convolve,
  cross_entropy,
  encoder_layer,
  encoder_shapes,
  floats,
  integers,
  layers_and_ends,
  make_train_step,
  normal_layers,
  standardize,
)

Params = Any


def pair_features(policy: str | None = None) -> Step:
  """Builds 4 blocks on the pairs of 64 residues, 32 wide; Adam, clipped.

  Jumper et al., Highly accurate protein structure prediction with AlphaFold,
  2021: products and attention around triangles, of arrays that grow with the
  square of the length.
  """
  width, num_heads, length = 32, 4, 64
  square = ("left", "right", "gate", "query", "key", "value", "mixed")
  shapes = {
    **{name: (width, width) for name in square},
    "bias": (width, num_heads),
    "inner": (width, 4 * width),
    "outer": (4 * width, width),
  }

  def multiply(block: Params, pairs: jax.Array) -> jax.Array:
    x = standardize(pairs)
    left = jax.nn.sigmoid(x @ block["left"]) * x
    right = jax.nn.sigmoid(x @ block["right"]) * x
    product = jnp.einsum("bikc,bjkc->bijc", left, right) / length
    return jax.nn.sigmoid(x @ block["gate"]) * standardize(product)

  def attend(block: Params, pairs: jax.Array) -> jax.Array:
    x = standardize(pairs)

    def heads(name: str) -> jax.Array:
      return (x @ block[name]).reshape(*x.shape[:3], num_heads, -1)

    scores = jnp.einsum("biqhd,bikhd->bihqk", heads("query"), heads("key"))
    bias = jnp.einsum("bqkc,ch->bhqk", x, block["bias"])[:, None]
    weights = jax.nn.softmax(scores / (width // num_heads) ** 0.5 + bias)
    mixed = jnp.einsum("bihqk,bikhd->biqhd", weights, heads("value"))
    return mixed.reshape(x.shape) @ block["mixed"]

  def run_block(block: Params, pairs: jax.Array) -> jax.Array:
    pairs += multiply(block, pairs)
    pairs += attend(block, pairs)
    hidden = jax.nn.relu(standardize(pairs) @ block["inner"])
    return pairs + hidden @ block["outer"]

  def loss(params: Params, residues: jax.Array, bins: jax.Array) -> jax.Array:
    blocks, ends = params
    rows, columns = residues @ ends["row"], residues @ ends["column"]
    pairs = rows[:, :, None] + columns[:, None]
    for block in blocks:
      pairs = checkpointed(run_block, policy)(block, pairs)
    return cross_entropy((pairs + pairs.swapaxes(1, 2)) @ ends["out"], bins)

  ends = {"row": (20, width), "column": (20, width), "out": (width, 32)}
  return make_train_step(
    layers_and_ends(4, shapes, ends),
    loss,
    optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-3)),
    [floats(2, length, 20), integers(2, length, length)],
    num_classes=32,
  )


def image_and_text(policy: str | None = None) -> Step:
  """Builds two encoders of 4 layers, 128 wide, that are to agree; AdamW.

  Radford et al., Learning Transferable Visual Models From Natural Language
  Supervision, 2021: each image is compared with each text of the batch.
  """
  width, num_layers = 128, 4
  run_layer = functools.partial(encoder_layer, num_heads=4)

  def encode(layers: list[Params], x: jax.Array) -> jax.Array:
    for layer in layers:
      x = checkpointed(run_layer, policy)(layer, x)
    summary = x.mean(1)
    return summary / jnp.linalg.norm(summary, axis=-1, keepdims=True)

  def loss(params: Params, patches: jax.Array, text: jax.Array) -> jax.Array:
    layers, ends = params
    images = encode(layers[:num_layers], patches @ ends["patches"])
    texts = encode(layers[num_layers:], ends["words"][text])
    logits = images @ texts.T / 0.07
    labels = jnp.arange(len(logits))
    return cross_entropy(logits, labels) + cross_entropy(logits.T, labels)

  ends = {"patches": (192, width), "words": (2048, width)}
  return make_train_step(
    layers_and_ends(2 * num_layers, encoder_shapes(width), ends),
    loss,
    optax.adamw(1e-3),
    [floats(32, 64, 192), integers(32, 24)],
    num_classes=2048,
  )


def recommender(policy: str | None = None) -> Step:
  """Builds 4 cross layers on 16 embeddings and numbers; Adagrad.

  Wang et al., DCN V2: Improved Deep & Cross Network, 2021: large tables of
  which a batch reads few rows, and little else.
  """
  num_tables, num_rows, size, num_numbers = 16, 2000, 16, 13
  width = num_tables * size + num_numbers
  shapes = {"cross": (width, width), "deep": (width, width)}

  def run_layer(
    layer: Params, first: jax.Array, crossed: jax.Array, deep: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    crossed = first * (crossed @ layer["cross"]) + crossed
    return crossed, jax.nn.relu(deep @ layer["deep"])

  def loss(
    params: Params, numbers: jax.Array, rows: jax.Array, clicks: jax.Array
  ) -> jax.Array:
    layers, ends = params
    found = ends["tables"][jnp.arange(num_tables), rows]
    first = jnp.concatenate([found.reshape(len(rows), -1), numbers], axis=1)
    crossed, deep = first, first
    for layer in layers:
      crossed, deep = checkpointed(run_layer, policy)(
        layer, first, crossed, deep
      )
    logits = jnp.concatenate([crossed, deep], axis=1) @ ends["out"]
    labels = jax.nn.sigmoid(clicks)
    return optax.sigmoid_binary_cross_entropy(logits[:, 0], labels).mean()

  ends = {"tables": (num_tables, num_rows, size), "out": (2 * width, 1)}
  return make_train_step(
    layers_and_ends(4, shapes, ends),
    loss,
    optax.adagrad(1e-2),
    [floats(4096, num_numbers), integers(4096, num_tables), floats(4096)],
    num_classes=num_rows,
  )


def point_clouds(policy: str | None = None) -> Step:
  """Builds 4 layers on the 16 nearest neighbours of 256 points; Adam.

  Wang et al., Dynamic Graph CNN for Learning on Point Clouds, 2019: neighbours
  are looked for anew in each layer, and the largest of what they say is taken.
  """
  width, num_near = 64, 16
  shapes = {"edge": (2 * width, width), "node": (width, width)}

  def run_layer(layer: Params, points: jax.Array) -> jax.Array:
    squares = jnp.square(points).sum(-1)
    products = jnp.einsum("bic,bjc->bij", points, points)
    distances = squares[:, :, None] + squares[:, None] - 2 * products
    _, nearest = jax.lax.top_k(-jax.lax.stop_gradient(distances), num_near)
    near = jax.vmap(lambda cloud, index: cloud[index])(points, nearest)
    own = jnp.broadcast_to(points[:, :, None], near.shape)
    edges = jnp.concatenate([own, near - own], -1) @ layer["edge"]
    edges = jax.nn.leaky_relu(standardize(edges))
    return jax.nn.leaky_relu(edges.max(2) @ layer["node"])

  def loss(params: Params, clouds: jax.Array, labels: jax.Array) -> jax.Array:
    layers, ends = params
    points = clouds @ ends["lift"]
    levels = []
    for layer in layers:
      points = checkpointed(run_layer, policy)(layer, points)
      levels.append(points)
    summary = jax.nn.leaky_relu(jnp.concatenate(levels, -1) @ ends["join"])
    pooled = jnp.concatenate([summary.max(1), summary.mean(1)], -1)
    return cross_entropy(pooled @ ends["out"], labels)

  ends = {"lift": (3, width), "join": (4 * width, 256), "out": (512, 10)}
  return make_train_step(
    layers_and_ends(4, shapes, ends),
    loss,
    optax.adam(1e-3),
    [floats(8, 256, 3), integers(8)],
    num_classes=10,
  )


def quantized_codes(policy: str | None = None) -> Step:
  """Builds an image coder with 512 codes, 8 residual blocks; Adam.

  van den Oord et al., Neural Discrete Representation Learning, 2017: the
  gradient passes by the choice of the nearest code.
  """
  width, num_codes, num_blocks = 64, 512, 8
  shapes = {"first": (3, 3, width, width), "second": (1, 1, width, width)}

  def run_block(block: Params, x: jax.Array) -> jax.Array:
    hidden = convolve(jax.nn.relu(x), block["first"])
    return x + convolve(jax.nn.relu(hidden), block["second"])

  def enlarge(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return convolve(jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), kernel)

  def loss(params: Params, images: jax.Array) -> jax.Array:
    blocks, ends = params
    run = checkpointed(run_block, policy)
    x = jax.nn.relu(convolve(images, ends["in"], 2))
    x = convolve(x, ends["down"], 2)
    for block in blocks[: num_blocks // 2]:
      x = run(block, x)
    codes = ends["codes"]
    distances = jnp.square(codes).sum(-1) - 2 * x @ codes.T
    chosen = codes[distances.argmin(-1)]
    commitment = jnp.square(x - jax.lax.stop_gradient(chosen)).mean()
    dictionary = jnp.square(chosen - jax.lax.stop_gradient(x)).mean()
    x += jax.lax.stop_gradient(chosen - x)
    for block in blocks[num_blocks // 2 :]:
      x = run(block, x)
    x = enlarge(jax.nn.relu(enlarge(x, ends["up"])), ends["out"])
    return jnp.square(x - images).mean() + dictionary + 0.25 * commitment

  ends = {
    "in": (4, 4, 3, width),
    "down": (4, 4, width, width),
    "codes": (num_codes, width),
    "up": (3, 3, width, width),
    "out": (3, 3, width, 3),
  }
  return make_train_step(
    layers_and_ends(num_blocks, shapes, ends),
    loss,
    optax.adam(3e-4),
    [floats(16, 64, 64, 3)],
  )


def attend_to(layer: Params, x: jax.Array, seen: jax.Array) -> jax.Array:
  """Returns queries (batch, number, width) after a layer that reads `seen`."""
  heads = [
    (y @ layer[name]).reshape(*y.shape[:2], 4, -1)
    for name, y in (("query", standardize(x)), ("key", seen), ("value", seen))
  ]
  mixed = jax.nn.dot_product_attention(*heads)
  x += mixed.reshape(x.shape) @ layer["mixed"]
  return x + jax.nn.relu(standardize(x) @ layer["inner"]) @ layer["outer"]


def detector(policy: str | None = None) -> Step:
  """Builds 6 residual blocks and 4 layers of 50 queries; SGD with momentum.

  Carion et al., End-to-End Object Detection with Transformers, 2020, with
  queries that are matched in their order.
  """
  width, num_queries = 96, 50
  convolution = {"first": (3, 3, width, width), "last": (3, 3, width, width)}
  names = ("query", "key", "value", "mixed", "inner", "outer")
  attention = {name: (width, width) for name in names}

  def run_block(block: Params, x: jax.Array) -> jax.Array:
    y = jax.nn.relu(standardize(convolve(x, block["first"])))
    return jax.nn.relu(x + standardize(convolve(y, block["last"])))

  def init(key: jax.Array) -> Params:
    blocks_key, key = jax.random.split(key)
    layers, ends = layers_and_ends(4, attention, end_shapes)(key)
    return normal_layers(blocks_key, 6, convolution), layers, ends

  def loss(
    params: Params, images: jax.Array, boxes: jax.Array, labels: jax.Array
  ) -> jax.Array:
    blocks, layers, ends = params
    x = convolve(images, ends["in"], 4)
    for block in blocks:
      x = checkpointed(run_block, policy)(block, x)
    seen = standardize(convolve(x, ends["down"], 2))
    seen = seen.reshape(len(seen), -1, width)
    queries = jnp.broadcast_to(ends["queries"], (len(seen), num_queries, width))
    total = jnp.zeros(())
    for layer in layers:
      queries = checkpointed(attend_to, policy)(layer, queries, seen)
      total += jnp.abs(queries @ ends["boxes"] - boxes).mean()
      total += cross_entropy(queries @ ends["classes"], labels)
    return total

  end_shapes = {
    "in": (4, 4, 3, width),
    "down": (2, 2, width, width),
    "queries": (num_queries, width),
    "boxes": (width, 4),
    "classes": (width, 20),
  }
  return make_train_step(
    init,
    loss,
    optax.sgd(1e-3, momentum=0.9),
    [
      floats(8, 128, 128, 3),
      floats(8, num_queries, 4),
      integers(8, num_queries),
    ],
    num_classes=20,
  )
