"""Tests of loops whose backward loop is in another `shard_map`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scan_cases
from absl.testing import absltest, parameterized
from jax import lax
from jax.extend import core
from jax.sharding import PartitionSpec as P

import jaxmem
from benchmarks import sharded
from benchmarks.compiled_programs import total_bytes
from jaxmem.versions import scan
from jaxmem.versions.scan.levels import make_level

_WIDTH = 16


def mesh(kind: Any = jax.sharding.AxisType.Auto) -> jax.sharding.Mesh:
  return jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind, kind))


def ring_attention(
  q: jax.Array, k: jax.Array, v: jax.Array, is_remade: bool = False
) -> jax.Array:
  """Attends to the part of each device in turn, that of the first axis."""
  num_devices = lax.axis_size("a")
  scale = jnp.sqrt(jnp.float32(_WIDTH))
  turns = [(i, (i + 1) % num_devices) for i in range(num_devices)]

  def attend(carry: Any, _: Any) -> tuple[Any, None]:
    total, weight, k, v = carry
    scores = jnp.exp(jnp.tanh(q @ k.T / scale))
    total, weight = total + scores @ v, weight + scores.sum(-1)
    return (total, weight, *(lax.ppermute(x, "a", turns) for x in (k, v))), None

  body = jax.checkpoint(attend) if is_remade else attend
  carry = jnp.zeros_like(q), q[:, 0] * 0, k, v
  (total, weight, _, _), _ = lax.scan(body, carry, length=8)
  return total / weight[:, None]


def train_step(
  weights: list[jax.Array], x: jax.Array, **how: Any
) -> tuple[list[jax.Array], jax.Array]:
  """Two layers of ring attention; `how` goes to `shard_map`, but for the rest.

  Args:
    weights: Of each layer.
    x: Sequence by features.
    **how: `is_remade` is whether the loop's body is in `jax.checkpoint`.
  """
  is_remade = how.pop("is_remade", False)
  attend = jax.shard_map(
    functools.partial(ring_attention, is_remade=is_remade),
    **{"mesh": mesh(), "in_specs": P("a"), "out_specs": P("a"), **how},
  )

  def loss(weights: list[jax.Array]) -> jax.Array:
    y = x
    for w in weights:
      q, k, v = jnp.split(y @ w, 3, -1)
      y = y + attend(q, k, v)
    return jnp.mean(y**2)

  value, grads = jax.value_and_grad(loss)(weights)
  return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value


def arguments(length: int) -> tuple[list[jax.Array], jax.Array]:
  keys = jax.random.split(jax.random.key(0), 3)
  shape = _WIDTH, 3 * _WIDTH
  weights = [jax.random.normal(key, shape) / 4 for key in keys[:2]]
  x = jax.random.normal(keys[2], (length, _WIDTH))
  sharding = jax.sharding.NamedSharding(mesh(), P("a"))
  return weights, jax.device_put(x, sharding)


def outputs_of(jaxpr: core.Jaxpr, *args: Any) -> list[np.ndarray]:
  flat = jax.tree.leaves(args)
  run = jax.jit(lambda *leaves: core.jaxpr_as_fun(jaxpr)(*leaves))
  return [*map(np.asarray, run(*flat))]


class JoinedTest(parameterized.TestCase):
  def assert_rewritten(self, fun: Any, *args: Any) -> scan.Rewritten:
    """Drops all, and compares the numbers; returns what was made."""
    jaxpr = jax.make_jaxpr(fun)(*args)
    self.assertGreater(scan.droppable_bytes(jaxpr), 0)
    made = scan.rewrite_step(jaxpr, "all", scan_cases.RATES)
    self.assertNotEmpty(made.dropped)
    expected = outputs_of(jaxpr, *args)
    found = outputs_of(made.closed_jaxpr, *args)
    for a, b in zip(expected, found, strict=True):
      np.testing.assert_array_equal(a, b)
    return made

  @parameterized.named_parameters(
    ("checked", {}),
    ("unchecked", {"check_vma": False}),
    ("over_one_axis", {"axis_names": {"a"}}),
    ("over_both", {"in_specs": P(("a", "b")), "out_specs": P(("a", "b"))}),
  )
  def test_same_numbers(self, how: Any):
    step = functools.partial(train_step, **how)
    made = self.assert_rewritten(step, *arguments(64))
    left = [
      r.size_bytes
      for pair, _ in make_level(made.closed_jaxpr).walk()
      for r in pair.residuals
    ]
    written = jax.make_jaxpr(step)(*arguments(64))
    stacked = [
      r.size_bytes
      for pair, _ in make_level(written).walk()
      for r in pair.residuals
    ]
    self.assertLess(sum(left), 0.6 * sum(stacked))

  def test_rings_in_a_loop_over_layers(self):
    # What the ring of a layer stacks, the loop over layers stacks once more:
    # its backward loop lets the ring turn again.
    attend = jax.shard_map(
      ring_attention, mesh=mesh(), in_specs=P("a"), out_specs=P("a")
    )

    def step(weights: jax.Array, x: jax.Array) -> Any:
      def layer(y: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        q, k, v = jnp.split(y @ w, 3, -1)
        return y + attend(q, k, v), None

      def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean(lax.scan(layer, x, weights)[0] ** 2)

      return jax.value_and_grad(loss)(weights)

    weights, x = arguments(256)
    args = jnp.stack(weights), x
    made = self.assert_rewritten(step, *args)

    def temp_bytes(fun: Any) -> int:
      lowered = jax.jit(fun).lower(*args)
      memory: Any = lowered.compile().memory_analysis()
      return memory.temp_size_in_bytes

    written = temp_bytes(step)
    rewritten = temp_bytes(core.jaxpr_as_fun(made.closed_jaxpr))
    self.assertLess(rewritten, 0.5 * written)

  def test_a_result_that_others_read_as_well_stays(self):
    def turn(carry: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
      return jnp.sin(jnp.tanh(jnp.cos(carry))), jnp.exp(carry)

    def body(x: jax.Array) -> tuple[jax.Array, jax.Array]:
      return lax.scan(turn, x, length=6)

    run = jax.shard_map(
      body, mesh=mesh(), in_specs=P("a"), out_specs=(P("a"), P(None, "a"))
    )

    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
      def loss(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        last, every = run(x)
        return jnp.sum(last * x) + jnp.sum(every**2), every

      (_, every), grad = jax.value_and_grad(loss, has_aux=True)(x)
      return grad, every

    self.assert_rewritten(step, jnp.linspace(0.1, 1.0, 8))

  def test_a_result_that_is_a_constant_stays(self):
    def body(x: jax.Array) -> tuple[jax.Array, jax.Array]:
      last, _ = lax.scan(lambda x, _: (jnp.sin(jnp.tanh(x)), None), x, length=6)
      return last, jnp.zeros(())

    run = jax.shard_map(
      body, mesh=mesh(), in_specs=P("a"), out_specs=(P("a"), P())
    )

    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
      def loss(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        last, zero = run(x)
        return jnp.sum(last**2), zero

      (_, zero), grad = jax.value_and_grad(loss, has_aux=True)(x)
      return grad, zero

    self.assert_rewritten(step, jnp.linspace(0.1, 1.0, 8))

  def test_a_scalar_of_each_device_crosses(self):
    def body(x: jax.Array) -> jax.Array:
      scale = jnp.sin(x[0])  # One number on each device.

      def turn(carry: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return jnp.tanh(carry * scale) + jnp.sin(carry), None

      return lax.scan(turn, x, length=6)[0]

    run = jax.shard_map(body, mesh=mesh(), in_specs=P("a"), out_specs=P("a"))
    step = jax.value_and_grad(lambda x: jnp.sum(run(x) ** 2))
    self.assert_rewritten(step, jnp.linspace(0.1, 1.0, 8))

  def test_explicit_axes(self):
    explicit = mesh(jax.sharding.AxisType.Explicit)
    weights, x = arguments(64)
    with jax.set_mesh(explicit):
      sharding = jax.sharding.NamedSharding(explicit, P("a"))
      x = jax.device_put(np.asarray(x), sharding)
      step = functools.partial(train_step, mesh=explicit)
      self.assert_rewritten(step, weights, x)

  def test_scopes_stay_as_they_are(self):
    args = arguments(64)
    jaxpr = jax.make_jaxpr(train_step)(*args)
    made = scan.rewrite_step(jaxpr, "all", scan_cases.RATES)
    self.assertNotEmpty(made.dropped)

    def scopes(jaxpr: core.Jaxpr) -> set[str]:
      found = set()
      for eqn in jaxpr.eqns:
        found.add(str(eqn.source_info.name_stack))
        for body in core.jaxprs_in_params(eqn.params):
          found |= scopes(body)
      return found

    new = scopes(made.closed_jaxpr) - scopes(jaxpr)
    self.assertEqual(
      {scope for scope in new if "recompute" not in scope}, set()
    )

  def test_what_prints_is_left_alone(self):
    def body(x: jax.Array, prints: bool) -> jax.Array:
      if prints:
        jax.debug.print("{}", x[0])
      return lax.scan(lambda c, _: (jnp.sin(jnp.exp(-c)), None), x, length=6)[0]

    def droppable_bytes(prints: bool) -> int:
      run = jax.shard_map(
        functools.partial(body, prints=prints),
        **{"mesh": mesh(), "in_specs": P("a"), "out_specs": P("a")},
      )
      step = jax.value_and_grad(lambda x: jnp.sum(run(x) ** 2))
      jaxpr = jax.make_jaxpr(step)(jnp.linspace(0.1, 1.0, 8))
      return scan.droppable_bytes(jaxpr)

    self.assertGreater(droppable_bytes(prints=False), 0)
    self.assertEqual(droppable_bytes(prints=True), 0)

  @parameterized.named_parameters(
    (
      "ring",
      functools.partial(
        sharded.ring_attention,
        num_layers=2,
        width=32,
        num_heads=2,
        length=512,
      ),
    ),
    (
      "pipeline",
      functools.partial(sharded.pipeline, num_layers=16, width=32, rows=256),
    ),
  )
  def test_steps_of_the_benchmark(self, build: Any):
    step = build(jax.devices()[:4])
    jaxpr = jax.make_jaxpr(step.fun)(*step.args)
    made = scan.rewrite_step(jaxpr, "all", scan_cases.RATES)

    def temp_bytes(jaxpr: core.Jaxpr) -> int:
      run = core.jaxpr_as_fun(jaxpr)
      lowered = jax.jit(run).lower(*jax.tree.leaves(step.args))
      memory: Any = lowered.compile().memory_analysis()
      return memory.temp_size_in_bytes

    written, rewritten = temp_bytes(jaxpr), temp_bytes(made.closed_jaxpr)
    self.assertLess(rewritten, 0.7 * written)

  @pytest.mark.slow
  def test_as_small_as_a_checkpoint_by_hand(self):
    weights, x = arguments(1024)

    remade = jax.jit(functools.partial(train_step, is_remade=True))
    by_hand = total_bytes(remade.lower(weights, x).compile().memory_analysis())
    plain = jax.jit(train_step).lower(weights, x).compile()
    self.assertLess(by_hand, 0.7 * total_bytes(plain.memory_analysis()))
    limit = int(1.05 * by_hand)
    planned = (
      jaxmem.jit(train_step, memory_limit=limit).lower(weights, x).compile()
    )
    self.assertLessEqual(total_bytes(planned.memory_analysis()), limit)
    for a, b in zip(
      jax.tree.leaves(plain(weights, x)),
      jax.tree.leaves(planned(weights, x)),
      strict=True,
    ):
      np.testing.assert_array_equal(a, b)


if __name__ == "__main__":
  absltest.main()
