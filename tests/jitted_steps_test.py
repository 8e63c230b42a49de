"""`jaxmem.plan` of what Flax, Equinox and Keras jit: the same as they run."""

import importlib.util
import os
import unittest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jaxmem_hlo import compiler_hook

import jaxmem
from jaxmem import targets
from jaxmem.compiler import jax_doors

os.environ["KERAS_BACKEND"] = "jax"

_NEEDS_PLUGIN = unittest.skipUnless(
  targets.is_available("h200"), "JAX's CUDA plugin is not installed"
)


def _require(*packages: str) -> None:
  """Skips a test without its packages; where CI=... is set it fails."""
  for package in packages:
    if importlib.util.find_spec(package) is None:
      reason = f"{package} is not installed; it is one of .[test]."
      if os.environ.get("CI"):
        raise AssertionError(reason)
      raise unittest.SkipTest(reason)


def _batch():
  rng = np.random.default_rng(0)
  images = rng.standard_normal((4, 8, 8, 3)).astype(np.float32)
  return images, rng.integers(0, 5, 4)


def _copies(tree):
  def copy(array):
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
      array = jax.random.key_data(array)
    return np.array(array)

  return jax.tree.map(copy, tree)


class _JittedTest(parameterized.TestCase):
  def assert_equal_trees(self, found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)

  def assert_is_what_runs(self, plan, run):
    """Checks a plan against what planning the step as it runs makes of it."""
    with jaxmem.enable(min_bytes=0, only="^train_step$") as enabled:
      run()
    (record,) = enabled.records
    fixed_bytes = plan.total_bytes - plan.temp_bytes
    self.assertEqual(plan.name, "train_step")
    self.assertEqual(plan.total_bytes, record.planned_bytes)
    self.assertEqual(plan.baseline_temp_bytes + fixed_bytes, record.xla_bytes)
    self.assertLess(plan.temp_bytes, plan.baseline_temp_bytes)


def _flax_step():
  """Returns a step of Flax's, and what makes its model and optimizer."""
  import optax
  from flax import nnx

  class Net(nnx.Module):
    def __init__(self):
      rngs = nnx.Rngs(0)
      self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
      self.norm = nnx.BatchNorm(8, rngs=rngs)
      self.inner = nnx.Conv(8, 8, (3, 3), rngs=rngs)
      self.head = nnx.Linear(8, 5, rngs=rngs)
      # Its keys are arrays of another shape for XLA than for jax.
      self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
      x = self.stem(x)
      x = nnx.relu(self.norm(x) + self.inner(x))
      return self.head(self.drop(x.mean(axis=(1, 2))))

  def make():
    net = Net()
    return net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)

  @nnx.jit
  def train_step(net, optimizer, x, labels):
    def loss_fn(net):
      losses = optax.softmax_cross_entropy_with_integer_labels(net(x), labels)
      return losses.mean()

    loss, grads = nnx.value_and_grad(loss_fn)(net)
    optimizer.update(net, grads)
    return loss

  return train_step, make


