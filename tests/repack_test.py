"""Tests of jaxmem.arena: real steps with their temporaries placed anew."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jaxmem_hlo import executable
from jaxmem_hlo.arena import PlacementItem, PlacementPart

from benchmarks import zoo
from jaxmem import arena
from jaxmem.placement import Gap

# XLA packs these one to three per cent above the bytes live at once.
_MODELS = ("googlenet", "resnet50", "scan_transformer")
_NUM_STEPS = 3


@functools.cache
def _pair(name: str) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
  step = zoo.build(name, 2, size="tiny")
  lowered = jax.jit(step.function, **step.jit_kwargs).lower(*step.args)
  compiled = lowered.compile()
  return compiled, arena.repack(compiled, strict=True)


def _temp_bytes(compiled: jax.stages.Compiled) -> int:
  analysis = compiled.memory_analysis()
  assert analysis is not None
  return analysis.temp_size_in_bytes


def _run(name: str, compiled: jax.stages.Compiled) -> list[bytes]:
  variables, opt_state, *batch = zoo.concrete(zoo.build(name, 2, size="tiny"))
  seen = []
  for _ in range(_NUM_STEPS):
    variables, opt_state, loss = compiled(variables, opt_state, *batch)
    seen += jax.tree.leaves((variables, opt_state, loss))
    # The next step takes them over.
    seen = [
      x if isinstance(x, bytes) else np.asarray(x).tobytes() for x in seen
    ]
  return seen


class RepackTest(parameterized.TestCase):
  @parameterized.parameters(*_MODELS)
  def test_same_bits_in_less_memory(self, name):
    compiled, repacked = _pair(name)
    self.assertIsNot(repacked, compiled)
    self.assertIsInstance(repacked, jax.stages.Compiled)
    self.assertLess(_temp_bytes(repacked), 0.99 * _temp_bytes(compiled))
    self.assertEqual(_run(name, repacked), _run(name, compiled))

  def test_donation_is_kept(self):
    name = _MODELS[-1]
    state = zoo.concrete(zoo.build(name, 2, size="tiny"))
    _pair(name)[1](*state)
    self.assertTrue(all(x.is_deleted() for x in jax.tree.leaves(state[:2])))

  def test_nothing_to_gain(self):
    def step(x):
      return jnp.tanh(x @ x) @ x

    compiled = jax.jit(step).lower(jnp.ones((32, 32))).compile()
    self.assertIs(arena.repack(compiled, strict=True), compiled)

  def test_what_is_not_understood_is_returned_with_a_warning(self):
    compiled = jax.jit(lambda x: x + 1).lower(jnp.ones(4)).compile()
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      self.assertIs(arena.repack(compiled), compiled)
    self.assertLen(caught, 1)
    self.assertIn("no temporaries", str(caught[0].message))
    with self.assertRaises(executable.UnsupportedExecutableError):
      arena.repack(compiled, strict=True)

  def test_an_executable_that_was_repacked_before(self):
    repacked = _pair(_MODELS[0])[1]
    with self.assertWarnsRegex(RuntimeWarning, "was loaded, not compiled"):
      self.assertIs(arena.repack(repacked), repacked)


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
    buffer = arena.placement_problem([item]).buffers[0]
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
    buffer = arena.placement_problem([item]).buffers[0]
    self.assertEqual(buffer.gaps, (Gap(2, 5),))


if __name__ == "__main__":
  absltest.main()
