"""Steps of growing depth, and what is written about their planning."""

import importlib.util
import os
import unittest
import xml.etree.ElementTree as ElementTree

import jax
import pytest
from absl.testing import absltest, parameterized

os.environ.setdefault("KERAS_BACKEND", "jax")
packages = ("equinox", "flax", "keras", "optax")
missing = [p for p in packages if importlib.util.find_spec(p) is None]
if missing and not os.environ.get("CI"):
  raise unittest.SkipTest(f"{missing} are not installed; see .[test].")

from benchmarks import deep_steps, scaling_report  # noqa: E402


def _num_equations(name, depth):
  step = deep_steps.STEPS[name].build(depth)
  args = jax.eval_shape(step.make_args)
  return len(jax.make_jaxpr(step.function)(*args).eqns)


class StepsTest(parameterized.TestCase):
  @parameterized.parameters(*deep_steps.STEPS)
  def test_each_layer_adds_the_same(self, name):
    first, second, third = (_num_equations(name, d) for d in (2, 3, 4))
    self.assertGreater(second, first)
    self.assertEqual(third - second, second - first)

  @pytest.mark.slow
  def test_a_step_runs(self):
    step = deep_steps.STEPS[deep_steps.SMALLEST].build(1)
    args = step.make_args()
    shapes = jax.tree.map(lambda leaf: leaf.shape, args[:2])
    *state, loss = jax.jit(step.function)(*args)
    self.assertEqual(jax.tree.map(lambda leaf: leaf.shape, (*state,)), shapes)
    self.assertGreater(float(loss), 0)


def _row(step, size, planning_s, compile_s=None):
  effort = {
    "planning_s": planning_s,
    "us_per_instruction": 1e6 * planning_s / size,
    "temp_bytes": 2_000_000,
    "lower_bound_bytes": 1_000_000,
    "status": "feasible",
  }
  return {
    "step": step,
    "num_instructions": size,
    "schedule_s": 0.5,
    "compile_s": compile_s,
    "xla_temp_bytes": 3_000_000,
    "efforts": {"normal": effort, "fast": effort},
  }


def _edits_row(step, size, seconds):
  limit = {"seconds": seconds, "us_each": 1e6 * seconds / size, "extra": 0.05}
  return {
    "step": step,
    "num_instructions": size,
    "limit": {
      "normal": limit,
      "fast": {"seconds": seconds / 4, "us_each": 1.0, "smallest_bytes": 9},
    },
    "placement": {
      "seconds": 0.01,
      "us_each": 20.0,
      "num_buffers": 500,
      "height_bytes": 1_010,
      "lower_bound_bytes": 1_000,
    },
  }


class ReportTest(absltest.TestCase):
  def test_points_of_proportional_times_lie_on_a_line(self):
    sizes = (1_000, 10_000, 100_000)
    rows = [_row("decoder", size, size * 1e-3) for size in sizes]
    root = ElementTree.fromstring(scaling_report.plot(rows))
    line, schedule = root.iter("{http://www.w3.org/2000/svg}polyline")
    points = [
      tuple(map(float, point.split(",")))
      for point in line.get("points", "").split()
    ]
    (x0, y0), (x1, y1), (x2, y2) = points
    self.assertAlmostEqual(x1 - x0, x2 - x1, delta=0.2)
    self.assertAlmostEqual(y1 - y0, y2 - y1, delta=0.2)
    self.assertLess(y2, y0)
    heights = {p.split(",")[1] for p in schedule.get("points", "").split()}
    self.assertLen(heights, 1)
    texts = {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")}
    self.assertContainsSubset({"1000", "10000", "100000", "1 s"}, texts)

  def test_rows_are_cells(self):
    rows = [_row("decoder", 1_000, 0.5, 4.0), _row("decoder", 10_000, 5.0)]
    section = scaling_report.section(rows)
    cells = "| decoder | 1,000 | 0.50 | 4.0 | 0.50 | 500 | 0.50 | 3.00 | 2.00 |"
    self.assertIn(cells, section)
    self.assertIn("| decoder | 10,000 | 0.50 |  | 5.00 | 500 |", section)
    self.assertEqual(scaling_report.section([]), "")

  def test_limits_and_placements_have_a_table_and_a_plot_of_their_own(self):
    rows = [_row("decoder", 1_000, 0.5), _edits_row("decoder", 1_000, 2.0)]
    section = scaling_report.section(rows)
    self.assertIn("| decoder | 1,000 | 0.50 |  | 0.50 | 500 |", section)
    cells = "| decoder | 1,000 | 2.00 | 2,000 | 0.50 | 0.25 | 5.00 | no plan |"
    self.assertIn(f"{cells} 500 | 0.010 | 20 | 1.00 |", section)
    rows.append(_edits_row("decoder", 10_000, 20.0))
    root = ElementTree.fromstring(scaling_report.edits_plot(rows))
    lines = [*root.iter("{http://www.w3.org/2000/svg}polyline")]
    self.assertLen(lines, 2)
    texts = {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")}
    self.assertIn("placement: all", texts)

  def test_points_of_other_parts_are_not_those_of_orders(self):
    rows = [_row("decoder", 1_000, 0.5), _row("decoder", 10_000, 5.0)]
    plot = scaling_report.plot(rows)
    self.assertEqual(
      scaling_report.plot([*rows, _edits_row("decoder", 1_000, 2.0)]), plot
    )


if __name__ == "__main__":
  absltest.main()
