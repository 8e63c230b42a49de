"""The steps that jaxmem was not tuned on build, and trace as they should."""

import importlib.util
import os
import unittest

import jax
import pytest
from absl.testing import absltest, parameterized

os.environ.setdefault("KERAS_BACKEND", "jax")


def _skip_without(*packages: str) -> None:
  """Skips without the packages of .[test]; where CI=... is set it fails."""
  missing = [p for p in packages if importlib.util.find_spec(p) is None]
  if missing and not os.environ.get("CI"):
    raise unittest.SkipTest(f"{missing} are not installed; see .[test].")


_skip_without("equinox", "flax", "keras", "optax")

from benchmarks import held_out  # noqa: E402

# Keras takes half a minute to build one.
_KERAS = ("densenet", "mobilenet_v3")
_CASES = [
  (name, policy)
  for name, build in held_out.STEPS.items()
  if name not in _KERAS
  for policy in (None, *held_out.POLICIES)
  if policy is None or held_out.takes_policy(build)
]


def _shapes(tree):
  return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


class HeldOutTest(parameterized.TestCase):
  # All of them take half a minute.
  @parameterized.parameters(*_CASES[::7])
  def test_step_keeps_its_state_and_recomputes_what_it_should(
    self, name, policy
  ):
    self._check(name, policy)

  @parameterized.parameters(
    *(case for case in _CASES if case not in _CASES[::7])
  )
  @pytest.mark.slow
  def test_the_others_do_so_too(self, name, policy):
    self._check(name, policy)

  def _check(self, name, policy):
    build = held_out.STEPS[name]
    step = build() if policy is None else build(policy)
    jaxpr = self._trace(step)
    plain = jax.eval_shape(build().make_args)
    self.assertEqual(_shapes(jax.eval_shape(step.make_args)), _shapes(plain))
    # jaxmem is measured against these: they must do something.
    if policy is not None:
      recomputed = jaxpr.count("= remat2[")
      self.assertGreater(recomputed, self._trace(build()).count("= remat2["))

  @pytest.mark.slow
  @parameterized.parameters(*_KERAS)
  def test_keras(self, name):
    self._trace(held_out.STEPS[name]())

  def _trace(self, step):
    """Checks the shapes of what a step returns; returns its jaxpr, as text."""
    args = jax.eval_shape(step.make_args)
    traced = jax.jit(step.function, **step.jit_kwargs).trace(*args)
    params, opt_state, loss = traced.out_info
    self.assertEqual(_shapes((params, opt_state)), _shapes(args[:2]))
    self.assertEqual(loss.shape, ())
    return str(traced.jaxpr)

  def test_there_are_ten_and_most_have_blocks(self):
    self.assertGreaterEqual(len(held_out.STEPS), 10)
    self.assertGreaterEqual(
      sum(map(held_out.takes_policy, held_out.STEPS.values())), 6
    )


if __name__ == "__main__":
  absltest.main()
