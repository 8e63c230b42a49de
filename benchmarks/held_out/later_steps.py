"""Steps that were added when those before them had been looked at.

Each is written down after the ones above it were planned, and before it was.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.held_out.step import (
  Step,
  checkpointed,
  convolve,
  cross_entropy,
  floats,
  integers,
  layers_and_ends,
  make_train_step,
  normal_layers,
  standardize,
)

Params = Any


def perceiver(policy: str | None = None) -> Step:
  """Builds 4 layers of 64 latents that read 512 inputs, 192 wide; AdamW.

  Jaegle et al., Perceiver: General Perception with Iterative Attention, 2021.
  """
  width, num_heads = 192, 4
  shapes = {
    **{f"{name}_read": (width, width) for name in ("query", "key", "value")},
    **{f"{name}_mix": (width, width) for name in ("query", "key", "value")},
    "inner": (width, 4 * width),
    "outer": (4 * width, width),
  }

  def attend(
    layer: Params, kind: str, latents: jax.Array, read: jax.Array
  ) -> jax.Array:
    def heads(name: str, x: jax.Array) -> jax.Array:
      return (x @ layer[f"{name}_{kind}"]).reshape(*x.shape[:2], num_heads, -1)

    mixed = jax.nn.dot_product_attention(
      heads("query", latents), heads("key", read), heads("value", read)
    )
    return mixed.reshape(latents.shape)

  def run_layer(
    layer: Params, latents: jax.Array, inputs: jax.Array
  ) -> jax.Array:
    latents += attend(layer, "read", standardize(latents), inputs)
    normal = standardize(latents)
    latents += attend(layer, "mix", normal, normal)
    inner = jax.nn.gelu(standardize(latents) @ layer["inner"])
    return latents + inner @ layer["outer"]

  def loss(params: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    layers, ends = params
    run = checkpointed(run_layer, policy)
    inputs = standardize(x @ ends["embed"])
    latents = jnp.broadcast_to(ends["latents"], (len(x), 64, width))
    for layer in layers:
      latents = run(layer, latents, inputs)
    return cross_entropy(latents.mean(1) @ ends["head"], labels)

  return make_train_step(
    layers_and_ends(
      4,
      shapes,
      {"latents": (64, width), "embed": (48, width), "head": (width, 10)},
    ),
    loss,
    optax.adamw(1e-3),
    [floats(16, 512, 48), integers(16)],
    num_classes=10,
  )


def graph_network(policy: str | None = None) -> Step:
  """Builds 5 rounds of messages along 8192 edges, 128 wide; Adam."""
  num_nodes, num_edges, width = 2048, 8192, 128
  shapes = {
    "message": (3 * width, width),
    "edge": (width, width),
    "node": (2 * width, width),
  }

  def run_round(
    layer: Params, graph: tuple[jax.Array, jax.Array], ends: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    nodes, edges = graph
    senders, receivers = ends
    both = jnp.concatenate([nodes[senders], nodes[receivers], edges], -1)
    edges = standardize(
      edges + jax.nn.swish(both @ layer["message"]) @ layer["edge"]
    )
    received = jax.ops.segment_sum(edges, receivers, num_nodes)
    change = jnp.concatenate([nodes, received], -1) @ layer["node"]
    return standardize(nodes + jax.nn.swish(change)), edges

  def loss(
    params: Params, x: jax.Array, lengths: jax.Array, ends: jax.Array
  ) -> jax.Array:
    layers, outer = params
    run = checkpointed(run_round, policy)
    graph = x @ outer["nodes"], lengths @ outer["edges"]
    for layer in layers:
      graph = run(layer, graph, ends)
    return jnp.square(graph[0] @ outer["head"] - x[:, :1]).mean()

  return make_train_step(
    layers_and_ends(
      5, shapes, {"nodes": (16, width), "edges": (4, width), "head": (width, 1)}
    ),
    loss,
    optax.adam(1e-3),
    [floats(num_nodes, 16), floats(num_edges, 4), integers(2, num_edges)],
    num_classes=num_nodes,
  )


def burgers(policy: str | None = None) -> Step:
  """Builds a network that solves Burgers' equation, 6 layers, 192 wide; Adam.

  Raissi et al., Physics-informed neural networks, 2019: second derivatives by
  the inputs within a loss that is differentiated by the weights.
  """
  width = 192

  def run_layer(layer: Params, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ layer["inner"])

  def loss(params: Params, points: jax.Array, known: jax.Array) -> jax.Array:
    layers, ends = params
    run = checkpointed(run_layer, policy)

    def solution(points: jax.Array) -> jax.Array:
      x = jnp.tanh(points @ ends["first"])
      for layer in layers:
        x = run(layer, x)
      return (x @ ends["last"])[:, 0]

    along_t, along_x = (jnp.zeros_like(points).at[:, i].set(1) for i in (0, 1))

    def slope(points: jax.Array) -> jax.Array:
      return jax.jvp(solution, (points,), (along_x,))[1]

    u, u_t = jax.jvp(solution, (points,), (along_t,))
    u_x, u_xx = jax.jvp(slope, (points,), (along_x,))
    residual = u_t + u * u_x - 0.01 / jnp.pi * u_xx
    off = solution(known[:, :2]) - known[:, 2]
    return jnp.square(residual).mean() + jnp.square(off).mean()

  return make_train_step(
    layers_and_ends(
      6, {"inner": (width, width)}, {"first": (2, width), "last": (width, 1)}
    ),
    loss,
    optax.adam(1e-3),
    [floats(2048, 2), floats(256, 3)],
  )


def convnext(policy: str | None = None) -> Step:
  """Builds 3 stages of 3 blocks, 48 to 192 wide, on 64 x 64 images; AdamW.

  Liu et al., A ConvNet for the 2020s, 2022.
  """
  widths = (48, 96, 192)

  def run_block(block: Params, x: jax.Array) -> jax.Array:
    inner = standardize(convolve(x, block["depthwise"])) @ block["inner"]
    return x + block["scale"] * (jax.nn.gelu(inner) @ block["outer"])

  def init(key: jax.Array) -> Params:
    stages = []
    for inputs, width in zip((3, *widths), widths, strict=False):
      key, down_key, blocks_key = jax.random.split(key, 3)
      shapes = {
        "depthwise": (7, 7, 1, width),
        "inner": (width, 4 * width),
        "outer": (4 * width, width),
        "scale": (1, width),
      }
      down = normal_layers(down_key, 1, {"down": (2, 2, inputs, width)})[0]
      stages.append((down, normal_layers(blocks_key, 3, shapes)))
    return stages, normal_layers(key, 1, {"head": (widths[-1], 10)})[0]

  def loss(params: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    stages, ends = params
    run = checkpointed(run_block, policy)
    for down, stage in stages:
      x = standardize(convolve(x, down["down"], stride=2))
      for block in stage:
        x = run(block, x)
    return cross_entropy(x.mean((1, 2)) @ ends["head"], labels)

  return make_train_step(
    init,
    loss,
    optax.adamw(1e-3),
    [floats(16, 64, 64, 3), integers(16)],
    num_classes=10,
  )


def _attend(
  layer: Params,
  x: jax.Array,
  read: jax.Array,
  bias: jax.Array,
  suffix: str = "",
) -> jax.Array:
  """Attention of x to what it reads, in six heads."""

  def heads(name: str, x: jax.Array) -> jax.Array:
    return (x @ layer[name + suffix]).reshape(*x.shape[:2], 6, -1)

  scores = jnp.einsum("bqhd,bkhd->bhqk", heads("query", x), heads("key", read))
  weights = jax.nn.softmax(scores + bias)
  mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, heads("value", read))
  return mixed.reshape(x.shape)


def _feed_forward(layer: Params, x: jax.Array) -> jax.Array:
  """Gated linear units."""
  normal = standardize(x)
  gate = jax.nn.gelu(normal @ layer["gate"])
  return x + (gate * (normal @ layer["inner"])) @ layer["outer"]


def _encode(layer: Params, x: jax.Array, bias: jax.Array) -> jax.Array:
  normal = standardize(x)
  return _feed_forward(layer, x + _attend(layer, normal, normal, bias))


def _decode(
  layer: Params, x: jax.Array, read: jax.Array, bias: jax.Array
) -> jax.Array:
  normal = standardize(x)
  x += _attend(layer, normal, normal, bias)
  x += _attend(layer, standardize(x), read, jnp.zeros(()), "_read")
  return _feed_forward(layer, x)


def translation(policy: str | None = None) -> Step:
  """Builds 3 layers that encode and 3 that decode, 192 wide; Adafactor.

  Raffel et al., Exploring the Limits of Transfer Learning, 2020: gated linear
  units, and biases of attention that are learned by distance.
  """
  width, num_heads, length = 192, 6, 128
  attention = {name: (width, width) for name in ("query", "key", "value")}
  reading = {f"{name}_read": shape for name, shape in attention.items()}
  gated = {
    "gate": (width, 2 * width),
    "inner": (width, 2 * width),
    "outer": (2 * width, width),
  }
  distances = jnp.arange(length)[:, None] - jnp.arange(length)

  def init(key: jax.Array) -> Params:
    keys = jax.random.split(key, 3)
    ends = {
      "embed": (2048, width),
      "encoded_bias": (2 * length, num_heads),
      "decoded_bias": (2 * length, num_heads),
    }
    return (
      normal_layers(keys[0], 3, attention | gated),
      normal_layers(keys[1], 3, attention | reading | gated),
      normal_layers(keys[2], 1, ends)[0],
    )

  def loss(params: Params, source: jax.Array, target: jax.Array) -> jax.Array:
    encoder, decoder, ends = params
    bias = ends["encoded_bias"][distances + length].transpose(2, 0, 1)
    x = ends["embed"][source]
    for layer in encoder:
      x = checkpointed(_encode, policy)(layer, x, bias)
    bias = ends["decoded_bias"][distances + length].transpose(2, 0, 1)
    bias = jnp.where(distances >= 0, bias, -1e9)
    y = ends["embed"][target[:, :-1]]
    for layer in decoder:
      y = checkpointed(_decode, policy)(layer, y, x, bias)
    return cross_entropy(y @ ends["embed"].T, target[:, 1:])

  return make_train_step(
    init,
    loss,
    optax.adafactor(1e-3),
    [integers(8, length), integers(8, length + 1)],
    num_classes=2048,
  )


def state_space(policy: str | None = None) -> Step:
  """Builds 4 layers of gated linear recurrences, 192 wide; clipped AdamW.

  De et al., Griffin: Mixing Gated Linear Recurrences, 2024. The recurrences run
  along 256 tokens in parallel, by `jax.lax.associative_scan`.
  """
  width, num_tokens = 192, 512
  shapes = {
    "input": (width, width),
    "decay": (width, width),
    "gate": (width, width),
    "outer": (width, width),
    "wide": (width, 3 * width),
    "narrow": (3 * width, width),
  }

  def run_after(first: Params, second: Params) -> Params:
    return first[0] * second[0], first[1] * second[0] + second[1]

  def run_layer(layer: Params, x: jax.Array) -> jax.Array:
    normal = standardize(x)
    decay = jnp.exp(-jax.nn.softplus(normal @ layer["decay"]))
    read = jnp.sqrt(1 - jnp.square(decay) + 1e-6) * (normal @ layer["input"])
    _, states = jax.lax.associative_scan(run_after, (decay, read), axis=1)
    x += (jax.nn.gelu(normal @ layer["gate"]) * states) @ layer["outer"]
    return x + jax.nn.swish(standardize(x) @ layer["wide"]) @ layer["narrow"]

  def loss(params: Params, tokens: jax.Array) -> jax.Array:
    layers, ends = params
    run = checkpointed(run_layer, policy)
    x = ends["embed"][tokens[:, :-1]]
    for layer in layers:
      x = run(layer, x)
    return cross_entropy(x @ ends["embed"].T, tokens[:, 1:])

  return make_train_step(
    layers_and_ends(4, shapes, {"embed": (num_tokens, width)}),
    loss,
    optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    [integers(8, 257)],
    num_classes=num_tokens,
  )
