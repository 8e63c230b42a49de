from unittest import mock

import cross_check_graphs
import random_graphs
from absl.testing import absltest, parameterized
from naive_peak import check_peak

from jaxmem.graph import MinCut, check_order, liveness
from jaxmem.order import (
  CpSatOrderer,
  plan_order,
  probing,
  reduce_displacement,
  total_displacement,
  unchanged,
)
from jaxmem.order.probing import refute


class PlanOrderTest(parameterized.TestCase):
  @parameterized.parameters("fast", "normal", "prove")
  def test_brackets_the_optimum(self, effort):
    for seed in range(60):
      graph = random_graphs.random_graph(seed, 3 + seed % 5)
      initial, *orders = random_graphs.all_orders(graph)
      peaks = [liveness.peak_bytes(graph, o) for o in (initial, *orders)]
      result = plan_order(graph, initial, effort=effort)
      check_peak(graph, result.order, result.peak_bytes)
      self.assertLessEqual(result.lower_bound_bytes, min(peaks))
      self.assertEqual(result.candidates[-1], initial)
      self.assertEqual(result.candidates[0], result.order)
      if effort != "fast":
        self.assertEqual(result.peak_bytes, min(peaks), msg=str(seed))

  @parameterized.named_parameters(*cross_check_graphs.CASES)
  def test_programs_of_the_authors(self, graph, least, most):
    peaks = cross_check_graphs.peaks_by_order(graph)
    self.assertEqual((min(peaks.values()), max(peaks.values())), (least, most))
    worst = max(peaks, key=lambda order: peaks[order])
    result = plan_order(graph, worst)
    self.assertEqual(result.peak_bytes, least)
    self.assertEqual(result.status, "optimal")

  def test_a_start_is_improved_and_is_no_candidate_by_itself(self):
    graph = random_graphs.train_step(12, num_branches=2)
    initial = tuple(range(graph.num_nodes))
    alone = plan_order(graph)
    again = plan_order(graph, start=alone.order)
    self.assertLessEqual(again.peak_bytes, alone.peak_bytes)
    self.assertLess(again.peak_bytes, liveness.peak_bytes(graph, initial))
    self.assertEqual(again.candidates[-1], initial)
    # A start as bad as can be costs nothing but effort.
    for seed in range(30):
      graph = random_graphs.random_graph(seed, 3 + seed % 5)
      orders = list(random_graphs.all_orders(graph))
      peaks = {o: liveness.peak_bytes(graph, o) for o in orders}
      worst = max(peaks, key=lambda order: peaks[order])
      result = plan_order(graph, orders[0], start=worst)
      self.assertEqual(result.peak_bytes, min(peaks.values()), msg=str(seed))

  def test_an_optimal_order_is_kept(self):
    graph = random_graphs.dataflow(
      [("a", 3, ()), ("b", 5, ("a",)), ("c", 7, ("b",))]
    )
    result = plan_order(graph)
    self.assertEqual(result.order, (0, 1, 2))
    self.assertEqual(result.method, "min cut")

  def test_refuses_what_it_cannot_plan(self):
    graph = random_graphs.build([(), (0,)], [])
    with self.assertRaisesRegex(ValueError, "effort must be one of fast"):
      plan_order(graph, effort="slow")  # pyright: ignore[reportArgumentType]
    with self.assertRaisesRegex(
      ValueError, "n1' runs at step 0, before its predecessor"
    ):
      plan_order(graph, (1, 0))

  def test_is_deterministic(self):
    graph = random_graphs.train_step(12, num_branches=2)
    results = [plan_order(graph) for _ in range(2)]
    self.assertEqual(*results)

  def test_a_large_graph_is_planned_in_few_passes(self):
    graph = random_graphs.train_step(800)
    result = plan_order(graph, effort="fast")
    check_order(graph, result.order)
    self.assertLessEqual(result.num_passes, 12)
    self.assertLess(result.peak_bytes, 1.01 * result.lower_bound_bytes)


