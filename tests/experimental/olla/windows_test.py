import random_graphs
from absl.testing import absltest, parameterized

from jaxmem.experimental.olla import (
  ProgramOptions,
  anchor_updates,
  levels,
  weight_updates,
  without_shares,
)
from jaxmem.experimental.olla.problem import Problem
from jaxmem.experimental.olla.windows import Windows, pairs
from jaxmem.graph import Buffer


def _buffer(
  name: str,
  touchers: tuple[int, ...],
  *,
  definer: int | None = 0,
  size_bytes: int = 1,
  live_at_start: bool = False,
):
  return Buffer(
    name=name,
    size_bytes=size_bytes,
    touchers=touchers,
    definer=definer,
    live_at_start=live_at_start,
  )


class ProblemTest(absltest.TestCase):
  def test_edges_say_all_that_the_graph_says(self):
    # Node 0 makes x for 1; 2 makes nothing and runs after 0; 1 has extra bytes.
    graph = random_graphs.build(
      [(), (0,), (0,)],
      [_buffer("x", (0, 1), size_bytes=6)],
      extra_bytes=[0, 4, 0],
    )
    problem = Problem(graph=graph)
    self.assertEqual(
      [(e.name, e.size_bytes, e.source, e.sinks) for e in problem.edges],
      [
        ("x", 6, 0, (1,)),
        ("extra bytes of n1", 4, 1, ()),
        ("control of n0", 0, 0, (2,)),
        ("control of n2", 0, 2, ()),
      ],
    )
    self.assertEqual(problem.placed, (0, 1))
    self.assertEqual(problem.fan_in, ((), (0,), (2,)))
    self.assertEqual(problem.fan_out, ((0, 2), (1,), (3,)))
    self.assertEqual((problem.unit_bytes, problem.total_bytes), (2, 10))

  def test_what_nothing_touches_has_no_edge(self):
    buffer = _buffer("x", (), definer=None, live_at_start=True)
    problem = Problem(graph=random_graphs.build([()], [buffer]))
    self.assertEqual([e.name for e in problem.edges], ["control of n0"])

  def test_refuses_shares_and_says_what_to_do(self):
    buffers = [_buffer("x", (0, 1)), _buffer("y", (1,), definer=1)]
    graph = random_graphs.build([(), (0,)], buffers, shares=[[], [(0, 1)]])
    with self.assertRaisesRegex(ValueError, "'n1' has shares. Pass without_sh"):
      Problem(graph=graph)
    self.assertLen(Problem(graph=without_shares(graph)).edges, 2)

  def test_refuses_a_definer_that_need_not_come_first(self):
    graph = random_graphs.build([(), ()], [_buffer("x", (0, 1))])
    with self.assertRaisesRegex(ValueError, "does not precede 'n1'"):
      Problem(graph=graph)

  def test_refuses_a_cycle(self):
    with self.assertRaisesRegex(ValueError, "must not form a cycle"):
      random_graphs.build([(1,), (0,)], [])

  def test_refuses_negative_sizes(self):
    with self.assertRaisesRegex(ValueError, "must not be negative, got -1"):
      random_graphs.dataflow([("a", -1, ())])
    with self.assertRaisesRegex(ValueError, "'n0': extra_bytes must not be"):
      random_graphs.build([()], [], extra_bytes=[-3])

  def test_refuses_what_64_bits_cannot_add_up(self):
    half = 1 << 62
    with self.assertRaisesRegex(
      ValueError, r"less than 2\*\*63 bytes, got 922"
    ):
      random_graphs.dataflow([("a", half, ()), ("b", half, ("a",))])
    with self.assertRaisesRegex(ValueError, r"less than 2\*\*63 bytes"):
      random_graphs.build([()], [_buffer("x", (0,))], extra_bytes=[2 * half])

  def test_refuses_what_the_solver_cannot_add_up_exactly(self):
    rows = [("a", (1 << 53) - 2, ()), ("b", 1, ("a",))]
    Problem(graph=random_graphs.dataflow(rows))
    rows.append(("c", 1, ("b",)))
    with self.assertRaisesRegex(ValueError, r"2\*\*53 times 1 bytes"):
      Problem(graph=random_graphs.dataflow(rows))
    # In units of 1024 bytes there is room again.
    scaled = [(name, size << 10, reads) for name, size, reads in rows[:2]]
    Problem(graph=random_graphs.dataflow(scaled))


