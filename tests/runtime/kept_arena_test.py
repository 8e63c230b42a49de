"""Tests of kept_arena: real steps with their temporaries placed anew."""

from concurrent import futures
from unittest import mock

import cpu_steps
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jaxmem_hlo.cpu_executable import (
  PlacementItem,
  UnsupportedExecutableError,
)
from jaxmem_hlo.cpu_executable.placement import PlacementPart

from benchmarks import zoo
from jaxmem.placement import Gap
from jaxmem.runtime import kept_arena


class KeepTest(parameterized.TestCase):
  @parameterized.parameters(*cpu_steps.MODELS, "moe_transformer")
  @pytest.mark.slow
  def test_same_bits_in_an_arena_that_stays(self, name):
    compiled = cpu_steps.pair(name)[0]
    kept = _keep(cpu_steps.fresh(name))
    self.assertLessEqual(kept.arena_bytes, cpu_steps.temp_bytes(compiled))
    before, after = compiled.memory_analysis(), kept.memory_analysis()
    self.assertEqual(after.temp_size_in_bytes, 0)
    for field in ("argument_size_in_bytes", "alias_size_in_bytes"):
      more = getattr(after, field) - getattr(before, field)
      self.assertEqual(more, kept.arena_bytes, field)
    self.assertEqual(cpu_steps.run(name, kept), cpu_steps.run(name, compiled))
    self.assertLen(_addresses(kept), 1)
    self.assertEqual(cpu_steps.run(name, kept), cpu_steps.run(name, compiled))

  @pytest.mark.slow
  def test_donation_is_kept(self):
    name = cpu_steps.MODELS[-1]
    state = zoo.concrete(zoo.build(name, 2, size="tiny"))
    _keep(cpu_steps.fresh(name))(*state)
    self.assertTrue(all(x.is_deleted() for x in jax.tree.leaves(state[:2])))

  def test_the_same_memory_in_each_call_until_released(self):
    kept, x = _kept_step()
    kept(x, scale=2.0)
    first = _addresses(kept)
    for _ in range(3):
      kept(x, scale=2.0)
      self.assertEqual(_addresses(kept), first)
    kept.release()
    self.assertEmpty(_addresses(kept))
    self.assertEqual(float(kept(x, scale=2.0)[1]), float(kept(x, scale=2.0)[1]))

  def test_keywords_constants_and_attributes(self):
    kept, x = _kept_step()
    for scale in (1.0, 3.0):
      for got, want in zip(
        kept(x, scale=scale), kept.compiled(x, scale=scale), strict=True
      ):
        np.testing.assert_array_equal(got, want)
    self.assertEqual(kept.in_tree, kept.compiled.in_tree)
    self.assertEqual(kept.as_text(), kept.compiled.as_text())

  def test_wrong_arguments_lose_nothing(self):
    kept, x = _kept_step()
    want = kept(x, scale=2.0)
    with self.assertRaisesRegex(TypeError, "pytree does not match"):
      kept(x, x)
    with self.assertRaisesRegex(TypeError, "x.*float32"):
      kept(x[:2], scale=2.0)
    self.assertLen(_addresses(kept), 1)
    np.testing.assert_array_equal(kept(x, scale=2.0)[0], want[0])

  def test_calls_that_overlap(self):
    kept, x = _kept_step()
    scales = [float(i) for i in range(24)]
    want = [np.asarray(kept.compiled(x, scale=s)[0]) for s in scales]
    # Nobody waits for a result before the next call.
    got = [kept(x, scale=s)[0] for s in scales]
    np.testing.assert_array_equal(got, want)
    with futures.ThreadPoolExecutor(4) as pool:
      got = list(pool.map(lambda s: np.asarray(kept(x, scale=s)[0]), scales))
    np.testing.assert_array_equal(got, want)
    self.assertLessEqual(len(_addresses(kept)), 4)

  @pytest.mark.slow
  def test_what_xla_places_stays_where_no_item_is_understood(self):
    def refuse(items):
      raise UnsupportedExecutableError("not understood")

    with mock.patch.object(kept_arena, "_place_late", refuse):
      kept = _keep(cpu_steps.fresh(cpu_steps.MODELS[0]))
    compiled = cpu_steps.pair(cpu_steps.MODELS[0])[0]
    self.assertEqual(kept.arena_bytes, cpu_steps.temp_bytes(compiled))
    self.assertEqual(
      cpu_steps.run(cpu_steps.MODELS[0], kept),
      cpu_steps.run(cpu_steps.MODELS[0], compiled),
    )

  @parameterized.parameters((), 0)
  def test_a_single_array(self, *donate_argnums):
    def step(x):
      return jnp.tanh(x @ jnp.sin(x)) @ x

    jitted = jax.jit(step, donate_argnums=donate_argnums)
    compiled = jitted.lower(jnp.ones((32, 32))).compile()
    kept = _keep(compiled)
    for scale in (0.5, 2.0):
      # Each call has an array of its own to take over.
      got, want = (f(scale * jnp.eye(32)) for f in (kept, compiled))
      np.testing.assert_array_equal(got, want)
    x = jnp.eye(32)
    kept(x)
    self.assertEqual(x.is_deleted(), bool(donate_argnums))

  def test_what_is_not_understood_is_returned_with_a_warning(self):
    compiled = jax.jit(lambda x: (x + 1, x)).lower(jnp.ones(4)).compile()
    with self.assertWarnsRegex(RuntimeWarning, "keep .* no temporaries"):
      self.assertIs(kept_arena.keep(compiled), compiled)
    with self.assertRaises(UnsupportedExecutableError):
      kept_arena.keep(compiled, strict=True)
    loaded = cpu_steps.pair(cpu_steps.MODELS[0])[1]
    with self.assertWarnsRegex(RuntimeWarning, "was loaded, not compiled"):
      self.assertIs(kept_arena.keep(loaded), loaded)


