"""A step over several devices: a residual network whose parameters are divided.

Each device has an eighth of the parameters, or whatever the mesh divides them
into: they are gathered before a block runs, and their gradients are summed and
divided again. That is fully sharded data parallelism; see Zhao et al., PyTorch
FSDP, 2023.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_LEARNING_RATE = 1e-3
_EXAMPLES_PER_DEVICE, _LENGTH, _WIDTH = 4, 4096, 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedStep:
  """A step over several devices.

  Attributes:
    name: What tables call it.
    step: Takes the parameters, which are donated, and a batch.
    args: Shapes of both, with shardings.
  """

  name: str
  step: Callable[..., Any]
  args: tuple[Any, ...]


def residual_step(devices: Sequence[Any], num_blocks: int) -> ShardedStep:
  """Returns a step of SGD on residual blocks of two products each.

  Args:
    devices: What it runs on; they need not be here.
    num_blocks: How many blocks.
  """
  mesh = Mesh(np.array(devices), ("data",))
  rows = NamedSharding(mesh, P("data", None, None))
  divided = NamedSharding(mesh, P("data", None))
  weight = jax.ShapeDtypeStruct(
    (_WIDTH, _WIDTH), jnp.bfloat16, sharding=divided
  )
  batch = jax.ShapeDtypeStruct(
    (_EXAMPLES_PER_DEVICE * len(devices), _LENGTH, _WIDTH),
    jnp.bfloat16,
    sharding=rows,
  )

  @jax.checkpoint
  def block(x: Any, params: Any) -> Any:
    y = jax.nn.relu(x @ params["expand"]) @ params["contract"]
    return jax.lax.with_sharding_constraint(x + y, rows)

  def loss(params: Any, x: Any) -> Any:
    for own in params:
      x = block(x, own)
    return (x.astype(jnp.float32) ** 2).mean()

  def sharded_step(params: Any, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, x)
    grads = jax.lax.with_sharding_constraint(grads, divided)
    params = jax.tree.map(lambda p, g: p - _LEARNING_RATE * g, params, grads)
    return params, value

  return ShardedStep(
    name=f"MLP, {num_blocks} blocks, FSDP",
    step=sharded_step,
    args=([{"expand": weight, "contract": weight}] * num_blocks, batch),
  )
