"""Steps that were added when those before them had been looked at."""

from collections.abc import Mapping
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
  make_train_step,
)

Params = Any


def _layers(
  key: jax.Array, number: int, shapes: Mapping[str, tuple[int, ...]]
) -> list[Params]:
  """Returns so many layers of normal arrays that keep the size of numbers."""
  initializer = jax.nn.initializers.lecun_normal()
  return [
    {
      name: initializer(each, shape)
      for each, (name, shape) in zip(
        jax.random.split(layer_key, len(shapes)), shapes.items(), strict=True
      )
    }
    for layer_key in jax.random.split(key, number)
  ]


def _standardize(x: jax.Array) -> jax.Array:
  centred = x - x.mean(-1, keepdims=True)
  variance = jnp.square(centred).mean(-1, keepdims=True)
  return centred * jax.lax.rsqrt(variance + 1e-6)


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
    latents += attend(layer, "read", _standardize(latents), inputs)
    normal = _standardize(latents)
    latents += attend(layer, "mix", normal, normal)
    inner = jax.nn.gelu(_standardize(latents) @ layer["inner"])
    return latents + inner @ layer["outer"]

  def init(key: jax.Array) -> Params:
    layers_key, key = jax.random.split(key)
    ends = {"latents": (64, width), "embed": (48, width), "head": (width, 10)}
    return _layers(layers_key, 4, shapes), _layers(key, 1, ends)[0]

  def loss(params: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    layers, ends = params
    run = checkpointed(run_layer, policy)
    inputs = _standardize(x @ ends["embed"])
    latents = jnp.broadcast_to(ends["latents"], (len(x), 64, width))
    for layer in layers:
      latents = run(layer, latents, inputs)
    return cross_entropy(latents.mean(1) @ ends["head"], labels)

  return make_train_step(
    init,
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
    edges = _standardize(
      edges + jax.nn.swish(both @ layer["message"]) @ layer["edge"]
    )
    received = jax.ops.segment_sum(edges, receivers, num_nodes)
    change = jnp.concatenate([nodes, received], -1) @ layer["node"]
    return _standardize(nodes + jax.nn.swish(change)), edges

  def init(key: jax.Array) -> Params:
    layers_key, key = jax.random.split(key)
    ends = {"nodes": (16, width), "edges": (4, width), "head": (width, 1)}
    return _layers(layers_key, 5, shapes), _layers(key, 1, ends)[0]

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
    init,
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

  def init(key: jax.Array) -> Params:
    layers_key, key = jax.random.split(key)
    ends = {"first": (2, width), "last": (width, 1)}
    layers = _layers(layers_key, 6, {"inner": (width, width)})
    return layers, _layers(key, 1, ends)[0]

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
    init, loss, optax.adam(1e-3), [floats(2048, 2), floats(256, 3)]
  )
