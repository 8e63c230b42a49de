"""The smallest plans of a step whose few, large values XLA packs badly."""

import importlib.util
import os
import unittest

import pytest
from absl.testing import absltest

import jaxmem
from jaxmem import targets

if not importlib.util.find_spec("flax") and not os.environ.get("CI"):
  raise unittest.SkipTest("flax is not installed; see .[test].")

from benchmarks import zoo


@unittest.skipUnless(
  targets.is_available("h200"), "JAX's CUDA plugin is not installed."
)
class PackingTest(absltest.TestCase):
  @pytest.mark.slow
  def test_limits_that_cannot_be_kept_lead_to_tighter_packing(self):
    step = zoo.build("vgg16", 32, size="full")
    kwargs = {"donate_argnums": (0, 1), "target": "h200"}
    free = jaxmem.plan(step.function, *step.args, **kwargs)
    fixed_bytes = free.total_bytes - free.temp_bytes
    # What fits 40 % does not get below 38 % by edits alone that keep limits.
    room = int(0.36 * free.baseline_temp_bytes)
    tight = jaxmem.plan(
      step.function, *step.args, memory_limit=fixed_bytes + room, **kwargs
    )
    self.assertLessEqual(tight.temp_bytes, room)
    room = int(0.25 * free.baseline_temp_bytes)
    with self.assertRaises(jaxmem.InfeasibleError) as caught:
      jaxmem.plan(
        step.function, *step.args, memory_limit=fixed_bytes + room, **kwargs
      )
    # The error names nothing larger than what is known to fit.
    self.assertLessEqual(
      caught.exception.smallest_bytes, fixed_bytes + tight.temp_bytes
    )


if __name__ == "__main__":
  absltest.main()
