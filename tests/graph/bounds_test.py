import dataclasses

import random_graphs
from absl.testing import absltest

from jaxmem.graph import Buffer, bounds, liveness


def _optimum(graph):
  return min(
    liveness.peak_bytes(graph, order)
    for order in random_graphs.all_orders(graph)
  )


class BoundsTest(absltest.TestCase):
  def test_fan_in(self):
    # join needs 3 + 5 and makes 2: whatever the order, 10 bytes are live.
    graph = random_graphs.dataflow(
      [("load", 3, ()), ("scale", 5, ()), ("join", 2, ("load", "scale"))]
    )
    cut = bounds.MinCut(graph)
    self.assertEqual(bounds.lower_bound(graph, (0, 1, 2), 10, cut), 10)
    self.assertEqual(cut.num_flows, 1)

  def test_counts_what_must_cross(self):
    # x (9) is read by last, which also needs middle: while middle runs, either
    # x or nothing of it is live, but x precedes middle. 9 + 1 + 4.
    graph = random_graphs.dataflow(
      [
        ("x", 9, ()),
        ("small", 1, ("x",)),
        ("middle", 4, ("small",)),
        ("last", 1, ("x", "middle")),
      ]
    )
    self.assertEqual(bounds.MinCut(graph).bound(2), 14)

  def test_assumptions_raise_the_bound(self):
    # Two chains a (7) -> b (1), c (5) -> d (1). Alone a needs 7; if c ran
    # before a and d after, c's 5 bytes are live too.
    graph = random_graphs.dataflow(
      [("a", 7, ()), ("b", 1, ("a",)), ("c", 5, ()), ("d", 1, ("c",))]
    )
    cut = bounds.MinCut(graph)
    self.assertEqual(cut.bound(0), 7)
    self.assertEqual(cut.bound(0, before=[2], after=[3]), 12)
    self.assertEqual(cut.bound(0), 7)

  def test_subtracts_what_an_output_may_share(self):
    buffers = [
      Buffer(name="a", size_bytes=8, touchers=(0, 1), definer=0),
      Buffer(name="b", size_bytes=6, touchers=(1,), definer=1),
    ]
    graph = random_graphs.build([(), (0,)], buffers, shares=[(), ((0, 1),)])
    # a and b together while n1 runs, 6 bytes of them shared.
    self.assertEqual(bounds.MinCut(graph).bound(1), 8)

  def test_an_operand_read_later_cannot_be_shared(self):
    buffers = [
      Buffer(name="a", size_bytes=8, touchers=(0, 1, 2), definer=0),
      Buffer(name="b", size_bytes=6, touchers=(1, 2), definer=1),
    ]
    graph = random_graphs.build(
      [(), (0,), (0, 1)], buffers, shares=[(), ((0, 1),), ()]
    )
    self.assertEqual(bounds.MinCut(graph).bound(1), 14)

  def test_never_above_the_optimum(self):
    for seed in range(300):
      graph = random_graphs.random_graph(seed, 3 + seed % 5)
      order = next(random_graphs.all_orders(graph))
      bound = bounds.lower_bound(graph, order, graph.num_nodes)
      self.assertLessEqual(bound, _optimum(graph), msg=str(seed))

  def test_sides_are_closed_and_nested(self):
    for seed in range(60):
      graph = random_graphs.random_graph(seed, 8)
      cut = bounds.MinCut(graph)
      for node in range(graph.num_nodes):
        least, most = cut.side(node, "least"), cut.side(node, "most")
        self.assertLessEqual(least, most)
        for side in (least, most):
          self.assertNotIn(node, side)
          self.assertContainsSubset(graph.nodes[node].predecessors, side)
          for inside in side:
            self.assertContainsSubset(graph.nodes[inside].predecessors, side)

  def test_stops_at_max_flows(self):
    graph = random_graphs.train_step(5)
    cut = bounds.MinCut(graph)
    bounds.lower_bound(graph, range(graph.num_nodes), 3, cut)
    self.assertEqual(cut.num_flows, 3)

  def test_a_cut_serves_nodes_with_other_extra_bytes(self):
    for seed in range(60):
      graph = random_graphs.random_graph(seed, 8)
      order, number = range(graph.num_nodes), graph.num_nodes
      cut = bounds.MinCut(graph)
      bounds.lower_bound(graph, order, number, cut)
      num_flows = cut.num_flows
      for sign in (-1, 1):
        nodes = tuple(
          dataclasses.replace(
            node, extra_bytes=max(0, node.extra_bytes + sign * (7 * i % 5))
          )
          for i, node in enumerate(graph.nodes)
        )
        other = dataclasses.replace(graph, nodes=nodes)
        self.assertEqual(
          bounds.lower_bound(other, order, number, cut),
          bounds.lower_bound(other, order, number),
        )
      # What was cut once is not cut again.
      self.assertLessEqual(num_flows, cut.num_flows)
      self.assertLessEqual(cut.num_flows, number)

  def test_empty_graph(self):
    graph = random_graphs.build([], [])
    cut = bounds.MinCut(graph)
    self.assertEqual(bounds.lower_bound(graph, (), 5, cut), 0)
    self.assertEqual(cut.num_flows, 0)


if __name__ == "__main__":
  absltest.main()
