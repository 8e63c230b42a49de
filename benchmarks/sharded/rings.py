"""Train steps whose devices hand values on from one to the next.

In both, the body of a `jax.shard_map` is a loop; autodiff puts its backward one
in a `shard_map` of its own.
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


def ring_attention(
  devices: Sequence[Any],
  *,
  num_layers: int = 16,
  width: int = 2048,
  num_heads: int = 16,
  length: int = 32_768,
  policy: str | None = None,
) -> ShardedStep:
  """A decoder over one long sequence, of which each device has a part.

  Keys and values go round; a device attends to one part after the other.

  Args:
    devices: What it runs on.
    num_layers: How many blocks, each of attention and a product.
    width: Of the residual stream.
    num_heads: Of attention.
    length: Tokens of the sequence, over all devices.
    policy: What the body of the loop keeps, of `jax.checkpoint_policies`; None
      for no checkpoints.
  """
  mesh = mesh_of(devices, (len(devices),), "d")
  square = shape_on(mesh, (width, width), jnp.bfloat16)
  wide = shape_on(mesh, (width, 3 * width), jnp.bfloat16)
  params = [{"qkv": wide, "out": square} for _ in range(num_layers)]
  head = width // num_heads
  attend = jax.shard_map(
    functools.partial(_attend, num_devices=len(devices), policy=policy),
    mesh=mesh,
    in_specs=P("d"),
    out_specs=P("d"),
  )

  def block(x: Any, p: Any) -> Any:
    qkv = (x @ p["qkv"]).reshape(length, 3, num_heads, head)
    y = attend(qkv[:, 0], qkv[:, 1], qkv[:, 2])
    return x + y.reshape(x.shape).astype(x.dtype) @ p["out"]

  def loss(params: Any, x: Any) -> Any:
    for p in params:
      x = block(x, p)
    return (x.astype(jnp.float32) ** 2).mean()

  name = f"ring attention, {num_layers} layers of {width}"
  batch = shape_on(mesh, (length, width), jnp.bfloat16, "d")
  return trained(f"{name}{policy_words(policy)}", loss, params, batch)


def _attend(
  q: Any, k: Any, v: Any, *, num_devices: int, policy: str | None
) -> Any:
  """Attends to all parts; positions by heads by features, of one device."""
  turns = [(i, (i + 1) % num_devices) for i in range(num_devices)]
  q = q * q.shape[-1] ** -0.5

  def attend(carry: Any, _: Any) -> tuple[Any, None]:
    total, highest, weight, k, v = carry
    scores = jnp.einsum("qhd,khd->hqk", q, k).astype(jnp.float32)
    higher = jnp.maximum(highest, scores.max(-1))
    parts = jnp.exp(scores - higher[..., None])
    before = jnp.exp(highest - higher)
    gained = jnp.einsum("hqk,khd->hqd", parts.astype(v.dtype), v)
    total = total * before[..., None] + gained
    weight = weight * before + parts.sum(-1)
    k, v = (lax.ppermute(x, "d", turns) for x in (k, v))
    return (total, higher, weight, k, v), None

  zero = 0 * jnp.swapaxes(q, 0, 1).astype(jnp.float32)
  carry = zero, zero[..., 0] - 1e30, zero[..., 0], k, v
  body = checkpointed(attend, policy)
  (total, _, weight, _, _), _ = lax.scan(body, carry, length=num_devices)
  return jnp.swapaxes(total / weight[..., None], 0, 1)


def pipeline(
  devices: Sequence[Any],
  *,
  num_layers: int = 16,
  width: int = 4096,
  num_parts: int = 16,
  rows: int = 8192,
  policy: str | None = None,
) -> ShardedStep:
  """Each device has some of the layers; parts of the batch go through them.

  Args:
    devices: What it runs on: as many stages.
    num_layers: How many layers, a multiple of the number of stages.
    width: Of a layer's product.
    num_parts: How many parts the batch has.
    rows: In a part.
    policy: What a stage keeps, of `jax.checkpoint_policies`; None for no
      checkpoints.
  """
  stages = len(devices)
  mesh = mesh_of(devices, (stages,), "d")
  dims = stages, num_layers // stages, width, width
  params = shape_on(mesh, dims, jnp.bfloat16, "d")
  run = jax.shard_map(
    functools.partial(_stage, num_stages=stages, policy=policy),
    mesh=mesh,
    in_specs=(P("d"), P()),
    out_specs=P(),
  )

  def loss(params: Any, x: Any) -> Any:
    return (run(params, x).astype(jnp.float32) ** 2).mean()

  name = f"pipeline, {num_layers} layers of {width}"
  batch = shape_on(mesh, (num_parts, rows, width), jnp.bfloat16)
  return trained(f"{name}{policy_words(policy)}", loss, params, batch)


def _stage(params: Any, x: Any, *, num_stages: int, policy: str | None) -> Any:
  """Takes a part from the stage before at each tick, and hands another on."""
  stage, num_parts = lax.axis_index("d"), len(x)
  turns = [(i, (i + 1) % num_stages) for i in range(num_stages)]

  def layers(part: Any) -> Any:
    for weights in params[0]:
      part = part + jax.nn.relu(part @ weights)
    return part

  def tick(part: Any, time: Any) -> tuple[Any, Any]:
    fresh = x[jnp.minimum(time, num_parts - 1)]
    part = checkpointed(layers, policy)(jnp.where(stage == 0, fresh, part))
    return lax.ppermute(part, "d", turns), part

  first = lax.pcast(jnp.zeros_like(x[0]), "d", to="varying")
  ticks = jnp.arange(num_parts + num_stages - 1)
  _, parts = lax.scan(tick, first, ticks)
  is_last = stage == num_stages - 1
  return lax.psum(jnp.where(is_last, parts[num_stages - 1 :], 0), "d")
