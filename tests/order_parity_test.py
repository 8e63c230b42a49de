"""Steps under jaxmem.jit give the bits that they give under jax.jit."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import record_modules
from absl.testing import absltest, parameterized
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jaxmem
from benchmarks import zoo

_NUM_STEPS = 3
_MODELS = tuple(sorted(zoo.MODELS))
# Of each kind one that compiles in little time.
_QUICK_MODELS = (
  "alexnet",
  "llama_lora",
)


def _bits(tree: Any) -> list[Any]:
  """Returns the leaves as bytes, types and shapes: NaNs compare equal."""
  leaves, structure = jax.tree.flatten(tree)
  found: list[Any] = [structure]
  for leaf in leaves:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    found.append((array.dtype, array.shape, array.tobytes()))
  return found


def _copy(tree: Any) -> Any:
  """Copies the arrays of a tree, since a step may be given them to keep."""
  return jax.tree.map(
    lambda x: x.copy() if isinstance(x, jax.Array) else x, tree
  )


class ZooTest(parameterized.TestCase):
  @parameterized.parameters(*_QUICK_MODELS)
  def test_three_steps(self, name):
    self._check(name)

  @parameterized.parameters(*sorted({*_MODELS} - {*_QUICK_MODELS}))
  @pytest.mark.slow
  def test_three_steps_of_the_others(self, name):
    self._check(name)

  def _check(self, name):
    pair = record_modules.zoo_pair(name)
    step = zoo.build(name, 2, size="tiny")
    variables, opt_state, *batch = zoo.concrete(step)
    first = _bits(variables)
    outputs = []
    for compiled in (pair.baseline, pair.planned):
      state = _copy((variables, opt_state))
      seen = []
      for _ in range(_NUM_STEPS):
        *state, loss = compiled(*state, *batch)
        self.assertTrue(np.isfinite(loss))
        seen.append(_bits((state, loss)))
      self.assertNotEqual(_bits(state[0]), first)  # It learns something.
      outputs.append(seen)
    self.assertEqual(*outputs)
    self.assertLessEqual(pair.planned_bytes, pair.baseline_bytes)

  @pytest.mark.slow
  def test_most_plans_change_something(self):
    # Else the parity above would say nothing.
    pairs = [record_modules.zoo_pair(name) for name in _MODELS]
    changed = [p for p in pairs if p.plan.orders]
    smaller = [p for p in pairs if p.planned_bytes < p.baseline_bytes]
    self.assertGreaterEqual(len(changed), len(_MODELS) // 2)
    self.assertGreaterEqual(len(smaller), len(_MODELS) // 2)
    for pair in changed:
      for computation_id, ids in pair.plan.orders.items():
        xlas = tuple(i.id for i in pair.module.schedule(computation_id))
        self.assertTrue(ids != xlas or pair.plan.removed_copies)

  def test_copies_are_removed_somewhere(self):
    pairs = map(record_modules.zoo_pair, _MODELS)
    self.assertTrue(any(p.plan.removed_copies for p in pairs))


# Steps with one feature each. Every one takes `(weights, x)`.


def _layers(weights, x):
  for w in weights:
    x = jnp.tanh(x @ w)
  return x


def _update(loss):
  def step(weights, x):
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

  return step


@_update
def _scan(weights, x):
  def layer(y, w):
    z = jnp.tanh(y @ w)
    return z * jax.nn.sigmoid(z @ w.T), jnp.sum(z)

  y, sums = lax.scan(layer, x, jnp.stack(weights))
  return jnp.mean(y**2) + jnp.mean(sums**2)


def _while_loop(weights, x):
  def body(state):
    i, y, z = state
    return i + 1, jnp.tanh(y @ weights[0]) + z, y @ weights[1]

  _, y, z = lax.while_loop(
    lambda state: (state[0] < 4) & (jnp.sum(state[1]) < 1e6), body, (0, x, x)
  )
  scale = jnp.mean(y) + jnp.max(z)
  return [w * (1 - 0.01 * jnp.tanh(scale)) for w in weights], scale


@_update
def _cond(weights, x):
  y = lax.cond(
    jnp.sum(x) > 0,
    lambda y: jnp.sin(y @ weights[0]) @ weights[1],
    lambda y: jnp.cos(y @ weights[1]),
    x,
  )
  return jnp.mean(_layers(weights, y) ** 2)


@jax.custom_vjp
def _clipped(x):
  return jnp.tanh(x) * x


_clipped.defvjp(
  lambda x: (_clipped(x), (x, jnp.tanh(x))),
  lambda kept, g: (jnp.clip(g, -1, 1) * kept[1] + kept[0],),
)


@_update
def _custom_vjp(weights, x):
  for w in weights:
    x = _clipped(x @ w)
  return jnp.mean(x**2)


@_update
def _checkpoint(weights, x):
  for w in weights:
    x = jax.checkpoint(lambda x, w: jnp.sin(jnp.tanh(x @ w)) @ w.T)(x, w)
  return jnp.mean(x**2)


@_update
def _bfloat16(weights, x):
  low = [w.astype(jnp.bfloat16) for w in weights]
  return jnp.mean(_layers(low, x.astype(jnp.bfloat16)).astype(jnp.float32))


def _scatter_and_sort(weights, x):
  order = jnp.argsort(x[:, 0])
  table = weights[0].at[order].add(x, mode="drop")
  table = lax.dynamic_update_slice(table, x[:2], (order[0], 0))
  y = _layers([table, *weights[1:]], x)
  return [table, *weights[1:]], jnp.sum(jnp.sort(y, axis=0)[::2])


def _cumulative(weights, x):
  y = jnp.cumsum(x @ weights[0], axis=0)
  z = lax.reduce_window(y, 0.0, lax.add, (3, 1), (1, 1), "SAME")
  return [w + 0.01 * (z.T @ y) for w in weights], jnp.linalg.norm(z)


_FEATURES = {
  "scan": _scan,
  "while_loop": _while_loop,
  "cond": _cond,
  "custom_vjp": _custom_vjp,
  "checkpoint": _checkpoint,
  "bfloat16": _bfloat16,
  "scatter_and_sort": _scatter_and_sort,
  "cumulative": _cumulative,
}


def _weights(num=4, width=32):
  generator = np.random.default_rng(0)
  scale = width**-0.5
  return [
    jnp.asarray(generator.normal(size=(width, width)) * scale, jnp.float32)
    for _ in range(num)
  ], jnp.asarray(generator.normal(size=(width, width)), jnp.float32)


class _ParityTest(parameterized.TestCase):
  def check(self, function, state, *rest, kwargs=None, **jit_kwargs):
    """Compares several steps, each taking the state the last one returned."""
    kwargs = kwargs or {}
    outputs, temps = [], []
    for jit in (jax.jit, jaxmem.jit):
      jitted = jit(function, **jit_kwargs)
      current = _copy(state)
      lowered = jitted.lower(current, *rest, **kwargs)
      temps.append(record_modules.temp_bytes(lowered.compile()))
      seen = []
      for _ in range(_NUM_STEPS):
        current, value = jitted(current, *rest, **kwargs)
        seen.append(_bits((current, value)))
      self.assertNotEqual(seen[0], seen[-1])
      outputs.append(seen)
    self.assertEqual(*outputs)
    self.assertLessEqual(temps[1], temps[0])
    return temps


class FeatureTest(_ParityTest):
  @parameterized.product(name=sorted(_FEATURES), donated=(True, False))
  def test_feature(self, name, donated):
    weights, x = _weights()
    donate = {"donate_argnums": 0} if donated else {}
    self.check(_FEATURES[name], weights, x, **donate)

  def test_some_plans_change_something(self):
    weights, x = _weights()
    pairs = [
      record_modules.compile_both(step, (weights, x), donate_argnums=0)
      for step in _FEATURES.values()
    ]
    self.assertGreater(sum(p.plan.is_changed for p in pairs), 2)

  @parameterized.parameters("threefry2x32", "rbg")
  def test_dropout(self, kind):
    def loss(weights, x, key):
      for i, w in enumerate(weights):
        kept = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, x.shape)
        x = jnp.where(kept, jnp.tanh(x @ w) / 0.8, 0)
      return jnp.mean(x**2)

    def step(state, x):
      weights, key = state
      key, own = jax.random.split(key)
      value, gradients = jax.value_and_grad(loss)(weights, x, own)
      weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
      return (weights, key), value

    weights, x = _weights()
    key = jax.random.key(7, impl=kind)
    self.check(step, (weights, key), x, donate_argnums=0)

  def test_static_and_keyword_arguments_and_absent_leaves(self):
    def step(state, depth, x, *, activation, bias=None, scale=1.0):
      weights, unused = state["weights"], state["unused"]
      assert unused is None and bias is None
      for w in weights[:depth]:
        x = activation(x @ w) * scale
      return {
        "weights": [w + 0.01 * x for w in weights],
        "unused": None,
      }, x.sum()

    weights, x = _weights()
    self.check(
      step,
      {"weights": weights, "unused": None},
      3,
      x,
      kwargs={"activation": jnp.tanh, "scale": jnp.float32(0.5)},
      static_argnums=1,
      static_argnames="activation",
      donate_argnums=0,
    )

  def test_donation_by_name(self):
    weights, x = _weights()
    temps = self.check(_scan, weights, x, donate_argnames="weights")
    self.assertGreater(temps[0], 0)

  def test_a_partial_with_unused_arguments(self):
    def step(rate, weights, x, unused):
      del unused
      weights, value = _scan(weights, x)
      return [w * rate for w in weights], value

    weights, x = _weights()
    self.check(
      functools.partial(step, jnp.float32(0.9)), weights, x, jnp.ones(5)
    )


class ManyDevicesTest(_ParityTest):
  """Over four devices, two by two."""

  def setUp(self):
    super().setUp()
    self.mesh = jax.make_mesh(
      (2, 2),
      ("data", "model"),
      axis_types=(jax.sharding.AxisType.Auto,) * 2,
    )
    weights, x = _weights()
    self.columns = NamedSharding(self.mesh, PartitionSpec(None, "model"))
    self.rows = NamedSharding(self.mesh, PartitionSpec("data", None))
    self.weights = jax.device_put(weights, self.columns)
    self.x = jax.device_put(x, self.rows)

  @parameterized.parameters(True, False)
  def test_named_sharding(self, donated):
    @_update
    def step(weights, x):
      return jnp.mean(_layers(weights, x) ** 2)

    donate = {"donate_argnums": 0} if donated else {}
    shardings = (
      [self.columns] * len(self.weights),
      NamedSharding(self.mesh, PartitionSpec()),
    )
    self.check(step, self.weights, self.x, out_shardings=shardings, **donate)

  def test_shard_map(self):
    def local(weights, x):
      def loss(weights):
        y = x
        for w in weights:
          part = lax.all_gather(w, "model", axis=1, tiled=True)
          y = jnp.tanh(y @ part)
        return jnp.mean(y**2)

      value, gradients = jax.value_and_grad(loss)(weights)
      gradients = lax.pmean(gradients, "data")
      weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
      return weights, lax.pmean(lax.pmean(value, "data"), "model")

    step = jax.shard_map(
      local,
      mesh=self.mesh,
      in_specs=(PartitionSpec(None, "model"), PartitionSpec("data", None)),
      out_specs=(PartitionSpec(None, "model"), PartitionSpec()),
      check_vma=False,
    )
    self.check(step, self.weights, self.x, donate_argnums=0)


if __name__ == "__main__":
  absltest.main()
