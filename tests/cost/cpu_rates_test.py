"""Tests of what only CPUs have: libraries that arrange factors, and caches."""

import dataclasses

import tiny_hlo
from absl.testing import absltest
from tiny_hlo import f32

from jaxmem import cost

# One flop takes 1 s, a byte 0.1 s, a launch 0.01 s.
_UNIT = cost.Rates(
  memory_bytes_per_s=10.0,
  tf32_flops_per_s=1.0,
  bf16_flops_per_s=1.0,
  fp32_flops_per_s=1.0,
  launch_s=0.01,
  efficiency=cost.Efficiency(
    flops=1.0, memory=1.0, misaligned=1.0, crosswise=1.0
  ),
)


class CpuRatesTest(absltest.TestCase):
  def _dot_s(self, m, n, k, rates):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    a, b = main.parameter(f32(m, k)), main.parameter(f32(k, n))
    main.op("dot", f32(m, n), a, b)
    module = builder.module(main)
    numbers = module.entry.root.proto.dot_dimension_numbers
    numbers.lhs_contracting_dimensions.append(1)
    numbers.rhs_contracting_dimensions.append(0)
    return cost.instruction_seconds(module, rates)[module.entry.root.id]

  def test_factors_that_are_arranged_anew(self):
    # 4 x (20 + 20 + 4) bytes at 0.5 s, besides 80 flops.
    packing = dataclasses.replace(_UNIT, packed_bytes_per_s=2.0)
    found = self._dot_s(2, 2, 10, packing)
    self.assertAlmostEqual(found, 80 + 88 + 0.01)
    # What takes longer to read takes as long as that.
    slow = dataclasses.replace(packing, memory_bytes_per_s=1.0)
    found = self._dot_s(2, 2, 10, slow)
    self.assertAlmostEqual(found, 176 + 0.01)

  def test_what_is_in_a_cache(self):
    # Of 176 bytes, 100 at 20 a second, the others at 1; 80 flops take less.
    rates = dataclasses.replace(
      _UNIT,
      memory_bytes_per_s=1.0,
      caches=cost.Caches(most_bytes=100.0, bytes_per_s=20.0),
    )
    found = self._dot_s(2, 2, 10, rates)
    self.assertAlmostEqual(found, 100 / 20 + 76 + 0.01)
    small = self._dot_s(1, 1, 2, rates)
    self.assertAlmostEqual(small, 4 + 0.01)

  def test_a_large_product_of_a_cpu_is_faster_by_its_flops(self):
    seconds = [self._dot_s(n, n, n, cost.CPU) for n in (1024, 32)]
    self.assertGreater(2 * 1024**3 / seconds[0], 3 * 2 * 32**3 / seconds[1])


if __name__ == "__main__":
  absltest.main()
