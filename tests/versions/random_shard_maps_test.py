"""Random steps within and around `shard_map`, rewritten in every way."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scan_cases
from absl.testing import absltest, parameterized
from jax import lax
from jax.extend import core
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmem.versions import blocks, scan

_WIDTH = 16
_ROWS_PER_DEVICE = 8


def _exchange(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  parts = x.reshape(lax.axis_size(axes), -1, _WIDTH)
  return lax.all_to_all(parts, axes, 0, 0).reshape(x.shape)


def _permute(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  number = lax.axis_size(axes)
  turns = [(i, (i + 1) % number) for i in range(number)]
  return x + lax.ppermute(x, axes, turns)


def _scatter(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  number = lax.axis_size(axes)
  return lax.psum_scatter(jnp.tile(x, (number, 1)), axes, tiled=True) / number


def _branch(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  is_positive = lax.psum(x.sum(), axes) > 0
  return lax.cond(is_positive, jnp.sin, lambda x: x * x / 2, x)


def _loop_of_sums(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
    return x / 2 + lax.pmean(jnp.sin(x), axes), None

  return lax.scan(body, x, length=3)[0]


def _drop_out(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  del axes
  return x * jax.random.bernoulli(jax.random.key(7), 0.8, x.shape)


# Of rows and of the axes that they are divided over.
_OPERATIONS: dict[str, Callable[[jax.Array, tuple[str, ...]], jax.Array]] = {
  "center": lambda x, axes: x - lax.pmean(x.mean(0), axes),
  "scale": lambda x, axes: (
    x / (1 + lax.pmax(lax.stop_gradient(jnp.abs(x).max()), axes))
  ),
  "number": lambda x, axes: x * (1 + lax.axis_index(axes)) / 8,
  "exchange": _exchange,
  "permute": _permute,
  "scatter": _scatter,
  "branch": _branch,
  "loop": _loop_of_sums,
  "drop_out": _drop_out,
  "softmax": lambda x, axes: jax.nn.softmax(x, -1) * x,
  "gelu": lambda x, axes: jax.nn.gelu(x),
}
_PRODUCTS = {
  "tanh": lambda x, w: jnp.tanh(x @ w),
  "remade": jax.checkpoint(lambda x, w: jnp.tanh(jnp.sin(x) @ w)),
}
_ORDERS = ("loop", "one by one", "both", "loop in a loop")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomStep:
  """A train step of random layers.

  Attributes:
    shape: Of the mesh.
    axes: That rows are divided over.
    operations: Of each layer.
    num_layers: How many layers there are.
    order: How they follow each other.
    where: What is in `shard_map`: each "layer", the "loss" or the "gradient".
    is_gathered: Whether devices have parts of the weights, which they gather.
    is_checked: Whether `shard_map` checks what differs between devices.
    returns_rows: Whether the forward pass has other results than the loss.
    is_twice: Whether there are two such steps, one after the other.
  """

  shape: tuple[int, ...]
  axes: tuple[str, ...]
  operations: tuple[str, ...]
  num_layers: int
  order: str
  where: str
  is_gathered: bool
  is_checked: bool
  returns_rows: bool
  is_twice: bool

  @classmethod
  def of_seed(cls, seed: int) -> RandomStep:
    """Returns the same for the same seed."""
    rng = random.Random(seed)
    shape = rng.choice([(4,), (2, 2)])
    names = ("a", "b")[: len(shape)]
    kinds = [*_OPERATIONS, *_PRODUCTS, *_PRODUCTS, *_PRODUCTS]
    return cls(
      shape=shape,
      axes=rng.choice([("a",), names, names[-1:]]),
      operations=tuple(rng.choice(kinds) for _ in range(rng.randint(2, 6))),
      num_layers=rng.choice([3, 4, 5]),
      order=rng.choice(_ORDERS),
      where=rng.choice(["layer", "loss", "gradient"]),
      is_gathered=rng.random() < 0.6,
      is_checked=rng.random() < 0.6,
      returns_rows=rng.random() < 0.4,
      is_twice=rng.random() < 0.25,
    )

  @functools.cached_property
  def mesh(self) -> jax.sharding.Mesh:
    names = ("a", "b")[: len(self.shape)]
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.make_mesh(self.shape, names, axis_types=kinds)

  @property
  def spec(self) -> P:
    """How a layer's weights are divided."""
    return P(self.axes) if self.is_gathered else P()

  @property
  def args(self) -> tuple[jax.Array, jax.Array]:
    """Weights and rows."""
    keys = jax.random.split(jax.random.key(0))
    number = int(np.prod([self.mesh.shape[axis] for axis in self.axes]))
    ws = jax.random.normal(keys[0], (self.num_layers, _WIDTH, _WIDTH)) / 4
    x = jax.random.normal(keys[1], (_ROWS_PER_DEVICE * number, _WIDTH))
    specs = P(None, *self.spec), P(self.axes)
    w_sharding, x_sharding = (NamedSharding(self.mesh, s) for s in specs)
    return jax.device_put(ws, w_sharding), jax.device_put(x, x_sharding)

  def layer(self, x: jax.Array, w: jax.Array) -> jax.Array:
    if self.is_gathered:
      w = lax.all_gather(w, self.axes, tiled=True)
    y = x
    for name in self.operations:
      if name in _PRODUCTS:
        y = _PRODUCTS[name](y, w)
      else:
        y = _OPERATIONS[name](y, self.axes)
    return x + y

  def layers(self, layer: Any, x: jax.Array, ws: jax.Array) -> jax.Array:
    def body(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
      return layer(x, w), None

    def all_layers(x: jax.Array, _: None) -> tuple[jax.Array, None]:
      return lax.scan(body, x, ws)[0], None

    if self.order == "loop in a loop":
      return lax.scan(all_layers, x, length=2)[0]
    if self.order != "loop":
      for w in ws if self.order == "one by one" else ws[:2]:
        x = layer(x, w)
    return x if self.order == "one by one" else all_layers(x, None)[0]

  def mapped(self, fun: Any, in_specs: Any, out_specs: Any) -> Any:
    return jax.shard_map(
      fun,
      mesh=self.mesh,
      in_specs=in_specs,
      out_specs=out_specs,
      check_vma=self.is_checked,
    )

  def gradient(self, ws: jax.Array, x: jax.Array) -> Any:
    """Returns the loss and the rows, and the gradients of the weights."""
    w_spec, x_spec = P(None, *self.spec), P(self.axes)

    def loss(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
      layer = self.layer
      if self.where == "layer":
        layer = self.mapped(self.layer, (x_spec, self.spec), x_spec)
      y = self.layers(layer, x, ws)
      value = jnp.mean(y**2)
      return value if self.where == "layer" else lax.pmean(value, self.axes), y

    specs = (w_spec, x_spec), (P(), x_spec)
    if self.where == "loss":
      loss = self.mapped(loss, *specs)
    gradient = jax.value_and_grad(loss, has_aux=True)

    def of_device(ws: jax.Array, x: jax.Array) -> Any:
      found, grads = gradient(ws, x)
      # Where it is checked, what the same weights give is summed already.
      is_local = not (self.is_gathered or self.is_checked)
      return found, lax.psum(grads, self.axes) if is_local else grads

    if self.where == "gradient":
      return self.mapped(of_device, specs[0], (specs[1], w_spec))(ws, x)
    return gradient(ws, x)

  def __call__(self, ws: jax.Array, x: jax.Array) -> list[jax.Array]:
    returned = []
    for _ in range(1 + self.is_twice):
      (value, rows), grads = self.gradient(ws, x)
      ws = ws - 0.1 * grads
      returned += [value, rows] if self.returns_rows else [value]
    return [ws, *returned]


class RandomStepsTest(parameterized.TestCase):
  def check(self, seed: int):
    step = RandomStep.of_seed(seed)
    jaxpr = jax.make_jaxpr(step)(*step.args)
    rewritten = versions(jaxpr, step.mesh.size)
    # Of other seeds no loop stacks anything, and no block is found.
    self.assertNotEmpty(rewritten)
    expected = step_outputs(jaxpr, step.args)
    for version in rewritten:
      found = step_outputs(version, step.args)
      for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(
          a, b, rtol=1e-5, atol=1e-5, err_msg=f"{step}"
        )

  def test_one(self):
    self.check(10)

  @parameterized.parameters(2, 3, 5, 6, 12, 14, 16, 18, 37)
  @pytest.mark.slow
  def test_more(self, seed: int):
    self.check(seed)


def step_outputs(
  jaxpr: core.Jaxpr, args: tuple[jax.Array, ...]
) -> list[jax.Array]:
  return jax.jit(core.jaxpr_as_fun(jaxpr))(*args)


def versions(jaxpr: core.Jaxpr, num_devices: int) -> list[core.Jaxpr]:
  """Returns the step with smaller stacks, and with blocks recomputed."""
  found = [
    scan.rewrite_step(jaxpr, "all", scan_cases.RATES, keep_bits=keep_bits)
    for keep_bits in (True, False)
  ]
  made = [each.closed_jaxpr for each in found if each.dropped]
  step = blocks.BlockStep(jaxpr, num_devices=num_devices)
  number = step.blocks.number
  if number:
    choices = (
      blocks.BlockChoice(num_groups=number),
      blocks.BlockChoice(num_groups=number, keep_bytes=1500),
      blocks.BlockChoice(num_groups=2, reads_again=True),
    )
    recomputed = [step.recompute(c, scan_cases.RATES) for c in choices]
    made += [each.closed_jaxpr for each in recomputed]
  return made


if __name__ == "__main__":
  absltest.main()
