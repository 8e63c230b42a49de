"""Tests of collectives that loops and blocks run again in the backward pass."""

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

import jaxmem
from benchmarks.compiled_programs import total_bytes
from jaxmem.jaxpr import flatten, internals
from jaxmem.versions import blocks, scan
from jaxmem.versions.mapped import in_pieces
from jaxmem.versions.rules import may_run_again
from jaxmem.versions.values import variables

_NUM_DEVICES = 4
_NUM_LAYERS = 6
_WIDTH = 32
_MANY_ROWS = 512
# So few that weights are most of what is live.
_FEW_ROWS = 16

Body = Callable[[jax.Array, jax.Array], jax.Array]


def mesh() -> jax.sharding.Mesh:
  kind = jax.sharding.AxisType.Auto
  return jax.make_mesh((_NUM_DEVICES,), ("a",), axis_types=(kind,))


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
  return x + jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w)


def exchanging(x: jax.Array, w: jax.Array) -> jax.Array:
  """Sends rows to other devices and back, as a mixture of experts does."""

  def exchanged(x: jax.Array) -> jax.Array:
    parts = x.reshape(_NUM_DEVICES, -1, x.shape[-1])
    return lax.all_to_all(parts, "a", 0, 0).reshape(x.shape)

  return x + exchanged(layer(exchanged(jnp.sin(x)), w))


def gathering(x: jax.Array, w: jax.Array) -> jax.Array:
  """Gathers its weights, of which each device has a part."""
  return layer(x, lax.all_gather(w, "a", tiled=True))


def gathering_and_summing(x: jax.Array, w: jax.Array) -> jax.Array:
  mean = lax.pmean(jnp.mean(x, 0), "a")
  return gathering(x - lax.axis_index("a") * mean, w)


def in_a_loop(body: Body, x: jax.Array, ws: jax.Array) -> jax.Array:
  return lax.scan(lambda x, w: (body(x, w), None), x, ws)[0]


def one_by_one(body: Body, x: jax.Array, ws: jax.Array) -> jax.Array:
  for w in ws:
    x = body(x, w)
  return x


