import random_graphs
from absl.testing import absltest, parameterized
from naive_peak import check_peak

from jaxmem.graph import ValidationError, check_order


class CheckOrderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # load and scale feed join; join feeds store.
    self.graph = random_graphs.dataflow(
      [
        ("load", 3, ()),
        ("scale", 5, ()),
        ("join", 2, ("load", "scale")),
        ("store", 1, ("join",)),
      ]
    )

  def test_accepts_every_order(self):
    for order in random_graphs.all_orders(self.graph):
      check_order(self.graph, order)

  @parameterized.named_parameters(
    ("missing", (0, 1, 2), ["node 'store' never runs"]),
    (
      "repeated",
      (0, 1, 2, 1),
      ["node 'scale' runs at step 1 and again at 3", "node 'store' never runs"],
    ),
    ("unknown", (0, 1, 2, 3, 4), ["step 4 runs unknown node 4"]),
    ("negative", (0, 1, 2, 3, -1), ["step 4 runs unknown node -1"]),
    (
      "swapped",
      (0, 1, 3, 2),
      ["node 'store' runs at step 2, before its predecessor 'join' at step 3"],
    ),
    (
      "two precedences",
      (2, 0, 1, 3),
      [
        "node 'join' runs at step 0, before its predecessor 'load' at step 1",
        "node 'join' runs at step 0, before its predecessor 'scale' at step 2",
      ],
    ),
  )
  def test_names_each_fault(self, order, faults):
    with self.assertRaises(ValidationError) as context:
      check_order(self.graph, order)
    self.assertSequenceEqual(context.exception.faults, faults)

  def test_message_is_cut_short(self):
    graph = random_graphs.build([()] * 50, [])
    with self.assertRaises(ValidationError) as context:
      check_order(graph, ())
    self.assertLen(context.exception.faults, 50)
    self.assertEndsWith(str(context.exception), "and 30 more")

  def test_recomputes_the_peak(self):
    # load 3, scale 5, join 2 are all live while join runs: 10.
    check_peak(self.graph, (0, 1, 2, 3), 10)
    with self.assertRaisesRegex(
      ValidationError, "peak is 10 bytes, but 9 were claimed"
    ):
      check_peak(self.graph, (0, 1, 2, 3), 9)

  def test_every_swap_of_a_precedence_is_found(self):
    graph = random_graphs.train_step(4)
    order = list(range(graph.num_nodes))
    for index, node in enumerate(graph.nodes):
      for predecessor in node.predecessors:
        broken = order.copy()
        broken[index], broken[predecessor] = predecessor, index
        with self.assertRaisesRegex(
          ValidationError, f"node '{node.name}' runs at step"
        ):
          check_order(graph, broken)


if __name__ == "__main__":
  absltest.main()