def _kept_step() -> tuple[kept_arena.KeptArena, jax.Array]:
  """Returns a step with a captured constant, and its first argument."""
  weights = jnp.linspace(-1.0, 1.0, 96 * 96).reshape(96, 96)

  def step(x, *, scale):
    y = jnp.sort(jnp.tanh(x @ weights) * scale, axis=0)
    return jnp.tanh(y @ weights) + y, jnp.sum(y)

  x = jnp.linspace(0.0, 1.0, 64 * 96).reshape(64, 96)
  compiled = jax.jit(step).lower(x, scale=1.0).compile()
  return _keep(compiled), x


def _keep(compiled: jax.stages.Compiled) -> kept_arena.KeptArena:
  kept = kept_arena.keep(compiled, strict=True)
  assert isinstance(kept, kept_arena.KeptArena)
  return kept


def _addresses(kept: kept_arena.KeptArena) -> set[int]:
  return {a.unsafe_buffer_pointer() for a in kept._free}


class PlacementProblemTest(absltest.TestCase):
  def test_parts_become_gaps(self):
    # A head of 64 bytes over [0, 4) and [6, 9), a tail at 100 over [2, 7).
    item = PlacementItem(
      name="x",
      size_bytes=150,
      live_ranges=((0, 9),),
      offset_bytes=128,
      parts=(
        PlacementPart(0, 64, ((0, 4), (6, 9)), (1,)),
        PlacementPart(100, 50, ((2, 7),), (2,)),
      ),
    )
    buffer = kept_arena.placement_problem([item]).buffers[0]
    self.assertEqual((buffer.lower, buffer.upper), (0, 9))
    self.assertEqual(buffer.hint_bytes, 128)
    # While only the tail is live, bytes from the last multiple of 64 on.
    self.assertEqual(
      buffer.gaps,
      (Gap(0, 2, (0, 64)), Gap(4, 6, (64, 150)), Gap(7, 9, (0, 64))),
    )

  def test_dead_times_become_gaps(self):
    item = PlacementItem(
      name="x",
      size_bytes=64,
      live_ranges=((0, 2), (5, 6)),
      offset_bytes=0,
      parts=(PlacementPart(0, 64, ((0, 2), (5, 6)), (1,)),),
    )
    buffer = kept_arena.placement_problem([item]).buffers[0]
    self.assertEqual(buffer.gaps, (Gap(2, 5),))


if __name__ == "__main__":
  absltest.main()
