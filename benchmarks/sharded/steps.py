"""Train steps over several devices: what they are sharded by, and their shapes.

Each is built for a mesh, of devices that are here or described, and has only
shapes for arguments, so that it can be compiled without them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.policies import policy_named

_ADAM = (0.9, 0.95, 1e-8, 0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedStep:
  """A step over several devices.

  Attributes:
    name: What rows call it.
    fun: Takes the state, which is donated, and a batch.
    args: Shapes of both, with shardings.
  """

  name: str
  fun: Callable[..., Any]
  args: tuple[Any, ...]


def mesh_of(devices: Sequence[Any], shape: Sequence[int], names: str) -> Mesh:
  """Returns a mesh; each axis has a letter for a name."""
  return Mesh(np.array(devices).reshape(shape), tuple(names))


def shape_on(mesh: Mesh, dims: Sequence[int], dtype: Any, *spec: Any) -> Any:
  """Returns an array's shape, spread over a mesh."""
  sharding = NamedSharding(mesh, P(*spec))
  return jax.ShapeDtypeStruct(tuple(dims), dtype, sharding=sharding)


def checkpointed(
  block: Callable[..., Any], policy: str | None
) -> Callable[..., Any]:
  """Returns a block that keeps what a policy says; None for all of it."""
  if policy is None:
    return block
  return jax.checkpoint(block, policy=policy_named(policy))


def policy_words(policy: str | None) -> str:
  """Says what is not usual in the name of a step."""
  if policy == "nothing_saveable":
    return ""
  return f", {policy}" if policy else ", no checkpoints"


