import re

import random_graphs
from absl.testing import absltest, parameterized

from jaxmem.graph import Buffer, Graph, Node, check_acyclic, topological_order


def _buffer(**changes) -> Buffer:
  fields = {"name": "b", "size_bytes": 4, "touchers": (0, 1), "definer": 0}
  return Buffer(**{**fields, **changes})


class GraphTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"size_bytes": -1}, "size_bytes must not be negative, got -1"),
    ({"touchers": (1, 0)}, "must ascend without repetition"),
    ({"touchers": (0, 0)}, "must ascend without repetition"),
    ({"definer": None}, "a definer is expected iff"),
    ({"live_at_start": True}, "a definer is expected iff"),
    ({"definer": 2}, "definer 2 is not among"),
  )
  def test_buffer_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _buffer(**changes)

  def test_node_refuses_negative_extra_bytes(self):
    with self.assertRaisesRegex(ValueError, "extra_bytes must not be negative"):
      Node(name="n", predecessors=(), extra_bytes=-1)

  def test_names_the_cycle(self):
    nodes = (
      Node(name="a", predecessors=()),
      Node(name="b", predecessors=(0, 3)),
      Node(name="c", predecessors=(1,)),
      Node(name="d", predecessors=(2,)),
      Node(name="e", predecessors=(3,)),
    )
    cycle = re.escape("'b' -> 'c' -> 'd' -> 'b'")
    with self.assertRaisesRegex(ValueError, f"cycle, got {cycle}"):
      Graph(nodes=nodes, buffers=())

  def test_accepts_an_order_that_is_not_by_index(self):
    nodes = (
      Node(name="late", predecessors=(1,)),
      Node(name="early", predecessors=()),
    )
    graph = Graph(nodes=nodes, buffers=())
    self.assertEqual(graph.successors, ((), (0,)))
    check_acyclic([(1,), ()], ["late", "early"])
    self.assertEqual(topological_order([(1,), ()]), [1, 0])

  def test_refuses_unknown_indices(self):
    node = Node(name="n", predecessors=(7,))
    with self.assertRaisesRegex(ValueError, "predecessors must be node"):
      Graph(nodes=(node,), buffers=())
    node = Node(name="n", predecessors=())
    with self.assertRaisesRegex(ValueError, "touchers must be node indices"):
      Graph(nodes=(node,), buffers=(_buffer(),))

  @parameterized.parameters(
    ((0, 5), "shares must name buffers below 2, got 5"),
    ((0, 0), "must be another one that the node touches"),
    ((1, 0), "must be defined by the node, got 'a'"),
  )
  def test_refuses_share(self, share, message):
    nodes = (
      Node(name="n", predecessors=()),
      Node(name="m", predecessors=(0,), shares=(share,)),
    )
    buffers = (
      _buffer(name="a"),
      _buffer(name="b", touchers=(1,), definer=1),
    )
    with self.assertRaisesRegex(ValueError, message):
      Graph(nodes=nodes, buffers=buffers)

  def test_indices_of_a_chain(self):
    graph = random_graphs.dataflow(
      [("x", 3, ()), ("y", 5, ("x",)), ("z", 7, ("x", "y"))]
    )
    self.assertEqual(graph.successors, ((1, 2), (2,), ()))
    self.assertEqual(graph.buffers_of_node, ((0,), (0, 1), (0, 1, 2)))
    self.assertSequenceEqual(graph.arrays.size_bytes.tolist(), [3, 5, 7])
    self.assertSequenceEqual(graph.arrays.touchers.tolist(), [0, 1, 2, 1, 2, 2])
    self.assertSequenceEqual(graph.arrays.toucher_starts.tolist(), [0, 3, 5])


if __name__ == "__main__":
  absltest.main()
