"""Updates of what loops stack, done in the loop, and stacks of fewer bits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized
from jax.extend import core

import jaxmem
from jaxmem import targets
from jaxmem.compiler import TracedStep
from jaxmem.jaxpr import internals
from jaxmem.versions import scan

LENGTH, WIDTH = 6, 24


def weights(seed: int = 0, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
  keys = jax.random.split(jax.random.key(seed), 2)
  normal = functools.partial(jax.random.normal, dtype=dtype)
  return {
    "inner": normal(keys[0], (LENGTH, WIDTH, WIDTH)) / WIDTH,
    "scale": 1.0 + normal(keys[1], (LENGTH, WIDTH)) / WIDTH,
  }


def loss(params: Any, x: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
  def layer(x, p):
    inner = jnp.tanh(x @ p["inner"].astype(dtype))
    return x + inner * p["scale"].astype(dtype), None

  x, _ = jax.lax.scan(layer, x.astype(dtype), params)
  return jnp.mean(jnp.square(x.astype(jnp.float32)))


def train_step(optimizer: optax.GradientTransformation, dtype: Any) -> Any:
  def step(params, state, x):
    value, gradients = jax.value_and_grad(loss)(params, x, dtype)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value

  return step


def case(
  optimizer: optax.GradientTransformation, dtype: Any = jnp.float32
) -> tuple[Any, tuple[Any, ...]]:
  params = weights()
  x = jax.random.normal(jax.random.key(9), (5, WIDTH))
  return train_step(optimizer, dtype), (params, optimizer.init(params), x)


def updated(
  step: Any, args: Any, donated: Any = (), save_bytes: float = float("inf")
) -> tuple[TracedStep, scan.Updated]:
  """Returns a traced step, and what its loops could update."""
  traced = TracedStep(jax.jit(step, donate_argnums=donated).trace(*args))
  found = scan.update_in_loops(traced.jaxpr, traced.donated, save_bytes)
  return traced, found


def stacks(jaxpr: core.Jaxpr) -> list[Any]:
  """Returns the types of what the last loop of a jaxpr stacks."""
  loop = [e for e in jaxpr.eqns if e.primitive.name == "scan"][-1]
  _, num_carry = internals.scan_counts(loop)
  return [v.aval for v in loop.outvars[num_carry:]]


def run(step: TracedStep, args: Any, times: int = 3) -> Any:
  compiled = step.compile({})
  params, state, x = jax.tree.map(jnp.copy, args)
  value = None
  for _ in range(times):
    params, state, value = compiled(params, state, x)
  return params, state, value


OPTIMIZERS = {
  "sgd": optax.sgd(1e-2),
  "momentum": optax.sgd(1e-2, momentum=0.9, nesterov=True),
  "adamw": optax.adamw(1e-3, weight_decay=0.1),
  "lion": optax.lion(1e-3),
  "rmsprop": optax.rmsprop(1e-3, momentum=0.9),
  "scheduled": optax.adam(optax.cosine_decay_schedule(1e-2, 100)),
}


class UpdatesTest(parameterized.TestCase):
  @parameterized.parameters(*OPTIMIZERS)
  def test_results_are_the_same_bit_by_bit(self, name):
    step, args = case(OPTIMIZERS[name])
    traced, found = updated(step, args, (0, 1))
    # Both gradients, each of all layers.
    self.assertLen(found.names, 2)
    size_bytes = 4 * LENGTH * (WIDTH * WIDTH + WIDTH)
    self.assertEqual(found.saved_bytes, size_bytes)
    changed = traced.with_jaxpr(found.closed_jaxpr)
    jax.tree.map(
      np.testing.assert_array_equal, run(changed, args), run(traced, args)
    )

  def test_donated_state_is_written_over_in_the_loop(self):
    step, args = case(OPTIMIZERS["adamw"])
    _, found = updated(step, args, (0, 1))
    self.assertEmpty(stacks(found.closed_jaxpr))

  def test_what_is_not_donated(self):
    step, args = case(OPTIMIZERS["adamw"])
    # The gradients lie where results will.
    for donated in ((), (1,)):
      self.assertEmpty(updated(step, args, donated)[1].names)

  def test_what_is_stacked_instead(self):
    def step(params, state, x):
      gradients = jax.grad(loss)(params, x)
      new = jax.tree.map(
        lambda p, g: p - 0.1 * g.astype(jnp.bfloat16), params, gradients
      )
      signs = jax.tree.map(lambda g: (g > 0).astype(jnp.int8), gradients)
      return new, state, signs

    args = weights(), jnp.zeros(()), jnp.ones((5, WIDTH))
    traced, found = updated(step, args, (0,))
    self.assertLen(found.names, 2)
    self.assertSameElements(
      [aval.dtype for aval in stacks(found.closed_jaxpr)], [jnp.dtype("int8")]
    )
    # A fourth of the bytes.
    size_bytes = LENGTH * WIDTH * (WIDTH + 1)
    self.assertEqual(found.saved_bytes, 3 * size_bytes)
    changed = traced.with_jaxpr(found.closed_jaxpr)
    jax.tree.map(
      np.testing.assert_array_equal,
      run(changed, args, times=1),
      run(traced, args, times=1),
    )

  def test_what_xla_allocates(self):
    step, (params, state, x) = case(OPTIMIZERS["adamw"])
    large = jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(
        tuple(512 if d == WIDTH else d for d in a.shape), a.dtype
      ),
      (params, state, x),
    )
    traced, found = updated(step, large, (0, 1))
    memory: list[Any] = [
      each.compile({}).memory_analysis()
      for each in (traced, traced.with_jaxpr(found.closed_jaxpr))
    ]
    before, after = (each.temp_size_in_bytes for each in memory)
    # Not all: an iteration holds what it is about to write over the old.
    layer_bytes = found.saved_bytes // LENGTH
    self.assertLess(after, before - found.saved_bytes + 5 * layer_bytes)

  def test_as_few_as_are_needed(self):
    step, args = case(OPTIMIZERS["momentum"])
    for save_bytes, saved_bytes in (
      (1, 4 * LENGTH * WIDTH),
      (4 * LENGTH * WIDTH, 4 * LENGTH * WIDTH),
      (4 * LENGTH * WIDTH + 1, 4 * LENGTH * WIDTH * WIDTH),
      (4 * LENGTH * WIDTH * (WIDTH + 1), 4 * LENGTH * WIDTH * (WIDTH + 1)),
    ):
      _, found = updated(step, args, (0, 1), save_bytes)
      self.assertEqual(found.saved_bytes, saved_bytes)

  def test_one_type_in_another_order(self):
    # jax gives the first result the first argument's memory, of equal types.
    def step(moments, params, x):
      gradients = jax.grad(loss)(params, x)
      moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
      params = jax.tree.map(lambda p, m: p - 0.01 * m, params, moments)
      return params, moments, loss(params, x)

    args = weights(1), weights(), jnp.ones((5, WIDTH))
    traced, found = updated(step, args, (0, 1))
    changed = traced.with_jaxpr(found.closed_jaxpr)
    jax.tree.map(
      np.testing.assert_array_equal,
      run(changed, args, times=1),
      run(traced, args, times=1),
    )

  def test_both_directions(self):
    def step(params, state, x):
      def layer(x, p):
        x = jnp.tanh(x @ p)
        return x, x.sum() * p

      x, found = jax.lax.scan(layer, x, params)
      return params - 0.1 * found, state + 1, x.sum()

    args = weights()["inner"], jnp.zeros(()), jnp.ones((5, WIDTH)) / 9
    traced, found = updated(step, args, (0, 1))
    self.assertLen(found.names, 1)
    changed = traced.with_jaxpr(found.closed_jaxpr)
    jax.tree.map(
      np.testing.assert_array_equal, run(changed, args), run(traced, args)
    )


def _clipped(params, state, x):
  gradients = jax.grad(loss)(params, x)
  norm = optax.global_norm(gradients)
  new = jax.tree.map(lambda p, g: p - g / norm, params, gradients)
  return new, state, norm


def _returned(params, state, x):
  gradients = jax.grad(loss)(params, x)
  return jax.tree.map(lambda p, g: p - g, params, gradients), gradients, state


def _summed(params, state, x):
  gradients = jax.grad(loss)(params, x)
  new = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
  return new, state, jax.tree.map(jnp.sum, gradients)


def _across(params, state, x):
  gradients = jax.grad(loss)(params, x)
  return jax.tree.map(lambda p, g: p - g[::-1], params, gradients), state, x


def _single(params, state, x):
  first = jax.tree.map(lambda a: a[:1], params)
  gradients = jax.grad(loss)(first, x)
  new = jax.tree.map(lambda p, g: p - g, first, gradients)
  return new, state, jnp.zeros(())


class LeftAloneTest(parameterized.TestCase):
  @parameterized.parameters(_clipped, _returned, _summed, _across, _single)
  def test_other_readers(self, step):
    args = weights(), jnp.zeros(()), jnp.ones((5, WIDTH))
    traced, found = updated(step, args, (0,))
    self.assertEmpty(found.names)
    self.assertIs(found.closed_jaxpr, traced.jaxpr)

  def test_old_values_that_are_read_later(self):
    def step(params, state, x):
      gradients = jax.grad(loss)(params, x)
      new = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
      moved = jax.tree.map(lambda p, n: jnp.abs(n - p).max(), params, new)
      return new, state, moved

    args = weights(), jnp.zeros(()), jnp.ones((5, WIDTH))
    # To keep the old ones beside the new would save nothing.
    self.assertEmpty(updated(step, args, (0,))[1].names)

  def test_effects_keep_their_order(self):
    seen = []

    def step(params, state, x):
      gradients = jax.grad(loss)(params, x)
      jax.debug.callback(seen.append, jnp.sum(params["scale"]), ordered=True)
      rate = 0.1 * jnp.cos(state)
      new = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
      jax.debug.callback(seen.append, jnp.sum(new["scale"]), ordered=True)
      return new, state + 1.0, loss(new, x)

    args = weights(), jnp.zeros(()), jnp.ones((5, WIDTH))
    traced, found = updated(step, args, (0, 1))
    expected = run(traced, args)
    jax.effects_barrier()
    first, seen[:] = [*map(float, seen)], []
    changed = traced.with_jaxpr(found.closed_jaxpr)
    jax.tree.map(np.testing.assert_array_equal, run(changed, args), expected)
    jax.effects_barrier()
    self.assertEqual([*map(float, seen)], first)


def _random_step(seed: int) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
  """Makes a loop, and work on what it stacks, at random.

  Products are exact, so that nothing depends on which are fused with sums.
  """
  rng = np.random.default_rng(seed)
  num_stacks, num_results = rng.integers(1, 4), rng.integers(1, 5)
  reverse, length = bool(rng.integers(2)), int(rng.integers(2, 5))
  plan = [rng.integers(0, 1000, 4) for _ in range(rng.integers(2, 9))]

  def step(*stacks):
    def body(x, slices):
      x = jnp.sin(x + sum(slices))
      return x, [x * 2**k + s for k, s in enumerate(slices)]

    x, found = jax.lax.scan(body, stacks[0][0], [*stacks], reverse=reverse)
    values = [*found, *stacks]
    for kind, *which in plan:
      a, b, c = (values[k % len(values)] for k in which)
      made = (
        lambda a=a, b=b: a * 0.5 + b,
        lambda a=a, b=b, c=c: jnp.where(a > b, b, c),
        lambda a=a: jnp.abs(a) * jnp.float32(4.0),
        lambda a=a, b=b: a + b[::-1],
        lambda a=a, b=b: a * b.mean(),
      )[max(0, kind % 12 - 7)]()
      values.append(made)
    return [*values[-num_results:], x]

  args = tuple(
    jnp.asarray(rng.normal(size=(length, 3)), jnp.float32)
    for _ in range(num_stacks)
  )
  donated = [n for n in range(num_stacks) if rng.integers(8)]
  return step, args, tuple(donated)


class RandomTest(absltest.TestCase):
  def test_results_are_the_same_bit_by_bit(self):
    num_updated = 0
    for seed in range(80):
      step, args, donated = _random_step(seed)
      traced, found = updated(step, args, donated)
      num_updated += bool(found.names)
      results = [
        each.compile({})(*jax.tree.map(jnp.copy, args))
        for each in (traced, traced.with_jaxpr(found.closed_jaxpr))
      ]
      with self.subTest(seed=seed):
        jax.tree.map(np.testing.assert_array_equal, *results)
    self.assertGreater(num_updated, 15)


class NarrowTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    step, self.args = case(OPTIMIZERS["adamw"], jnp.bfloat16)
    self.traced = TracedStep(jax.jit(step).trace(*self.args))

  def test_gradients_are_stacked_as_they_were_computed(self):
    found = scan.narrow_stacks(self.traced.jaxpr)
    self.assertEqual(found.num_stacks, 2)
    self.assertSameElements(
      [aval.dtype for aval in stacks(found.closed_jaxpr)],
      [jnp.dtype(jnp.bfloat16)],
    )

  def test_results_are_the_same_where_all_is_rounded(self):
    found = scan.narrow_stacks(self.traced.jaxpr)
    options = {"xla_allow_excess_precision": False}
    results = [
      step.compile(options)(*self.args)
      for step in (self.traced, self.traced.with_jaxpr(found.closed_jaxpr))
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)

  def test_gradients_that_are_clipped_by_their_norm(self):
    step, args = case(
      optax.chain(optax.clip_by_global_norm(1.0), OPTIMIZERS["adamw"]),
      jnp.bfloat16,
    )
    traced, found = updated(step, args, (0, 1))
    self.assertEmpty(found.names)
    self.assertEqual(scan.narrow_stacks(traced.jaxpr).num_stacks, 2)

  def test_what_else_is_read_or_made_stays(self):
    def forward(dtype, use):
      def body(x, y):
        x = jnp.sin(x + y)
        return x, (x * y).astype(dtype)

      return lambda xs: use(jax.lax.scan(body, xs[0], xs)[1])

    for dtype, use in (
      (jnp.float32, lambda s: s[::-1]),
      (jnp.float32, lambda s: s),
      (jnp.int32, lambda s: s + 1),
      (jnp.float8_e4m3fn, lambda s: -s),
    ):
      shape = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16)
      jaxpr = jax.make_jaxpr(forward(dtype, use))(shape)
      found = scan.narrow_stacks(jaxpr)
      self.assertIs(found.closed_jaxpr, jaxpr)
    jaxpr = jax.make_jaxpr(forward(jnp.float32, lambda s: -s))(shape)
    self.assertEqual(scan.narrow_stacks(jaxpr).num_stacks, 1)


class PlansTest(absltest.TestCase):
  """Whole steps under limits that nothing else meets."""

  def setUp(self):
    super().setUp()
    params = {
      "inner": jnp.eye(256) + jnp.zeros((24, 256, 256)),
      "scale": jnp.ones((24, 256)),
    }
    self.step, _ = case(OPTIMIZERS["adamw"])
    x = jax.random.normal(jax.random.key(1), (4, 256))
    self.args = params, OPTIMIZERS["adamw"].init(params), x

  def test_on_a_cpu(self):
    plain = jax.jit(self.step, donate_argnums=(0, 1)).lower(*self.args)
    found: Any = plain.compile().memory_analysis()
    state_bytes = found.argument_size_in_bytes
    limited = jaxmem.jit(
      self.step, donate_argnums=(0, 1), memory_limit=int(1.2 * state_bytes)
    )
    compiled = limited.lower(*self.args).compile()
    memory: Any = compiled.memory_analysis()
    # The gradients alone would be a third of the state.
    self.assertLess(memory.temp_size_in_bytes, 0.2 * state_bytes)
    copies = [jax.tree.map(jnp.copy, self.args) for _ in range(2)]
    jax.tree.map(
      np.testing.assert_array_equal,
      compiled(*copies[0]),
      plain.compile()(*copies[1]),
    )

  @absltest.skipUnless(
    targets.is_available("h200"), "JAX's CUDA plugin is not installed."
  )
  def test_for_a_described_gpu(self):
    step = train_step(OPTIMIZERS["adamw"], jnp.bfloat16)
    plans = [
      jaxmem.plan(
        step,
        *self.args,
        target="h200",
        donate_argnums=(0, 1),
        memory_limit=limit,
      )
      for limit in (None, int(1.12 * 3 * 4 * 24 * 256 * 257))
    ]
    budget = plans[1].budget
    assert budget is not None
    self.assertEqual(plans[1].temp_bytes, plans[1].predicted_temp_bytes)
    # Each gradient in half the bits, then the larger updated in the loop.
    self.assertGreaterEqual(budget.num_stacks, 3)
    self.assertIn(
      f"{budget.num_stacks} stacks of loops made smaller", str(plans[1])
    )


if __name__ == "__main__":
  absltest.main()