def residual_mlp(
  devices: Sequence[Any],
  *,
  fsdp: bool,
  num_layers: int = 16,
  width: int = 4096,
  examples: int = 32,
  length: int = 4096,
  policy: str | None = "nothing_saveable",
) -> ShardedStep:
  """Residual blocks of two square products in bfloat16, trained with SGD.

  Args:
    devices: What it runs on.
    fsdp: Whether parameters are sharded; else they are on every device.
    num_layers: How many blocks.
    width: Of the products.
    examples: In a batch, over all devices.
    length: Rows in an example.
    policy: What each block keeps, of `jax.checkpoint_policies`; None for no
      checkpoints.
  """
  mesh = mesh_of(devices, (len(devices),), "d")
  spec = ("d", None) if fsdp else (None, None)
  weight = shape_on(mesh, (width, width), jnp.bfloat16, *spec)
  params = [{"a": weight, "b": weight} for _ in range(num_layers)]
  shardings = jax.tree.map(lambda s: s.sharding, params)
  rows = NamedSharding(mesh, P("d", None, None))

  def block(x: Any, p: Any) -> Any:
    y = jax.nn.relu(x @ p["a"]) @ p["b"]
    return jax.lax.with_sharding_constraint(x + y, rows)

  def loss(params: Any, x: Any) -> Any:
    run = checkpointed(block, policy)
    for p in params:
      x = run(x, p)
    return (x.astype(jnp.float32) ** 2).mean()

  def step(params: Any, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, x)
    grads = jax.lax.with_sharding_constraint(grads, shardings)
    return jax.tree.map(lambda a, b: a - 1e-3 * b, params, grads), value

  batch = shape_on(
    mesh, (examples, length, width), jnp.bfloat16, "d", None, None
  )
  kind = "FSDP" if fsdp else "data parallel"
  return ShardedStep(
    name=f"residual MLP, {num_layers} blocks, {kind}{policy_words(policy)}",
    fun=step,
    args=(params, batch),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderSize:
  """The size of a decoder.

  Attributes:
    width: Of the residual stream.
    num_heads: Of queries.
    num_kv_heads: Of keys and values.
    hidden: Of the gated product in a block.
    vocabulary: How many tokens there are.
    examples: In a batch, over all devices.
    length: Tokens in an example.
  """

  width: int = 2048
  num_heads: int = 16
  num_kv_heads: int = 16
  hidden: int = 5632
  vocabulary: int = 32_000
  examples: int = 16
  length: int = 2048


def decoder(
  devices: Sequence[Any],
  *,
  tensor: int,
  num_layers: int,
  size: DecoderSize,
  policy: str | None = "nothing_saveable",
) -> ShardedStep:
  """A decoder with rotated positions and gated products, trained with AdamW.

  Parameters and moments are float32, products bfloat16. Parameters are sharded
  over all devices.

  Args:
    devices: What it runs on.
    tensor: Over how many devices heads and hidden columns are divided; the
      rest divides the batch.
    num_layers: How many blocks.
    size: Of each.
    policy: What each block keeps, of `jax.checkpoint_policies`; None for no
      checkpoints.
  """
  mesh = mesh_of(devices, (len(devices) // tensor, tensor), "dt")
  params = _decoder_params(mesh, num_layers, size)
  state = {"params": params, "mu": params, "nu": params}
  shardings = jax.tree.map(lambda s: s.sharding, params)
  loss = functools.partial(_decoder_loss, mesh, size, policy)

  def step(state: Any, tokens: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(state["params"], tokens)
    grads = jax.lax.with_sharding_constraint(grads, shardings)
    return _adamw(state, grads), value

  tokens = shape_on(
    mesh, (size.examples, size.length + 1), jnp.int32, "d", None
  )
  kind = "FSDP"
  if tensor > 1:
    kind = f"tensor {tensor} x data {len(devices) // tensor}"
  return ShardedStep(
    name=f"decoder, {num_layers} layers of {size.width}, {kind}"
    f"{policy_words(policy)}",
    fun=step,
    args=(state, tokens),
  )


def _adamw(state: Any, grads: Any) -> Any:
  first, second, tiny, decay = _ADAM

  def update(p: Any, m: Any, v: Any, g: Any) -> tuple[Any, Any, Any]:
    m = first * m + (1 - first) * g
    v = second * v + (1 - second) * g * g
    return p - 1e-4 * (m / (jnp.sqrt(v) + tiny) + decay * p), m, v

  names = ("params", "mu", "nu")
  found = jax.tree.map(update, *(state[n] for n in names), grads)
  is_triple = lambda leaf: isinstance(leaf, tuple)  # noqa: E731
  return {
    name: jax.tree.map(lambda t, n=n: t[n], found, is_leaf=is_triple)
    for n, name in enumerate(names)
  }


def _decoder_params(mesh: Mesh, num_layers: int, size: DecoderSize) -> Any:
  f32 = jnp.float32
  width = size.width
  head = width // size.num_heads
  columns = (size.num_heads + 2 * size.num_kv_heads) * head
  tall = functools.partial(shape_on, mesh, dtype=f32)

  def block() -> dict[str, Any]:
    return {
      "qkv": shape_on(mesh, (width, columns), f32, "d", "t"),
      "out": shape_on(mesh, (width, width), f32, "t", "d"),
      "gate": shape_on(mesh, (width, size.hidden), f32, "d", "t"),
      "up": shape_on(mesh, (width, size.hidden), f32, "d", "t"),
      "down": shape_on(mesh, (size.hidden, width), f32, "t", "d"),
      "norms": tall(dims=(2, width)),
    }

  return {
    "embedding": shape_on(
      mesh, (size.vocabulary, width), f32, ("d", "t"), None
    ),
    "blocks": [block() for _ in range(num_layers)],
    "norm": tall(dims=(width,)),
  }


def _decoder_loss(
  mesh: Mesh, size: DecoderSize, policy: str | None, params: Any, tokens: Any
) -> Any:
  rows = NamedSharding(mesh, P("d", None, None))
  block = functools.partial(_decoder_block, mesh, size)
  block = checkpointed(block, policy)
  table = params["embedding"].astype(jnp.bfloat16)
  table = jax.lax.with_sharding_constraint(
    table, NamedSharding(mesh, P("t", None))
  )
  x = jax.lax.with_sharding_constraint(table[tokens[:, :-1]], rows)
  for p in params["blocks"]:
    x = block(x, p)
  x = _normalise(x, params["norm"])
  logits = (x @ table.T).astype(jnp.float32)
  picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
  return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def _normalise(x: Any, scale: Any) -> Any:
  x32 = x.astype(jnp.float32)
  x32 = x32 * jax.lax.rsqrt((x32**2).mean(-1, keepdims=True) + 1e-6)
  return (x32 * scale).astype(x.dtype)


def _rotate(x: Any) -> Any:
  half = x.shape[-1] // 2
  rates = 10_000.0 ** (-jnp.arange(half) / half)
  angles = jnp.arange(x.shape[1])[:, None] * rates
  cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
  a, b = x[..., :half], x[..., half:]
  return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(
    x.dtype
  )


def _decoder_block(mesh: Mesh, size: DecoderSize, x: Any, p: Any) -> Any:
  rows = NamedSharding(mesh, P("d", None, None))
  whole = {
    name: jax.lax.with_sharding_constraint(
      p[name].astype(jnp.bfloat16),
      NamedSharding(mesh, P("t", None) if tall else P(None, "t")),
    )
    for name, tall in (
      ("qkv", False),
      ("out", True),
      ("gate", False),
      ("up", False),
      ("down", True),
    )
  }
  head = size.width // size.num_heads
  h = _normalise(x, p["norms"][0])
  groups = (size.num_heads, size.num_kv_heads, size.num_kv_heads)
  cuts = (groups[0] * head, (groups[0] + groups[1]) * head)
  parts = jnp.split(h @ whole["qkv"], cuts, axis=-1)
  q, k, v = (
    part.reshape(*part.shape[:2], count, head)
    for part, count in zip(parts, groups, strict=True)
  )
  y = jax.nn.dot_product_attention(_rotate(q), _rotate(k), v, is_causal=True)
  y = y.reshape(*x.shape) @ whole["out"]
  x = jax.lax.with_sharding_constraint(x + y, rows)
  h = _normalise(x, p["norms"][1])
  y = (jax.nn.silu(h @ whole["gate"]) * (h @ whole["up"])) @ whole["down"]
  return jax.lax.with_sharding_constraint(x + y, rows)


def trained(name: str, loss: Any, params: Any, batch: Any) -> ShardedStep:
  """Returns a step of SGD."""

  def step(params: Any, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda a, b: a - 1e-3 * b, params, grads), value

  return ShardedStep(name=name, fun=step, args=(params, batch))
