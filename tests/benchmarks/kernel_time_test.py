"""The benchmark of what kernels take on a CPU, in small."""

import benchmark_process
import pytest
from absl.testing import absltest

from benchmarks import kernel_time_report


class KernelTimeTest(absltest.TestCase):
  @pytest.mark.slow
  def test_kernels_by_kind(self):
    (row,) = benchmark_process.rows(
      "kernel_time_benchmark",
      "--models=mobilenet_v2",
      "--size=tiny",
      "--batch=1",
      "--runs=2",
    )
    kinds = row["kinds"]
    self.assertGreater(row["kept_s"], 0)
    # Depthwise convolutions run in loops, others are products: tiny ones.
    multiplied = {"looped", "products", "small products"}
    self.assertContainsSubset({"looped", "small products", "other"}, kinds)
    for key in ("measured_s", "estimated_s"):
      total = sum(kind[key] for kind in kinds.values())
      self.assertAlmostEqual(row[key], total, places=9)
      self.assertGreater(total, 0)
    for name, kind in kinds.items():
      self.assertGreaterEqual(kind["kernels"], 1, name)
      self.assertEqual(kind["flops"] > 0, name in multiplied, name)

  def test_a_table_by_kind(self):
    def row(step, measured_s, *, held_out):
      kind = {"kernels": 2.0, "measured_s": measured_s, "estimated_s": 0.3}
      total = {"measured_s": measured_s, "estimated_s": 0.3}
      # glibc keeps what is smaller than 32 MiB.
      temp_bytes = 200_000_000 if held_out else 1 << 24
      mapping = {"temp_bytes": temp_bytes, "mapping_s": 0.1 * measured_s}
      return {
        "step": step,
        "held_out": held_out,
        "kinds": {"products": kind},
        **total,
        **mapping,
      }

    rows = [
      row("a", 0.3, held_out=False),
      row("b", 0.1, held_out=False),
      row("c", 0.6, held_out=True),
    ]
    text = kernel_time_report.text_of(rows)
    self.assertIn("| zoo | 4 | 0.40 | 0.60 | 1.50 |", text)
    self.assertIn("| held out | 2 | 0.60 | 0.30 | 0.50 |", text)
    self.assertNotIn("across rows", text)
    text = " ".join(text.split())
    self.assertIn("2.00 by the median of 2, from 1.00 (`a`) to 3.00", text)
    # 60 ms of 200 MB; the others are not mapped anew.
    self.assertIn("0.30 ns a byte by the median of 1", text)
    self.assertEqual(text.count("ns a byte"), 1)


if __name__ == "__main__":
  absltest.main()
