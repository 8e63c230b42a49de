"""Tests of what only CPUs have: libraries that arrange factors, and caches."""

import dataclasses

from absl.testing import absltest
from unit_costs import UNIT, dot, root_seconds

from jaxmem import cost


class CpuRatesTest(absltest.TestCase):
  def test_factors_that_are_arranged_anew(self):
    # 4 x (20 + 20 + 4) bytes at 0.5 s, besides 80 flops.
    packing = dataclasses.replace(UNIT, packed_bytes_per_s=2.0)
    found = root_seconds(dot(2, 2, 10), packing)
    self.assertAlmostEqual(found, 80 + 88 + 0.01)
    # What takes longer to read takes as long as that.
    slow = dataclasses.replace(packing, memory_bytes_per_s=1.0)
    found = root_seconds(dot(2, 2, 10), slow)
    self.assertAlmostEqual(found, 176 + 0.01)

  def test_what_is_in_a_cache(self):
    # Of 176 bytes, 100 at 20 a second, the others at 1; 80 flops take less.
    rates = dataclasses.replace(
      UNIT,
      memory_bytes_per_s=1.0,
      caches=cost.Caches(most_bytes=100.0, bytes_per_s=20.0),
    )
    found = root_seconds(dot(2, 2, 10), rates)
    self.assertAlmostEqual(found, 100 / 20 + 76 + 0.01)
    small = root_seconds(dot(1, 1, 2), rates)
    self.assertAlmostEqual(small, 4 + 0.01)

  def test_a_large_product_of_a_cpu_is_faster_by_its_flops(self):
    seconds = [root_seconds(dot(n, n, n), cost.CPU) for n in (1024, 32)]
    self.assertGreater(2 * 1024**3 / seconds[0], 3 * 2 * 32**3 / seconds[1])


if __name__ == "__main__":
  absltest.main()
