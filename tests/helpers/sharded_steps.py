"""Train steps over eight devices, one for each usual way to divide them.

Each takes a state, of parameters and momenta, and a batch; it returns the next
state and the loss. Shapes are tiny: these are for running, not for measuring.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
  """The size of a step.

  Attributes:
    num_layers: How many blocks; stages have one each.
    width: Of the residual stream; a multiple of 8.
    hidden: Of the product within a block; a multiple of 8.
    rows: In a batch, or in a microbatch of an accumulation, over all devices;
      a multiple of 128.
  """

  num_layers: int
  width: int
  hidden: int
  rows: int


SMALL = Size(num_layers=3, width=16, hidden=32, rows=1024)
LARGE = Size(num_layers=6, width=32, hidden=128, rows=2048)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A step with its arguments.

  Attributes:
    function: The step; its first argument can be donated.
    state: Parameters and momenta.
    batch: What it learns from.
    opcodes: Of HLO: what it must run between devices, and loops.
  """

  function: Callable[[Any, Any], tuple[Any, Any]]
  state: Any
  batch: Any
  opcodes: frozenset[str]


def _mesh(devices: Sequence[Any], shape: Sequence[int], names: str) -> Mesh:
  return Mesh(np.array(devices).reshape(shape), tuple(names))


class _Arrays:
  """Makes arrays of fixed random numbers on a mesh."""

  def __init__(self, mesh: Mesh):
    self._mesh = mesh
    self._generator = np.random.default_rng(0)

  def __call__(self, dims: Sequence[int], spec: P) -> jax.Array:
    """Returns a normal array, scaled for a product over its last but one.

    Every process makes all of the numbers and keeps those of its devices.

    Args:
      dims: Its shape.
      spec: How it is divided.
    """
    numbers = self._generator.normal(size=tuple(dims)) * dims[-2] ** -0.5
    numbers = numbers.astype(np.float32)
    return jax.make_array_from_callback(
      numbers.shape,
      NamedSharding(self._mesh, spec),
      lambda index: numbers[index],
    )


def _state(params: Any) -> Any:
  """Returns parameters with momenta of zero, which are divided as they are."""

  def zeros(x: jax.Array) -> jax.Array:
    return jax.make_array_from_callback(
      x.shape,
      x.sharding,
      lambda index: np.zeros(x.shape, np.float32)[index],
    )

  return {"params": params, "momenta": jax.tree.map(zeros, params)}


def _updated(state: Any, grads: Any) -> Any:
  """Returns the next state: SGD with momentum."""
  momenta = jax.tree.map(lambda m, g: 0.9 * m + g, state["momenta"], grads)
  params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momenta)
  return {"params": params, "momenta": momenta}


def _step(
  loss: Callable[[Any, Any], Any], params: Any
) -> Callable[[Any, Any], tuple[Any, Any]]:
  """Returns a train step.

  Args:
    loss: Of parameters and a batch.
    params: Gradients are divided as these are.
  """
  shardings = jax.tree.map(lambda x: x.sharding, params)

  def step(state, batch):
    value, grads = jax.value_and_grad(loss)(state["params"], batch)
    grads = lax.with_sharding_constraint(grads, shardings)
    return _updated(state, grads), value

  return step


def _blocks(params: Any, x: Any, rows: Any = None, weights: Any = None) -> Any:
  """Residual blocks; the mean of squares of what comes out.

  Args:
    params: Of all blocks.
    x: What they read.
    rows: How what comes out of each block is divided, if that is said.
    weights: The same for parameters where they are used.
  """
  for p in params:
    if weights is not None:
      p = lax.with_sharding_constraint(p, {"up": weights, "down": weights})
    x = x + jnp.tanh(x @ p["up"]) @ p["down"]
    if rows is not None:
      x = lax.with_sharding_constraint(x, rows)
  return jnp.mean(x**2)


def _case_of_blocks(
  arrays: _Arrays, size: Size, params: Any, opcode: str, **divided: Any
) -> Case:
  """Returns a case of blocks whose batch is divided over the axis d."""
  loss = functools.partial(_blocks, **divided)
  return Case(
    function=_step(loss, params),
    state=_state(params),
    batch=arrays((size.rows, size.width), P("d", None)),
    opcodes=frozenset({opcode}),
  )


