"""Steps of fields that no step before was of, written with `library_steps`.

The first of them was planned when all of them had been written.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Loss,
  Step,
  checkpointed,
  convolve,
  cross_entropy,
  encoder_layer,
  encoder_shapes,
  floats,
  integers,
  layers_and_ends,
  make_step,
  make_train_step,
  normal_layers,
  standardize,
)

Params = Any


def radiance_field(policy: str | None = None) -> Step:
  """Builds a field of 6 layers, 128 wide, seen along 512 rays; Adam.

  Mildenhall et al., NeRF: Representing Scenes as Neural Radiance Fields for
  View Synthesis, 2020: 32 points of each ray, the sum of what they show.
  """
  width, num_waves, num_points = 128, 8, 32
  num_inputs = 3 + 6 * num_waves

  def encode(x: jax.Array) -> jax.Array:
    waves = x[..., None] * 2.0 ** jnp.arange(num_waves)
    waves = waves.reshape(*x.shape[:-1], -1)
    return jnp.concatenate([x, jnp.sin(waves), jnp.cos(waves)], axis=-1)

  def run_layer(layer: Params, x: jax.Array, seen: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ layer["weight"] + seen @ layer["again"])

  def loss(params: Params, origins: jax.Array, ways: jax.Array) -> jax.Array:
    layers, ends = params
    depths = jnp.linspace(0.5, 3.0, num_points)
    seen = encode(origins[:, None] + depths[:, None] * ways[:, None])
    x = seen @ ends["first"]
    for layer in layers:
      x = checkpointed(run_layer, policy)(layer, x, seen)
    density = jax.nn.softplus(x @ ends["density"])[..., 0]
    colours = jax.nn.sigmoid(x @ ends["colour"])
    passed = jnp.exp(-density * (depths[1] - depths[0]))
    reached = jnp.cumprod(passed, axis=-1) / passed
    shown = ((reached * (1 - passed))[..., None] * colours).sum(1)
    return jnp.square(shown - jax.nn.sigmoid(origins)).mean()

  shapes = {"weight": (width, width), "again": (num_inputs, width)}
  ends = {
    "first": (num_inputs, width),
    "density": (width, 1),
    "colour": (width, 3),
  }
  return make_train_step(
    layers_and_ends(6, shapes, ends),
    loss,
    optax.adam(5e-4),
    [floats(512, 3), floats(512, 3)],
  )


def gated_recurrence(policy: str | None = None) -> Step:
  """Builds 4 blocks of recurrences in parallel, 192 wide; AdamW, clipped.

  De et al., Griffin: Mixing Gated Linear Recurrences with Local Attention for
  Efficient Language Models, 2024.
  """
  width, vocabulary = 192, 1024
  square = ("input_gate", "forget_gate", "branch", "side", "mixed")
  shapes = {
    **{name: (width, width) for name in square},
    "taps": (4, width),
    "inner": (width, 3 * width),
    "gate": (width, 3 * width),
    "outer": (3 * width, width),
  }

  def recur(block: Params, x: jax.Array) -> jax.Array:
    kept = -8 * jax.nn.softplus(x @ block["forget_gate"])
    entered = jax.nn.sigmoid(x @ block["input_gate"]) * x
    entered *= jnp.sqrt(1 - jnp.exp(2 * kept) + 1e-6)

    def join(earlier: Any, later: Any) -> Any:
      return (
        earlier[0] * later[0],
        later[0] * earlier[1] + later[1],
      )

    return jax.lax.associative_scan(join, (jnp.exp(kept), entered), axis=1)[1]

  def run_block(block: Params, x: jax.Array) -> jax.Array:
    normal = standardize(x)
    side = jax.nn.gelu(normal @ block["side"])
    branch = normal @ block["branch"]
    padded = jnp.pad(branch, ((0, 0), (3, 0), (0, 0)))
    branch = sum(
      padded[:, i : i + x.shape[1]] * block["taps"][i] for i in range(4)
    )
    x += (recur(block, jnp.asarray(branch)) * side) @ block["mixed"]
    normal = standardize(x)
    hidden = jax.nn.gelu(normal @ block["gate"]) * (normal @ block["inner"])
    return x + hidden @ block["outer"]

  def loss(params: Params, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    blocks, ends = params
    x = ends["words"][tokens]
    for block in blocks:
      x = checkpointed(run_block, policy)(block, x)
    return cross_entropy(standardize(x) @ ends["words"].T, labels)

  return make_train_step(
    layers_and_ends(4, shapes, {"words": (vocabulary, width)}),
    loss,
    optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    [integers(8, 128), integers(8, 128)],
    num_classes=vocabulary,
  )


def _averaged(
  init_weights: Callable[[jax.Array], Params],
  loss: Loss,
  optimizer: optax.GradientTransformation,
  batch: Sequence[jax.ShapeDtypeStruct],
) -> Step:
  """Returns a step that keeps a moving average of its weights besides."""

  def train_step(state: Any, opt_state: Any, *batch: jax.Array) -> Any:
    params, average = state
    value, gradients = jax.value_and_grad(loss)(params, *batch)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    params = optax.apply_updates(params, updates)
    average = optax.incremental_update(params, average, 0.001)
    return (params, average), opt_state, value

  def init(key: jax.Array) -> tuple[Any, Any]:
    params = init_weights(key)
    average = jax.tree.map(jnp.copy, params)
    return (params, average), optimizer.init(params)

  return make_step(train_step, init, batch, num_classes=1)


def _waves(time: jax.Array) -> jax.Array:
  """Returns 32 sines and cosines of each of some numbers."""
  waves = time[:, None] * jnp.exp(jnp.linspace(0, 7, 32))
  return jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], axis=-1)


def diffusion_transformer(policy: str | None = None) -> Step:
  """Builds 4 blocks that are told the time, 192 wide; AdamW, and an average.

  Peebles and Xie, Scalable Diffusion Models with Transformers, 2022: scales
  and shifts of each block are products of the time. The step keeps a moving
  average of its weights.
  """
  width, num_heads, patch = 192, 6, 2
  shapes = {"told": (width, 6 * width), **encoder_shapes(width)}
  ends = {
    "patches": (4 * patch**2, width),
    "time": (64, width),
    "last": (width, 2 * width),
    "out": (width, 4 * patch**2),
  }

  def run_block(block: Params, x: jax.Array, time: jax.Array) -> jax.Array:
    told = (time @ block["told"]).reshape(len(x), 1, 6, width)
    shift, scale, gate, shift2, scale2, gate2 = jnp.moveaxis(told, 2, 0)
    joint = (standardize(x) * (1 + scale) + shift) @ block["joint"]
    heads = joint.reshape(*x.shape[:2], 3, num_heads, -1)
    mixed = jax.nn.dot_product_attention(*jnp.moveaxis(heads, 2, 0))
    x += gate * (mixed.reshape(x.shape) @ block["mixed"])
    hidden = (standardize(x) * (1 + scale2) + shift2) @ block["inner"]
    return x + gate2 * (jax.nn.gelu(hidden) @ block["outer"])

  def loss(params: Params, images: jax.Array, noise: jax.Array) -> jax.Array:
    blocks, ends = params
    time = jnp.linspace(0, 1, len(images))
    level = time[:, None, None, None]
    mixed = (1 - level) * images + level * noise
    told = jax.nn.silu(_waves(time) @ ends["time"])
    num, side = len(images), images.shape[1] // patch
    parts = mixed.reshape(num, side, patch, side, patch, 4).swapaxes(2, 3)
    x = parts.reshape(num, side**2, -1) @ ends["patches"]
    for block in blocks:
      x = checkpointed(run_block, policy)(block, x, told)
    shift, scale = jnp.split((told @ ends["last"])[:, None], 2, axis=-1)
    found = (standardize(x) * (1 + scale) + shift) @ ends["out"]
    parts = found.reshape(num, side, side, patch, patch, 4).swapaxes(2, 3)
    return jnp.square(parts.reshape(images.shape) - (noise - images)).mean()

  images = floats(12, 32, 32, 4)
  init = layers_and_ends(4, shapes, ends)
  return _averaged(init, loss, optax.adamw(1e-4), [images, images])


def _attend_near(
  layer: Params, x: jax.Array, angles: jax.Array, window: int
) -> jax.Array:
  """Returns attention of 8 heads, of 2 of keys, to so many tokens before."""
  num_heads, num_keys = 8, 2

  def heads(name: str, number: int) -> jax.Array:
    return (x @ layer[name]).reshape(*x.shape[:2], number, -1)

  def turn(x: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)

  query = turn(heads("query", num_heads))
  query = query.reshape(*x.shape[:2], num_keys, num_heads // num_keys, -1)
  key, value = turn(heads("key", num_keys)), heads("value", num_keys)
  scores = jnp.einsum("bqkgd,bskd->bkgqs", query, key).astype(jnp.float32)
  scores = 50 * jnp.tanh(scores / 50 * query.shape[-1] ** -0.5)
  places = jnp.arange(x.shape[1])
  distances = places[:, None] - places
  is_near = (distances >= 0) & (distances < window)
  weights = jax.nn.softmax(jnp.where(is_near, scores, -1e9)).astype(x.dtype)
  mixed = jnp.einsum("bkgqs,bskd->bqkgd", weights, value)
  return mixed.reshape(*x.shape[:2], -1) @ layer["mixed"]


def near_and_far(policy: str | None = None) -> Step:
  """Builds a decoder of 4 layers, 256 wide, in bfloat16; Adafactor.

  Gemma Team, Gemma 2: Improving Open Language Models at a Practical Size,
  2024: every second layer looks at 64 tokens only, scores and logits are
  capped, weights are kept in float32.
  """
  width, vocabulary = 256, 4096
  shapes = {
    "query": (width, width),
    "key": (width, width // 4),
    "value": (width, width // 4),
    "mixed": (width, width),
    "gate": (width, 4 * width),
    "inner": (width, 4 * width),
    "outer": (4 * width, width),
  }

  def run_layer(
    layer: Params, x: jax.Array, angles: jax.Array, window: int
  ) -> jax.Array:
    layer = jax.tree.map(lambda leaf: leaf.astype(x.dtype), layer)
    x += standardize(_attend_near(layer, standardize(x), angles, window))
    normal = standardize(x)
    hidden = jax.nn.gelu(normal @ layer["gate"]) * (normal @ layer["inner"])
    return x + standardize(hidden @ layer["outer"])

  def loss(params: Params, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    layers, ends = params
    words = ends["words"].astype(jnp.bfloat16)
    x = words[tokens] * width**0.5
    places = jnp.arange(tokens.shape[1])[:, None]
    angles = places * 10_000.0 ** (-jnp.arange(16) / 16)
    for i, layer in enumerate(layers):
      window = 64 if i % 2 == 0 else tokens.shape[1]
      run = checkpointed(
        lambda layer, x, angles, w=window: run_layer(layer, x, angles, w),
        policy,
      )
      x = run(layer, x, angles)
    logits = (standardize(x) @ words.T).astype(jnp.float32)
    return cross_entropy(30 * jnp.tanh(logits / 30), labels)

  return make_train_step(
    layers_and_ends(4, shapes, {"words": (vocabulary, width)}),
    loss,
    optax.adafactor(1e-3),
    [integers(4, 192), integers(4, 192)],
    num_classes=vocabulary,
  )


def cellular_automaton(policy: str | None = None) -> Step:
  """Builds a rule of cells, followed 24 times on 8 grids; normalized Adam.

  Mordvintsev et al., Growing Neural Cellular Automata, 2020.
  """
  channels, hidden = 16, 96
  shapes = {"inner": (3 * channels, hidden), "outer": (hidden, channels)}
  line = jnp.asarray([1.0, 2.0, 1.0])
  slope = jnp.outer(line, jnp.asarray([-1.0, 0.0, 1.0])) / 8
  centre = jnp.zeros((3, 3)).at[1, 1].set(1)
  filters = jnp.stack([centre, slope, slope.T], axis=-1)
  kernel = jnp.tile(filters, channels)[:, :, None]

  def follow(rule: Params, cells: jax.Array) -> jax.Array:
    seen = convolve(cells, kernel)
    change = jax.nn.relu(seen @ rule["inner"]) @ rule["outer"]
    living = jax.lax.reduce_window(
      cells[..., 3:4], -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"
    )
    return (cells + 0.1 * change) * jax.nn.sigmoid(20 * (living - 0.1))

  def loss(params: Params, cells: jax.Array, wanted: jax.Array) -> jax.Array:
    (rule,) = params
    run = checkpointed(follow, policy, prevent_cse=False)
    cells, _ = jax.lax.scan(
      lambda cells, _: (run(rule, cells), None), cells, length=24
    )
    return jnp.square(cells[..., :4] - wanted).mean()

  grids = (8, 40, 40)
  return make_train_step(
    lambda key: normal_layers(key, 1, shapes),
    loss,
    optax.chain(optax.normalize_by_update_norm(), optax.adam(2e-3)),
    [floats(*grids, channels), floats(*grids, 4)],
  )


def masked_images(policy: str | None = None) -> Step:
  """Builds an encoder of a quarter of 32 images, and a decoder; Lamb.

  He et al., Masked Autoencoders Are Scalable Vision Learners, 2021: 6 layers,
  192 wide, see 36 of 144 patches, 2 layers, 96 wide, guess all of them.
  """
  run_layer = functools.partial(encoder_layer, num_heads=6)

  def run_layers(layers: list[Params], x: jax.Array) -> jax.Array:
    for layer in layers:
      x = checkpointed(run_layer, policy)(layer, x)
    return standardize(x)

  def loss(params: Params, patches: jax.Array, drawn: jax.Array) -> jax.Array:
    encoder, decoder, ends = params
    order = jnp.argsort(drawn, axis=1)[..., None]
    x = patches @ ends["patches"] + ends["places"]
    x = jnp.take_along_axis(x, order[:, :36], axis=1)
    x = run_layers(encoder, x) @ ends["narrower"]
    hidden = jnp.broadcast_to(ends["hidden"], (len(x), 108, 96))
    x = jnp.concatenate([x, hidden], axis=1)
    x = jnp.take_along_axis(x, jnp.argsort(order, axis=1), axis=1)
    found = run_layers(decoder, x + ends["decoded_places"]) @ ends["out"]
    is_hidden = jnp.argsort(order, axis=1) >= 36
    return jnp.square(found - patches).mean(where=is_hidden)

  ends = {
    "patches": (192, 192),
    "places": (144, 192),
    "narrower": (192, 96),
    "hidden": (1, 96),
    "decoded_places": (144, 96),
    "out": (96, 192),
  }

  def init(key: jax.Array) -> Params:
    keys = jax.random.split(key, 3)
    encoder = normal_layers(keys[0], 6, encoder_shapes(192))
    decoder = normal_layers(keys[1], 2, encoder_shapes(96))
    return encoder, decoder, *normal_layers(keys[2], 1, ends)

  return make_train_step(
    init, loss, optax.lamb(1e-3), [floats(32, 144, 192), floats(32, 144)]
  )
