"""Bounds of CP-SAT are exact beyond what a float can hold."""

import cross_check_graphs
import random_graphs
from absl.testing import absltest, parameterized

from jaxmem.order import CpSatOrderer, unchanged
from jaxmem.order.exact import OrderModel


def _huge_graph(bits: int):
  """The "simple" cross-check graph, with odd sizes of about 2**bits bytes."""
  scale = (1 << bits) // 128
  rows = [
    ("a", 30 * scale + 1, ()),
    ("b", 30 * scale + 3, ("a",)),
    ("c", 10 * scale + 5, ("a",)),
    ("d", 30 * scale + 7, ("b",)),
    ("e", 10 * scale + 9, ("c", "d")),
  ]
  return random_graphs.dataflow(rows)


class BoundTest(parameterized.TestCase):
  @parameterized.parameters(20, 54, 57, 59)
  def test_the_model_proves_the_optimum_to_the_byte(self, bits):
    graph = _huge_graph(bits)
    optimum = min(cross_check_graphs.peaks_by_order(graph).values())
    status, order, bound = OrderModel(graph, 0, 1 << 60).solve(1.0)
    self.assertEqual(status, "optimal")
    self.assertIsNotNone(order)
    self.assertEqual(bound, optimum)

  def test_the_orderer_proves_its_order_to_the_byte(self):
    graph = _huge_graph(58)
    peaks = cross_check_graphs.peaks_by_order(graph)
    worst = max(peaks, key=lambda order: peaks[order])
    result = CpSatOrderer().improve(graph, unchanged(graph, worst, 0))
    self.assertEqual(result.peak_bytes, min(peaks.values()))
    self.assertEqual(result.lower_bound_bytes, result.peak_bytes)
    self.assertEqual(result.status, "optimal")

  def test_a_float_would_not_do(self):
    # Why the bound is not read from `best_objective_bound`.
    graph = _huge_graph(57)
    optimum = min(cross_check_graphs.peaks_by_order(graph).values())
    self.assertNotEqual(round(float(optimum)), optimum)


if __name__ == "__main__":
  absltest.main()