def _block_params(arrays: _Arrays, size: Size, up: P, down: P) -> list[Any]:
  return [
    {
      "up": arrays((size.width, size.hidden), up),
      "down": arrays((size.hidden, size.width), down),
    }
    for _ in range(size.num_layers)
  ]


def data_parallel(devices: Sequence[Any], size: Size) -> Case:
  """Every device has all parameters and its share of the batch."""
  arrays = _Arrays(_mesh(devices, (8,), "d"))
  params = _block_params(arrays, size, P(), P())
  return _case_of_blocks(arrays, size, params, "all-reduce")


def fsdp(devices: Sequence[Any], size: Size) -> Case:
  """Parameters are divided as the batch is, and gathered for each use."""
  mesh = _mesh(devices, (8,), "d")
  arrays = _Arrays(mesh)
  params = _block_params(arrays, size, P("d", None), P(None, "d"))
  rows, whole = NamedSharding(mesh, P("d", None)), NamedSharding(mesh, P())
  return _case_of_blocks(
    arrays, size, params, "all-gather", rows=rows, weights=whole
  )


def tensor_parallel(devices: Sequence[Any], size: Size) -> Case:
  """Hidden columns over four devices, the batch over two."""
  mesh = _mesh(devices, (2, 4), "dt")
  arrays = _Arrays(mesh)
  params = _block_params(arrays, size, P(None, "t"), P("t", None))
  rows = NamedSharding(mesh, P("d", None))
  return _case_of_blocks(arrays, size, params, "all-reduce", rows=rows)


