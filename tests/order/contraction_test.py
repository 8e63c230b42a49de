from unittest import mock

import random_graphs
from absl.testing import absltest
from naive_peak import check_peak

from jaxmem.graph import Buffer, liveness
from jaxmem.order import contract, contraction


def _optimum(graph):
  return min(
    liveness.peak_bytes(graph, order)
    for order in random_graphs.all_orders(graph)
  )


class ContractionTest(absltest.TestCase):
  def test_keeps_the_optimum(self):
    for seed in range(1200):
      graph = random_graphs.random_graph(seed, 3 + seed % 4)
      small = contract(graph).graph
      self.assertEqual(_optimum(small), _optimum(graph), msg=str(seed))

  def test_every_expanded_order_has_the_contracted_peak(self):
    for seed in range(300):
      graph = random_graphs.random_graph(seed, 4 + seed % 9)
      contraction = contract(graph)
      orders = random_graphs.sample_orders(contraction.graph, 3, seed)
      initial = random_graphs.sample_orders(graph, 1, seed)[0]
      for order in (*orders, contraction.shrink(initial)):
        expanded = contraction.expand(order)
        peak_bytes = liveness.peak_bytes(contraction.graph, order)
        check_peak(graph, expanded, peak_bytes)

  def test_many_pairs_of_a_node_ask_once_for_each_operand(self):
    # An optimizer's update in one fusion: any gradient may be written over by
    # any of the new values, but all of them are read once more.
    number = 30
    nodes = [(), (0,), (0, 1)]
    read = range(number)
    buffers = [
      Buffer(name=f"a{n}", size_bytes=8, touchers=(0, 1, 2), definer=0)
      for n in read
    ] + [
      Buffer(name=f"b{n}", size_bytes=8, touchers=(1, 2), definer=1)
      for n in read
    ]
    pairs = tuple((a, number + b) for a in read for b in read)
    graph = random_graphs.build(nodes, buffers, shares=((), pairs, ()))
    groups = contraction._Groups
    with mock.patch.object(
      groups, "precedes", autospec=True, side_effect=groups.precedes
    ) as precedes:
      contract(graph)
    self.assertLess(precedes.call_count, len(pairs))

  def test_a_chain_that_only_grows_becomes_one_node(self):
    # Every value is read by the last node: nothing is freed before it.
    graph = random_graphs.dataflow(
      [("a", 3, ()), ("b", 5, ("a",)), ("c", 7, ("a", "b"))]
    )
    contraction = contract(graph)
    self.assertEqual(contraction.members, ((0, 1, 2),))
    self.assertEqual(contraction.expand((0,)), (0, 1, 2))

  def test_a_node_with_a_higher_peak_is_not_glued(self):
    buffers = [Buffer(name="a", size_bytes=3, touchers=(0, 1), definer=0)]
    graph = random_graphs.build(
      [(), (0,), (0,)], buffers, extra_bytes=(9, 0, 0)
    )
    # n0 has two successors; n1 and n2 start nothing and run right after it.
    self.assertEqual(contract(graph).members, ((0, 1, 2),))
    graph = random_graphs.build(
      [(), (0,), (0,)], buffers, extra_bytes=(0, 0, 9)
    )
    self.assertEqual(contract(graph).members, ((0, 1), (2,)))

  def test_a_sure_share_becomes_one_buffer(self):
    # n1 is the last to read a and writes b over it; n2 is the last to read b.
    buffers = [
      Buffer(name="a", size_bytes=8, touchers=(0, 1), definer=0),
      Buffer(name="b", size_bytes=8, touchers=(1, 2), definer=1),
    ]
    graph = random_graphs.build(
      [(), (0,), (1,)], buffers, shares=[(), ((0, 1),), ()]
    )
    contraction = contract(graph)
    self.assertLen(contraction.graph.buffers, 1)
    self.assertEqual(contraction.members, ((0, 1, 2),))
    self.assertEqual(_optimum(contraction.graph), 8)

  def test_a_share_that_needs_the_right_order_stays(self):
    # n2 reads a as well, in no order with n1: b shares only if n2 came first.
    buffers = [
      Buffer(name="a", size_bytes=8, touchers=(0, 1, 2), definer=0),
      Buffer(name="b", size_bytes=8, touchers=(1,), definer=1),
      Buffer(name="c", size_bytes=1, touchers=(2,), definer=2),
    ]
    graph = random_graphs.build(
      [(), (0,), (0,)], buffers, shares=[(), ((0, 1),), ()]
    )
    self.assertLen(contract(graph).graph.buffers, 3)
    self.assertEqual(_optimum(contract(graph).graph), _optimum(graph))

  def test_an_implied_precedence_does_not_count(self):
    # n3 must follow n0 and n2, but n0 precedes n2 anyway: glued behind n2.
    buffers = [
      Buffer(name="a", size_bytes=3, touchers=(0, 1), definer=0),
      Buffer(name="b", size_bytes=5, touchers=(1, 2), definer=1),
      Buffer(name="c", size_bytes=7, touchers=(2, 3), definer=2),
    ]
    graph = random_graphs.build([(), (0,), (1,), (0, 2)], buffers)
    self.assertIn((2, 3), contract(graph).members)

  def test_a_poor_share_keeps_its_node_free(self):
    # If n3 ran early, a would die at n2 and take the output from x.
    buffers = [
      Buffer(name="a", size_bytes=1, touchers=(0, 2, 3), definer=0),
      Buffer(name="x", size_bytes=5, touchers=(1, 2), definer=1),
      Buffer(name="out", size_bytes=8, touchers=(2,), definer=2),
    ]
    graph = random_graphs.build(
      [(), (), (0, 1), (0,)],
      buffers,
      shares=[(), (), ((0, 2), (1, 2)), ()],
    )
    self.assertEqual(_optimum(graph), 9)
    self.assertEqual(_optimum(contract(graph).graph), 9)


if __name__ == "__main__":
  absltest.main()