def train_step(
  body: Body, layers: Any, where: str, w_spec: P, *, is_remade: bool = False
) -> Callable[..., Any]:
  """Returns a step of layers with collectives.

  Args:
    body: A layer.
    layers: How they follow each other.
    where: What is in `shard_map`: each "layer", the "loss" or its "gradient".
    w_spec: How one layer's weights are divided.
    is_remade: Whether each layer is in `jax.checkpoint`.
  """
  specs = P("a"), P(None, *w_spec)
  whole = jax.checkpoint(body) if is_remade else body
  if where == "layer":
    each = jax.shard_map(
      body, mesh=mesh(), in_specs=(P("a"), w_spec), out_specs=P("a")
    )
    whole = jax.checkpoint(each) if is_remade else each

  def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
    if where == "layer":
      return jnp.mean(layers(whole, x, ws) ** 2)

    def of_device(x: jax.Array, ws: jax.Array) -> jax.Array:
      return lax.pmean(jnp.mean(layers(whole, x, ws) ** 2), "a")

    if where == "gradient":
      return of_device(x, ws)
    mapped = jax.shard_map(
      of_device, mesh=mesh(), in_specs=specs, out_specs=P()
    )
    return mapped(x, ws)

  gradient = jax.value_and_grad(loss)
  if where == "gradient":
    gradient = jax.shard_map(
      gradient, mesh=mesh(), in_specs=specs[::-1], out_specs=(P(), specs[1])
    )

  def step(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, grads = gradient(ws, x)
    return ws - 0.1 * grads, value

  return step


def arguments(w_spec: P, rows: int) -> tuple[jax.Array, jax.Array]:
  """Returns weights, and so many rows for each device."""
  keys = jax.random.split(jax.random.key(0))
  ws = jax.random.normal(keys[0], (_NUM_LAYERS, _WIDTH, _WIDTH)) / 6
  x = jax.random.normal(keys[1], (_NUM_DEVICES * rows, _WIDTH))
  return (
    jax.device_put(ws, NamedSharding(mesh(), P(None, *w_spec))),
    jax.device_put(x, NamedSharding(mesh(), P("a"))),
  )


class RulesTest(parameterized.TestCase):
  def mapped(self, body: Callable[..., Any]) -> core.JaxprEqn:
    whole = jax.shard_map(
      body, mesh=mesh(), in_specs=P("a"), out_specs=P("a"), check_vma=False
    )
    (eqn,) = jax.make_jaxpr(whole)(jnp.zeros((64, 16))).eqns
    return eqn

  @parameterized.parameters(
    lambda x: lax.psum(x, "a"),
    lambda x: lax.pmax(x, "a"),
    lambda x: lax.all_gather(x, "a"),
    lambda x: lax.psum_scatter(x, "a", tiled=True),
    lambda x: lax.all_to_all(x, "a", 0, 1, tiled=True),
    lambda x: lax.ppermute(x, "a", [(0, 1)]),
    lambda x: x * lax.axis_index("a"),
    lambda x: lax.fori_loop(0, 3, lambda _, x: lax.all_gather(x, "a")[0], x),
  )
  def test_collectives(self, body: Callable[..., Any]):
    self.assertTrue(may_run_again(self.mapped(body)))

  def test_what_prints_beside_a_collective(self):
    def body(x: jax.Array) -> jax.Array:
      jax.debug.print("{}", x[0, 0])
      return lax.psum(x, "a")

    self.assertFalse(may_run_again(self.mapped(body)))

  def test_what_is_not_known_to_be_a_collective(self):
    eqn = self.mapped(lambda x: lax.all_gather(x, "a"))
    (inner,) = eqn.params["jaxpr"].eqns
    self.assertTrue(may_run_again(inner))
    self.assertFalse(
      may_run_again(inner.replace(primitive=core.Primitive("other")))
    )


def count(jaxpr: core.Jaxpr, name: str) -> int:
  """Returns how many equations of a primitive there are, bodies included."""
  return sum(
    (eqn.primitive.name == name)
    + sum(count(body, name) for body in core.jaxprs_in_params(eqn.params))
    for eqn in jaxpr.eqns
  )


class PiecesTest(parameterized.TestCase):
  def step(self, layers: Any) -> tuple[core.Jaxpr, tuple[jax.Array, ...]]:
    args = arguments(P("a"), _FEW_ROWS)
    step = train_step(gathering, layers, "layer", P("a"))
    return jax.make_jaxpr(step)(*args), args

  def test_one_for_each_product_and_what_lies_between(self):
    def body(x: jax.Array, w: jax.Array) -> jax.Array:
      w = lax.all_gather(w, "a", tiled=True)  # 1
      x = jnp.tanh(jnp.sin(x) @ w)  # 2: the sine, 3: the product
      return jnp.cos(x) @ w  # 4: two functions, 5: the product

    args = jnp.ones((32, 16)), jnp.ones((16, 16))
    mapped = jax.shard_map(
      body, mesh=mesh(), in_specs=(P("a"), P("a")), out_specs=P("a")
    )
    jaxpr = jax.make_jaxpr(mapped)(*args)
    pieces = in_pieces(flatten(jaxpr))
    self.assertLen(pieces.eqns, 5)
    np.testing.assert_array_equal(
      core.jaxpr_as_fun(pieces)(*args)[0], mapped(*args)
    )

  def test_loops_run_one_product_again(self):
    jaxpr, args = self.step(in_a_loop)
    droppable = scan.droppable_bytes(jaxpr)
    made = scan.rewrite_step(jaxpr, droppable // 4, scan_cases.RATES)
    self.assertGreaterEqual(made.saved_bytes, droppable // 4)
    before, after = (
      count(each, "dot_general") for each in (jaxpr, made.closed_jaxpr)
    )
    # A whole layer has three.
    self.assertBetween(after - before, 0, 1)
    for version in (jaxpr, made.closed_jaxpr):
      np.testing.assert_array_equal(
        jax.jit(core.jaxpr_as_fun(version))(*args)[0],
        jax.jit(core.jaxpr_as_fun(jaxpr))(*args)[0],
      )

  def test_blocks_keep_some_products(self):
    jaxpr, _ = self.step(one_by_one)
    step = blocks.BlockStep(jaxpr, num_devices=_NUM_DEVICES)
    number = step.blocks.number
    again = [
      step.recompute(
        blocks.BlockChoice(num_groups=number, keep_bytes=keep_bytes),
        scan_cases.RATES,
      ).closed_jaxpr
      for keep_bytes in (0, 16 * 4 * _FEW_ROWS * _WIDTH)
    ]
    written, nothing, some = (
      count(each, "dot_general") for each in (jaxpr, *again)
    )
    self.assertLess(written, some)
    self.assertLess(some, nothing)

  def test_gradients_pass_a_barrier_between_layers(self):
    jaxpr, _ = self.step(one_by_one)
    step = blocks.BlockStep(jaxpr, num_devices=_NUM_DEVICES)
    choice = blocks.BlockChoice(num_groups=step.blocks.number)
    made = step.recompute(choice, scan_cases.RATES).closed_jaxpr

    def handed_on(jaxpr: core.Jaxpr) -> int:
      """Counts what one backward `shard_map` has from another."""
      mapped = [e for e in jaxpr.eqns if e.primitive.name == "shard_map"]
      backward = [e for e in mapped if internals.is_transposed(e)]
      returned = {v for e in backward for v in e.outvars}
      return sum(v in returned for e in backward for v in variables(e.invars))

    # Otherwise XLA fuses their sums, over all layers.
    self.assertEqual(handed_on(flatten(jaxpr)), _NUM_LAYERS - 1)
    self.assertEqual(handed_on(made), 0)


class LimitTest(parameterized.TestCase):
  def check(self, body: Body, layers: Any, where: str, w_spec: P, rows: int):
    args = arguments(w_spec, rows)
    step = train_step(body, layers, where, w_spec)
    remade = train_step(body, layers, where, w_spec, is_remade=True)
    plain = jax.jit(step).lower(*args).compile()
    by_hand = total_bytes(
      jax.jit(remade).lower(*args).compile().memory_analysis()
    )
    self.assertLess(by_hand, 0.8 * total_bytes(plain.memory_analysis()))
    limit = int(1.05 * by_hand)
    planned = jaxmem.jit(step, memory_limit=limit).lower(*args).compile()
    self.assertLessEqual(total_bytes(planned.memory_analysis()), limit)
    for a, b in zip(plain(*args), planned(*args), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

  @parameterized.parameters(
    (exchanging, in_a_loop, "layer", P(), _MANY_ROWS),
    (gathering, in_a_loop, "gradient", P("a"), _MANY_ROWS),
  )
  def test_as_small_as_checkpoints_by_hand(self, *case: Any):
    self.check(*case)

  @parameterized.parameters(
    (exchanging, in_a_loop, "loss", P(), _MANY_ROWS),
    (exchanging, one_by_one, "layer", P(), _MANY_ROWS),
    (gathering, in_a_loop, "layer", P("a"), _MANY_ROWS),
    (gathering, in_a_loop, "gradient", P("a"), _FEW_ROWS),
    (gathering, one_by_one, "gradient", P("a"), _FEW_ROWS),
    (exchanging, one_by_one, "loss", P(), _MANY_ROWS),
    (gathering, one_by_one, "loss", P("a"), _FEW_ROWS),
    (gathering, one_by_one, "gradient", P("a"), _MANY_ROWS),
    (gathering_and_summing, in_a_loop, "loss", P("a"), _MANY_ROWS),
    (gathering_and_summing, one_by_one, "gradient", P("a"), _MANY_ROWS),
  )
  @pytest.mark.slow
  def test_so_are_others(self, *case: Any):
    self.check(*case)


if __name__ == "__main__":
  absltest.main()