def sequence_parallel(devices: Sequence[Any], size: Size) -> Case:
  """Each device has a part of every sequence, but for attention some heads."""
  mesh = _mesh(devices, (8,), "s")
  arrays = _Arrays(mesh)
  width, head = size.width, size.width // 8
  params = [
    {
      "qkv": arrays((width, 3 * width), P()),
      "out": arrays((width, width), P()),
    }
    for _ in range(size.num_layers)
  ]

  def attend(x, p):
    qkv = (x @ p["qkv"]).reshape(*x.shape[:2], 8, 3 * head)
    qkv = lax.all_to_all(qkv, "s", split_axis=2, concat_axis=1, tiled=True)
    q, k, v = jnp.split(qkv, 3, axis=-1)
    scores = jnp.einsum("bqhc,bkhc->bhqk", q, k) * head**-0.5
    y = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(scores), v)
    y = lax.all_to_all(y, "s", split_axis=1, concat_axis=2, tiled=True)
    return x + y.reshape(x.shape) @ p["out"]

  def local(params, x):
    for p in params:
      x = attend(x, p)
    return lax.pmean(jnp.mean(x**2), "s")

  loss = jax.shard_map(
    local, mesh=mesh, in_specs=(P(), P(None, "s", None)), out_specs=P()
  )
  return Case(
    function=_step(loss, params),
    state=_state(params),
    batch=arrays((4, size.rows // 16, width), P(None, "s", None)),
    opcodes=frozenset({"all-to-all", "all-reduce"}),
  )


def pipeline(devices: Sequence[Any], size: Size) -> Case:
  """Four stages of four microbatches, which are divided over two devices."""
  mesh = _mesh(devices, (4, 2), "pd")
  arrays = _Arrays(mesh)
  stages = P("p", None, None)
  params = {
    "up": arrays((4, size.width, size.hidden), stages),
    "down": arrays((4, size.hidden, size.width), stages),
  }
  num_micro = 4

  def local(params, x):
    stage = lax.axis_index("p")
    up, down = params["up"][0], params["down"][0]
    arriving = lax.pcast(jnp.zeros_like(x[0]), "p", to="varying")
    total = lax.pcast(jnp.float32(0), ("p", "d"), to="varying")
    for tick in range(num_micro + 3):
      first = x[min(tick, num_micro - 1)]
      y = jnp.where(stage == 0, first, arriving)
      y = y + jnp.tanh(y @ up) @ down
      if tick >= 3:
        total += jnp.where(stage == 3, jnp.mean(y**2), 0.0)
      arriving = lax.ppermute(y, "p", [(i, i + 1) for i in range(3)])
    return lax.pmean(lax.psum(total, "p"), "d") / num_micro

  loss = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(stages, P(None, "d", None)),
    out_specs=P(),
  )
  dims = (num_micro, size.rows // num_micro, size.width)
  return Case(
    function=_step(loss, params),
    state=_state(params),
    batch=arrays(dims, P(None, "d", None)),
    opcodes=frozenset({"collective-permute", "all-reduce"}),
  )


def mixture_of_experts(devices: Sequence[Any], size: Size) -> Case:
  """One expert a device; tokens go to the expert that their router picks."""
  mesh = _mesh(devices, (8,), "e")
  arrays = _Arrays(mesh)
  of_experts = P("e", None, None)
  specs = {"router": P(), "up": of_experts, "down": of_experts}
  params = [
    {
      "router": arrays((size.width, 8), specs["router"]),
      "up": arrays((8, size.width, size.hidden), specs["up"]),
      "down": arrays((8, size.hidden, size.width), specs["down"]),
    }
    for _ in range(size.num_layers)
  ]
  # Of each device's tokens, at most this many go to one expert.
  capacity = size.rows // 8 // 4

  def block(x, p):
    chances = jax.nn.softmax(x @ p["router"])
    picked = jax.nn.one_hot(jnp.argmax(chances, axis=-1), 8)
    place = (jnp.cumsum(picked, axis=0) * picked).astype(jnp.int32) - 1
    sent = jax.nn.one_hot(place, capacity)  # Token, expert, place.
    parts = jnp.einsum("tec,tw->ecw", sent, x)
    parts = lax.all_to_all(parts, "e", 0, 1, tiled=True)[0]
    parts = (jnp.tanh(parts @ p["up"][0]) @ p["down"][0])[None]
    parts = lax.all_to_all(parts, "e", 1, 0, tiled=True)
    weighted = sent * jnp.sum(chances * picked, axis=-1)[:, None, None]
    return x + jnp.einsum("tec,ecw->tw", weighted, parts)

  def local(params, x):
    for p in params:
      x = block(x, p)
    return lax.pmean(jnp.mean(x**2), "e")

  loss = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=([specs] * size.num_layers, P("e", None)),
    out_specs=P(),
  )
  return Case(
    function=_step(loss, params),
    state=_state(params),
    batch=arrays((size.rows, size.width), P("e", None)),
    opcodes=frozenset({"all-to-all", "all-reduce"}),
  )


def accumulation(devices: Sequence[Any], size: Size) -> Case:
  """Gradients of microbatches, summed by a scan; parameters are divided."""
  mesh = _mesh(devices, (8,), "d")
  arrays = _Arrays(mesh)
  params = _block_params(arrays, size, P("d", None), P(None, "d"))
  shardings = jax.tree.map(lambda x: x.sharding, params)
  num_micro = 4

  def step(state, batch):
    def add(total, x):
      grads, sums = total
      value, more = jax.value_and_grad(_blocks)(state["params"], x)
      more = lax.with_sharding_constraint(more, shardings)
      return (jax.tree.map(jnp.add, grads, more), sums + value), None

    zeros = jax.tree.map(jnp.zeros_like, state["params"])
    (grads, value), _ = lax.scan(add, (zeros, jnp.float32(0)), batch)
    grads = jax.tree.map(lambda g: g / num_micro, grads)
    return _updated(state, grads), value / num_micro

  dims = (num_micro, size.rows, size.width)
  return Case(
    function=step,
    state=_state(params),
    batch=arrays(dims, P(None, "d", None)),
    opcodes=frozenset({"all-gather", "while"}),
  )


STEPS: Mapping[str, Callable[[Sequence[Any], Size], Case]] = {
  each.__name__: each
  for each in (
    data_parallel,
    fsdp,
    tensor_parallel,
    sequence_parallel,
    pipeline,
    mixture_of_experts,
    accumulation,
  )
}