class FlaxTest(_JittedTest):
  def setUp(self):
    super().setUp()
    _require("flax", "optax")

  def _state(self, *objects):
    from flax import nnx

    return _copies([nnx.state(each) for each in objects])

  @pytest.mark.slow
  def test_the_plan_is_that_of_what_runs_and_no_state_changes(self):
    step, make = _flax_step()
    net, optimizer = make()
    before = self._state(net, optimizer)
    plan = jaxmem.plan(step, net, optimizer, *_batch())
    self.assert_equal_trees(self._state(net, optimizer), before)
    self.assert_is_what_runs(plan, lambda: step(net, optimizer, *_batch()))
    # It trains on as one that was never planned.
    other_step, _ = _flax_step()
    other = make()
    other_step(*other, *_batch())
    self.assert_equal_trees(self._state(net, optimizer), self._state(*other))
    # What ran already is planned all the same, and runs no more for it.
    trained = self._state(net, optimizer)
    again = jaxmem.plan(step, net, optimizer, *_batch())
    self.assertEqual(again.order, plan.order)
    self.assert_equal_trees(self._state(net, optimizer), trained)

  @pytest.mark.slow
  def test_a_limit_and_shapes_in_place_of_arrays(self):
    from flax import nnx

    step, make = _flax_step()
    abstract = nnx.eval_shape(make)
    batch = jax.eval_shape(lambda: tuple(map(jnp.asarray, _batch())))
    plan = jaxmem.plan(step, *abstract, *batch)
    limited = jaxmem.plan(
      step, *abstract, *batch, memory_limit=plan.total_bytes
    )
    self.assertLessEqual(limited.total_bytes, plan.total_bytes)
    with self.assertRaises(jaxmem.InfeasibleError):
      jaxmem.plan(step, *abstract, *batch, memory_limit=1000)

  def test_arrays_have_the_names_of_the_modules(self):
    step, make = _flax_step()
    plan = jaxmem.plan(step, *make(), *_batch(), options=_FAST)
    names = {advice.argument for advice in plan.donation}
    self.assertIn("net.stem.kernel", names)
    self.assertIn("net.drop.rngs.key", names)
    self.assertRegex(str(plan), r"KiB  optimizer \(\d+ arrays\)")
    (hint,) = [h for h in plan.explain().hints if h.startswith("donate")]
    self.assertRegex(hint, r"^donate optimizer, net: [\d.]+ KiB less")

  def test_jitted_twice_is_warned_of(self):
    step, _ = _flax_step()
    with self.assertWarnsRegex(compiler_hook.PlanningWarning, "jitted by flax"):
      jaxmem.jit(step)

  @_NEEDS_PLUGIN
  @pytest.mark.slow
  def test_for_a_device_that_is_not_here(self):
    step, make = _flax_step()
    net, optimizer = make()
    plan = jaxmem.plan(
      step, net, optimizer, *_batch(), target="h200", memory_limit="80%"
    )
    self.assertEqual((plan.name, plan.target), ("train_step", "h200"))
    self.assertEqual(plan.model_error, 0)
    self.assertIn("80% of jax's pool of 106 GiB", str(plan))

  @pytest.mark.slow
  def test_max_batch(self):
    step, make = _flax_step()
    net, optimizer = make()

    def factory(batch):
      x = jax.ShapeDtypeStruct((batch, 8, 8, 3), jnp.float32)
      labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
      return step, (net, optimizer, x, labels)

    found = jaxmem.max_batch(
      factory, limit="1MB", start=8, multiple_of=8, options=_FAST
    )
    self.assertLessEqual(found.plan.total_bytes, 1_000_000)
    self.assertGreater(found.batch, 8)


_FAST = jaxmem.Options(effort="fast")


class EquinoxTest(_JittedTest):
  @parameterized.parameters("none", "all")
  def test_the_plan_is_that_of_what_runs(self, donate):
    _require("equinox")
    import equinox as eqx

    @eqx.filter_jit(donate=donate)
    def train_step(net, x, labels):
      def loss_fn(net):
        logits = jax.nn.log_softmax(jax.vmap(net)(x))
        return -jnp.take_along_axis(logits, labels[:, None], axis=1).mean()

      loss, grads = eqx.filter_value_and_grad(loss_fn)(net)
      updates = jax.tree.map(lambda g: -0.1 * g, grads)
      return eqx.apply_updates(net, updates), loss

    net = eqx.nn.Sequential(
      [
        eqx.nn.Conv2d(3, 8, 3, padding=1, key=jax.random.key(0)),
        eqx.nn.Lambda(jax.nn.gelu),
        eqx.nn.Conv2d(8, 8, 3, padding=1, key=jax.random.key(1)),
        eqx.nn.Lambda(lambda x: jax.nn.gelu(x).mean(axis=(1, 2))),
        eqx.nn.Linear(8, 5, key=jax.random.key(2)),
      ]
    )
    images, classes = _batch()
    args = jnp.asarray(images.transpose(0, 3, 1, 2)), jnp.asarray(classes)
    plan = jaxmem.plan(train_step, net, *args)
    leaves = jax.tree.leaves(eqx.filter((net, *args), eqx.is_array))
    self.assertFalse(any(leaf.is_deleted() for leaf in leaves))
    self.assertEqual(plan.alias_bytes > 0, donate == "all")
    self.assert_is_what_runs(plan, lambda: train_step(net, *args))

  def test_shapes_in_place_of_arrays(self):
    _require("equinox")
    import equinox as eqx

    @eqx.filter_jit(donate="all-except-first")
    def train_step(x, net):
      loss, grads = eqx.filter_value_and_grad(
        lambda net: jnp.sum(jax.vmap(net)(x[:, :8]) ** 2)
      )(net)
      return eqx.apply_updates(net, grads), loss

    def make():
      return eqx.nn.MLP(8, 4, 32, 2, key=jax.random.key(0))

    x = jax.ShapeDtypeStruct((16, 9), jnp.float32)
    plan = jaxmem.plan(train_step, x, eqx.filter_eval_shape(make))
    expected = jaxmem.plan(train_step, jnp.zeros((16, 9)), make())
    self.assertEqual(plan.order, expected.order)
    self.assertEqual(plan.total_bytes, expected.total_bytes)
    self.assertEqual(plan.donation, expected.donation)
    # Nothing of a wrong step's own error is lost.
    wrong = jax.ShapeDtypeStruct((16, 5), jnp.float32)
    with self.assertRaisesRegex(TypeError, "dot"):
      jaxmem.plan(train_step, wrong, eqx.filter_eval_shape(make))