class WindowsTest(parameterized.TestCase):
  def test_ancestors_are_what_a_walk_finds(self):
    for seed in range(40):
      graph = without_shares(random_graphs.random_graph(seed, 12))
      ancestors = Problem(graph=graph).ancestors
      for v in range(12):
        found, todo = 0, list(graph.nodes[v].predecessors)
        while todo:
          p = todo.pop()
          found |= 1 << p
          todo += graph.nodes[p].predecessors
        self.assertEqual(ancestors[v], found)

  @parameterized.parameters(False, True)
  def test_every_order_is_within_the_windows(self, one_node_per_step):
    options = ProgramOptions(one_node_per_step=one_node_per_step)
    for seed in range(40):
      graph = without_shares(random_graphs.random_graph(seed, 2 + seed % 5))
      problem = Problem(graph=graph)
      windows = Windows.of(problem, options)
      allowed = set(pairs(problem, windows, options))
      for order in random_graphs.all_orders(graph):
        live = [_live(problem, e, order) for e in problem.edges]
        for edge, steps in zip(problem.edges, live, strict=True):
          self.assertLessEqual(steps, {*windows.useful(edge)})
          self.assertLessEqual({*windows.certain(edge)}, steps)
        for j in problem.placed:
          for i in problem.placed[: problem.placed.index(j)]:
            sizes = problem.edges[i].size_bytes, problem.edges[j].size_bytes
            if all(sizes) and live[i] & live[j]:
              self.assertIn((i, j), allowed)

  def test_what_ends_where_another_begins_does_not_coexist(self):
    # a -> b -> c -> d: a's value and c's never meet, a's and b's do.
    graph = random_graphs.dataflow(
      [("a", 1, ()), ("b", 1, "a"), ("c", 1, "b"), ("d", 1, "c")]
    )
    problem = Problem(graph=graph)
    for bound_lifetimes in (False, True):
      options = ProgramOptions(bound_lifetimes=bound_lifetimes)
      windows = Windows.of(problem, options)
      found = pairs(problem, windows, options)
      self.assertEqual(found, [(0, 1), (1, 2), (2, 3)])
      every = ProgramOptions(skip_disjoint_pairs=False)
      self.assertLen(pairs(problem, windows, every), 6)


class AnchorTest(absltest.TestCase):
  def test_an_update_precedes_a_higher_reader_of_its_gradient(self):
    rows = [
      ("loss", 1, ()),
      ("g2", 1, ("loss",)),
      ("w2", 1, ("g2",)),
      ("g1", 1, ("g2",)),
      ("both", 1, ("g1", "g2")),
      ("g0", 1, ("both",)),
    ]
    graph = random_graphs.dataflow(rows)
    anchored = anchor_updates(graph, [2])
    # w2 has level 2, as g1 has; of the readers of g2 only `both` is higher.
    self.assertEqual(anchored.nodes[4].predecessors, (1, 2, 3))

  def test_recognises_updates(self):
    graph = random_graphs.train_step(3)
    names = [graph.nodes[v].name for v in weight_updates(graph)]
    self.assertEqual(sorted(names), ["update0", "update1", "update2"])

  def test_never_makes_a_cycle_and_never_moves_an_update_back(self):
    for seed in range(30):
      graph = random_graphs.random_graph(seed, 9)
      anchored = anchor_updates(graph, range(9))
      later = levels.alap(anchored) - levels.alap(graph)
      self.assertLessEqual(later.max(), 0)


def _live(problem, edge, order):
  """The steps at which an edge is live, by definition."""
  position = {v: t for t, v in enumerate(order)}
  first = 0 if edge.source is None else position[edge.source]
  last = max((position[v] for v in edge.last_touchers), default=first)
  if edge.live_at_end:
    last = problem.num_nodes - 1
  return {*range(first, last + 1)}


if __name__ == "__main__":
  absltest.main()
