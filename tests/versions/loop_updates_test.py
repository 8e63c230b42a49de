"""Updates of what loops stack, done in the loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from absl.testing import absltest, parameterized
from stacked_layers import (
  LENGTH,
  OPTIMIZERS,
  WIDTH,
  case,
  loss,
  run,
  stacks,
  updated,
  weights,
)

from jaxmem.versions import scan

_MORE_OPTIMIZERS = (
  "adabelief adadelta adagrad adamax adamaxw amsgrad nadam nadamw radam rprop"
  " sign_sgd yogi"
).split()


def assert_same(traced, found, args, times=3):
  """Checks that so many steps have equal results, bit by bit."""
  changed = traced.with_jaxpr(found.closed_jaxpr)
  jax.tree.map(
    np.testing.assert_array_equal,
    run(changed, args, times),
    run(traced, args, times),
  )


class UpdatesTest(parameterized.TestCase):
  @parameterized.parameters(*OPTIMIZERS)
  def test_results_are_the_same_bit_by_bit(self, name):
    self.check(OPTIMIZERS[name])

  @parameterized.parameters(*_MORE_OPTIMIZERS)
  @pytest.mark.slow
  def test_more_optimizers(self, name):
    self.check(getattr(optax, name)(1e-3))

  @pytest.mark.slow
  def test_chains(self):
    for chain in (
      optax.chain(optax.clip(1.0), optax.adam(1e-3)),
      optax.chain(optax.adam(1e-3), optax.ema(0.9)),
      optax.contrib.schedule_free_adamw(1e-3),
      optax.contrib.adopt(1e-3),
    ):
      self.check(chain)

  def check(self, optimizer):
    step, args = case(optimizer)
    traced, found = updated(step, args, (0, 1))
    # Both gradients, each of all layers.
    self.assertLen(found.names, 2)
    size_bytes = 4 * LENGTH * (WIDTH * WIDTH + WIDTH)
    self.assertEqual(found.saved_bytes, size_bytes)
    assert_same(traced, found, args)

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
      new = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
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
    assert_same(traced, found, args, times=1)

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
    assert_same(traced, found, args, times=1)

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
    assert_same(traced, found, args)


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

  def test_narrow_types_where_bits_are_kept(self):
    def step(params, state, x):
      gradients = jax.grad(loss)(params, x, jnp.bfloat16)
      new = jax.tree.map(lambda p, g: p - g, params, gradients)
      return new, state, x

    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), weights())
    args = params, jnp.zeros(()), jnp.ones((5, WIDTH))
    traced, found = updated(step, args, (0,))
    self.assertEmpty(found.names)
    found = scan.update_in_loops(traced.jaxpr, traced.donated, keep_bits=False)
    self.assertLen(found.names, 2)

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
    self._check(range(40), least_updated=7)

  @pytest.mark.slow
  def test_results_of_many_are_the_same_bit_by_bit(self):
    self._check(range(40, 160), least_updated=20)

  def _check(self, seeds, least_updated):
    num_updated = 0
    for seed in seeds:
      step, args, donated = _random_step(seed)
      traced, found = updated(step, args, donated)
      num_updated += bool(found.names)
      results = [
        each.compile({})(*jax.tree.map(jnp.copy, args))
        for each in (traced, traced.with_jaxpr(found.closed_jaxpr))
      ]
      with self.subTest(seed=seed):
        jax.tree.map(np.testing.assert_array_equal, *results)
    self.assertGreater(num_updated, least_updated)


if __name__ == "__main__":
  absltest.main()
