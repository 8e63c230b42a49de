"""Train steps whose layers exchange values by hand, in `jax.shard_map`.

Experts stand in a loop over layers, each layer in a `shard_map` of its own. The
layers of the other step stand one after the other in one `shard_map`, of which
autodiff makes two.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.sharded.steps import (
  ShardedStep,
  checkpointed,
  mesh_of,
  policy_words,
  shape_on,
  trained,
)


def experts(
  devices: Sequence[Any],
  *,
  num_layers: int = 16,
  width: int = 2048,
  tokens: int = 65_536,
  policy: str | None = None,
) -> ShardedStep:
  """A mixture of experts, one on each device, in a loop over layers.

  Tokens go to the device of their expert and back: two exchanges a layer.

  Args:
    devices: What it runs on: as many experts.
    num_layers: How many layers.
    width: Of the residual stream; an expert's is four times as wide.
    tokens: Over all devices.
    policy: What a layer keeps, of `jax.checkpoint_policies`; None for no
      checkpoints.
  """
  number = len(devices)
  mesh = mesh_of(devices, (number,), "d")
  up = (num_layers, number, width, 4 * width)
  down = (num_layers, number, 4 * width, width)
  params = {
    "router": shape_on(mesh, (num_layers, width, number), jnp.bfloat16),
    "up": shape_on(mesh, up, jnp.bfloat16, None, "d"),
    "down": shape_on(mesh, down, jnp.bfloat16, None, "d"),
  }
  send = jax.shard_map(
    functools.partial(_send_to_experts, number=number),
    mesh=mesh,
    in_specs=(P("d"), P(), P("d"), P("d")),
    out_specs=P("d"),
  )

  def layer(x: Any, p: Any) -> tuple[Any, None]:
    return x + send(_normalised(x), p["router"], p["up"], p["down"]), None

  def loss(params: Any, x: Any) -> Any:
    x, _ = lax.scan(checkpointed(layer, policy), x, params)
    return (x.astype(jnp.float32) ** 2).mean()

  name = f"mixture of experts, {num_layers} layers of {width}"
  batch = shape_on(mesh, (tokens, width), jnp.bfloat16, "d")
  return trained(f"{name}{policy_words(policy)}", loss, params, batch)


def _send_to_experts(
  x: Any, router: Any, up: Any, down: Any, *, number: int
) -> Any:
  """Has each expert work on the tokens that are sent to it.

  Tokens are dropped beyond twice an even share.
  """
  tokens, width = x.shape
  room = 2 * tokens // number
  weight, expert = lax.top_k(jax.nn.softmax(x @ router), 1)
  expert = expert[:, 0]
  sent = jax.nn.one_hot(expert, number, dtype=jnp.int32)
  place = jnp.take_along_axis(sent.cumsum(0), expert[:, None], 1)[:, 0] - 1
  parts = jnp.zeros((number, room, width), x.dtype)
  parts = parts.at[expert, place].set(x, mode="drop")
  parts = lax.all_to_all(parts, "d", 0, 0)
  hidden = jax.nn.gelu(jnp.einsum("nrw,wh->nrh", parts, up[0]))
  parts = jnp.einsum("nrh,hw->nrw", hidden, down[0])
  parts = lax.all_to_all(parts, "d", 0, 0)
  back = parts.at[expert, place].get(mode="fill", fill_value=0)
  return back * weight


def gathered(
  devices: Sequence[Any],
  *,
  num_layers: int = 16,
  width: int = 8192,
  rows: int = 16_384,
  policy: str | None = None,
) -> ShardedStep:
  """Layers whose weights are divided, and gathered by hand where they are read.

  Args:
    devices: What it runs on.
    num_layers: How many layers, one after the other.
    width: Of the residual stream; a layer's is four times as wide.
    rows: Of the batch, over all devices.
    policy: What a layer keeps, of `jax.checkpoint_policies`; None for no
      checkpoints.
  """
  mesh = mesh_of(devices, (len(devices),), "d")
  shapes = {"up": (width, 4 * width), "down": (4 * width, width)}
  params = [
    {k: shape_on(mesh, dims, jnp.bfloat16, "d") for k, dims in shapes.items()}
    for _ in range(num_layers)
  ]

  def layer(x: Any, p: Any) -> Any:
    up, down = (lax.all_gather(p[k], "d", tiled=True) for k in shapes)
    return x + jax.nn.gelu(_normalised(x) @ up) @ down

  def of_device(params: Any, x: Any) -> Any:
    for p in params:
      x = checkpointed(layer, policy)(x, p)
    return lax.pmean((x.astype(jnp.float32) ** 2).mean(), "d")

  loss = jax.shard_map(
    of_device, mesh=mesh, in_specs=(P("d"), P("d")), out_specs=P()
  )
  name = f"weights gathered by hand, {num_layers} layers of {width}"
  batch = shape_on(mesh, (rows, width), jnp.bfloat16, "d")
  return trained(f"{name}{policy_words(policy)}", loss, params, batch)


def _normalised(x: Any) -> Any:
  scale = lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-6)
  return x * scale.astype(x.dtype)
