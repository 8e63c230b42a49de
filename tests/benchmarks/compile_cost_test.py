"""The benchmark of what compiling takes, in small, and its section."""

import benchmark_process
import pytest
from absl.testing import absltest

from benchmarks import compile_cost_report


def _row(model, target, size, jit_s, own_s, planning_s):
  return {
    "model": model,
    "size": "small",
    "target": target,
    "num_instructions": size,
    "jit_wall_s": jit_s,
    "wall_s": own_s,
    "jit_cpu_s": [2 * each for each in jit_s],
    "cpu_s": own_s,
    "planning_s": planning_s,
    "date": "2026-11-23",
  }


class CompileCostTest(absltest.TestCase):
  @pytest.mark.slow
  def test_a_row_for_each_step(self):
    rows = benchmark_process.rows(
      *("compile_cost_benchmark", "--models=alexnet,unet", "--size=tiny"),
      *("--batch=1", "--rounds=2"),
    )
    self.assertEqual([row["model"] for row in rows], ["alexnet", "unet"])
    for row in rows:
      self.assertGreater(row["num_instructions"], 100)
      for name in ("jit_wall_s", "jit_cpu_s", "cpu_s", "planning_s"):
        self.assertLen(row[name], 2)
        self.assertGreater(min(row[name]), 0)
      for planning_s, wall_s in zip(
        row["planning_s"], row["wall_s"], strict=True
      ):
        self.assertLess(planning_s, wall_s)

  def test_ratios_are_of_pairs(self):
    # Pairs are 1.1, 1.2 and 1.5: not the ratio of the medians, 2.2 / 1.
    row = _row("a", "cpu", 10, [2.0, 1.0, 1.0], [2.2, 1.2, 1.5], [0.1] * 3)
    self.assertAlmostEqual(compile_cost_report.ratio(row, "wall_s"), 1.2)
    self.assertAlmostEqual(compile_cost_report.ratio(row, "cpu_s"), 0.6)

  def test_summaries_of_sizes_and_of_what_counts(self):
    rows = [
      _row("b", "cpu", 2500, [2.0], [3.0], [0.5]),
      _row("a", "cpu", 400, [1.0], [9.0], [0.5]),
      _row("a", "cpu", 400, [1.0], [1.2], [0.1]),
    ]
    text = compile_cost_report.section(rows)
    # The first measurement of a is not counted.
    self.assertIn(
      "| cpu | 400 to 400 | 1 | 0.60 | 0.60 | 1.20 | 1.20 | 0.10 | 0.10 |", text
    )
    self.assertIn("| cpu | all | 2 | 0.68 | 0.75 | 1.35 | 1.50 | 0.30 |", text)
    self.assertLess(text.index("| a | small |"), text.index("| b | small |"))
    self.assertEqual(compile_cost_report.section([]), "")


if __name__ == "__main__":
  absltest.main()