class KerasTest(_JittedTest):
  def setUp(self):
    super().setUp()
    _require("keras")
    import keras

    if keras.backend.backend() != "jax":
      self.skipTest("Keras was imported with another backend.")
    keras.utils.set_random_seed(0)
    conv = keras.layers.Conv2D
    inputs = keras.Input((8, 8, 3))
    x = conv(8, 3, padding="same", activation="relu")(inputs)
    x = keras.layers.Add()([x, conv(8, 3, padding="same")(x)])
    x = keras.layers.Dropout(0.1)(keras.layers.BatchNormalization()(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    self.model: Any = keras.Model(inputs, keras.layers.Dense(5)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    self.model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    # As Keras builds the metrics and the optimizer.
    self.model.evaluate(*_batch(), verbose=0)

  def _variables(self):
    model = self.model
    return (
      model.trainable_variables,
      model.non_trainable_variables,
      model.optimizer.variables,
      model.metrics_variables,
    )

  def _state(self):
    return tuple([v.value for v in group] for group in self._variables())

  def _train_function(self) -> Any:
    self.model.make_train_function()
    return self.model.train_function

  @pytest.mark.slow
  def test_the_train_function_and_no_state_changes(self):
    before = _copies(self._state())
    for _ in range(2):
      plan = jaxmem.plan(
        self._train_function(), self._state(), iter([_batch()])
      )
      self.assert_equal_trees(_copies(self._state()), before)
      # The state would be donated.
      self.assertGreater(plan.alias_bytes, 0)

    def run():
      self.model.fit(*_batch(), batch_size=4, verbose=0)

    self.assert_is_what_runs(plan, run)
    # What ran already is planned all the same, and neither runs nor donates.
    before = _copies(self._state())
    again = jaxmem.plan(self._train_function(), self._state(), iter([_batch()]))
    self.assertEqual(again.total_bytes, plan.total_bytes)
    self.assert_equal_trees(_copies(self._state()), before)

  @pytest.mark.slow
  def test_the_train_step(self):
    plan = jaxmem.plan(
      self.model.train_step, self._state(), _batch(), donate_argnums=0
    )
    called = jaxmem.plan(
      self._train_function(), self._state(), iter([_batch()])
    )
    self.assertEqual(plan.total_bytes, called.total_bytes)


class CalledTest(_JittedTest):
  """Functions that take an iterator are called until they compile a step."""

  def _jitted(self):
    @jax.jit
    def train_step(params, x):
      for w in params:
        x = jnp.sin(x @ w) * x
      return x.sum()

    params = [jnp.ones((16, 16))] * 6
    return train_step, params

  def _loop(self, jitted):
    ran = []

    def step(params, batches):
      x = jnp.asarray(next(batches)) / 2
      value = jitted(params, x)
      ran.append(value)
      return value

    return step, ran

  def test_what_a_wrapper_does_with_its_arguments_is_no_step(self):
    train_step, params = self._jitted()
    step, ran = self._loop(train_step)
    plan = jaxmem.plan(step, params, iter([np.ones((64, 16))]))
    self.assertEqual(plan.name, "train_step")
    self.assertEmpty(ran)
    expected = jaxmem.plan(train_step, params, jnp.ones((64, 16)))
    self.assertEqual(plan.total_bytes, expected.total_bytes)
    self.assertGreater(plan.verify().num_reads, 0)

  def test_a_function_that_compiles_no_step(self):
    step, ran = self._loop(lambda params, x: x)
    with self.assertRaisesRegex(
      jaxmem.PlanningError, "compiled no step.* Give the jitted function itself"
    ):
      jaxmem.plan(step, [jnp.ones(3)], iter([np.ones(3)]))
    self.assertLen(ran, 1)

  def test_its_errors_pass_through(self):
    def step(batches):
      return next(batches) / (1 // 0)

    with self.assertRaises(ZeroDivisionError):
      jaxmem.plan(step, iter([1.0]))
    # Nobody watches any longer.
    self.assertIsNone(jax_doors._watch.get())

  def test_a_limit_of_enable_does_not_touch_what_is_planned(self):
    train_step, params = self._jitted()
    step, _ = self._loop(train_step)
    with jaxmem.enable("1KB", min_bytes=0, only="train_step") as enabled:
      plan = jaxmem.plan(step, params, iter([np.ones((64, 16))]))
    self.assertEmpty(enabled.records)
    self.assertIsNone(plan.budget)


if __name__ == "__main__":
  absltest.main()
