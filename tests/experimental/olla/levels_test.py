import random_graphs
from absl.testing import absltest

from jaxmem.experimental.olla import levels


class LevelsTest(absltest.TestCase):
  def test_of_a_diamond(self):
    # 0 -> 1 -> 3 and 0 -> 2 -> 3, and 4 alone.
    graph = random_graphs.build([(), (0,), (0,), (1, 2), ()], [])
    self.assertSequenceEqual(levels.asap(graph).tolist(), [0, 1, 1, 2, 0])
    self.assertSequenceEqual(levels.alap(graph).tolist(), [2, 3, 3, 4, 4])

  def test_every_order_keeps_to_them(self):
    for seed in range(150):
      graph = random_graphs.random_graph(seed, 3 + seed % 6)
      for order in random_graphs.sample_orders(graph, 4, seed):
        within = levels.asap(graph)[list(order)] <= range(len(order))
        self.assertTrue(within.all())
        within = levels.alap(graph)[list(order)] >= range(len(order))
        self.assertTrue(within.all())


if __name__ == "__main__":
  absltest.main()
