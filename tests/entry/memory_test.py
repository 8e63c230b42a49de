"""What a limit is a share of: a pool that is here, or of a described device."""

import os
from unittest import mock

import jax.numpy as jnp
from absl.testing import absltest, parameterized

from jaxmem import targets
from jaxmem.entry import MemoryLimit, memory
from jaxmem.report import LimitShare


class PlannedForTest(parameterized.TestCase):
  def test_a_described_device_has_jaxs_fraction_of_its_memory(self):
    h200 = targets.get("h200")
    device_bytes = h200.memory_bytes or 0
    for environment, pool_bytes in (
      ({}, device_bytes * 3 // 4),
      ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, device_bytes // 2),
    ):
      with mock.patch.dict(os.environ, environment, clear=True):
        for written, limit_bytes in (
          ("50%", pool_bytes // 2),
          (0.5, pool_bytes // 2),
          ("auto", pool_bytes),
        ):
          expected = LimitShare(
            written=str(written),
            pool_bytes=pool_bytes,
            device_bytes=device_bytes,
          )
          found = MemoryLimit.of(written).planned_for(h200)
          self.assertEqual(found, (limit_bytes, expected))

  @parameterized.parameters(None, targets.CPU)
  def test_a_device_that_is_here_has_the_pool_that_it_says(self, target):
    with mock.patch.object(memory, "pool_bytes", return_value=1000):
      found = MemoryLimit.of("80%").planned_for(target)
    self.assertEqual(found, (800, LimitShare(written="80%", pool_bytes=1000)))

  def test_the_arguments_are_not_in_use_by_others(self):
    with mock.patch.object(memory, "free_bytes", return_value=77) as free:
      limit_bytes, share = MemoryLimit.of("auto").planned_for(
        None, ([jnp.ones(8)], {"x": 3.0})
      )
    self.assertEqual(limit_bytes, 77)
    self.assertEqual(free.call_args.args[1], 32)
    assert share is not None
    self.assertEqual(share.written, "auto")

  @parameterized.parameters(None, targets.CPU, targets.get("h200"))
  def test_bytes_are_no_share(self, target):
    found = MemoryLimit.of("2KiB").planned_for(target)
    self.assertEqual(found, (2048, None))


if __name__ == "__main__":
  absltest.main()