class CpSatOrderTest(absltest.TestCase):
  def test_finds_the_optimum(self):
    for seed in range(80):
      graph = random_graphs.random_graph(seed, 3 + seed % 5)
      orders = list(random_graphs.all_orders(graph))
      peaks = [liveness.peak_bytes(graph, order) for order in orders]
      worst = orders[peaks.index(max(peaks))]
      result = CpSatOrderer().improve(graph, unchanged(graph, worst, 0))
      check_peak(graph, result.order, result.peak_bytes)
      self.assertLessEqual(result.lower_bound_bytes, min(peaks), msg=str(seed))
      if not any(len(node.shares) > 1 for node in graph.nodes):
        self.assertEqual(result.peak_bytes, min(peaks), msg=str(seed))
        self.assertEqual(result.status, "optimal")

  def test_proves_a_train_step(self):
    graph = random_graphs.train_step(3, num_branches=2)
    result = CpSatOrderer().improve(
      graph, unchanged(graph, range(graph.num_nodes), 0)
    )
    check_peak(graph, result.order, result.peak_bytes)
    self.assertEqual(result.status, "optimal")


class ProbingTest(absltest.TestCase):
  def test_never_refutes_the_optimum(self):
    num_refuted = 0
    for seed in range(150):
      graph = random_graphs.random_graph(seed, 4 + seed % 4)
      optimum = min(
        liveness.peak_bytes(graph, o) for o in random_graphs.all_orders(graph)
      )
      self.assertFalse(refute(graph, optimum), msg=str(seed))
      num_refuted += refute(graph, optimum - 1)
    self.assertGreater(num_refuted, 140)

  def test_stops_at_max_flows(self):
    graph = random_graphs.train_step(4, num_branches=2)
    peak_bytes = plan_order(graph).peak_bytes
    cuts = []

    def make(graph):
      cuts.append(MinCut(graph))
      return cuts[-1]

    max_flows = 3 * graph.num_nodes
    with mock.patch.object(probing, "MinCut", make):
      self.assertFalse(refute(graph, peak_bytes, max_flows=max_flows - 1))
      self.assertEmpty(cuts)
      self.assertFalse(refute(graph, peak_bytes, max_flows=max_flows))
    num_flows = sum(cut.num_flows for cut in cuts)
    self.assertBetween(num_flows, max_flows - 2, max_flows + 2)


class DisplacementTest(absltest.TestCase):
  def test_total_displacement(self):
    # 2 moves two steps forward, 0 and 1 one step back each.
    self.assertEqual(total_displacement((2, 0, 1), (0, 1, 2)), 4)
    self.assertEqual(total_displacement((2, 0, 1), (2, 0, 1)), 0)

  def test_moves_only_what_memory_asks_for(self):
    # Freeing big (9) before the wide value (8) keeps the peak at 10. Nothing
    # asks for the two tiny chains to be swapped, so they are swapped back.
    graph = random_graphs.dataflow(
      [
        ("tiny", 1, ()),
        ("tiny_end", 0, ("tiny",)),
        ("speck", 1, ()),
        ("speck_end", 0, ("speck",)),
        ("big", 9, ()),
        ("wide", 8, ()),
        ("big_end", 1, ("big",)),
        ("wide_end", 0, ("wide",)),
      ]
    )
    found = reduce_displacement(graph, range(8), (2, 3, 0, 1, 4, 6, 5, 7))
    self.assertEqual(found, ((0, 1, 2, 3, 4, 6, 5, 7), 10))

  def test_keeps_the_peak(self):
    num_closer = 0
    for seed in range(300):
      graph = random_graphs.random_graph(seed, 4 + seed % 12)
      initial, order = random_graphs.sample_orders(graph, 2, seed)
      found, peak_bytes = reduce_displacement(graph, initial, order)
      check_peak(graph, found, peak_bytes)
      self.assertLessEqual(peak_bytes, liveness.peak_bytes(graph, order))
      closer = total_displacement(found, initial) <= total_displacement(
        order, initial
      )
      num_closer += closer
    self.assertGreater(num_closer, 290)


if __name__ == "__main__":
  absltest.main()
