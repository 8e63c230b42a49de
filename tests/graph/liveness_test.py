import random_graphs
from absl.testing import absltest
from naive_peak import naive_peak_bytes

from jaxmem.graph import Buffer, liveness


def _in_place_chain(**operand):
  """n0 makes a (8 bytes); n1 reads it and makes b (6 bytes); n2 reads b."""
  buffers = [
    Buffer(name="a", size_bytes=8, touchers=(0, 1), definer=0, **operand),
    Buffer(name="b", size_bytes=6, touchers=(1, 2), definer=1),
  ]
  return random_graphs.build(
    [(), (0,), (1,)],
    buffers,
    extra_bytes=(0, 1, 0),
    shares=[(), ((0, 1),), ()],
  )


class LivenessTest(absltest.TestCase):
  def test_shared_bytes_are_counted_once(self):
    # n0: a. n1: a + b + 1 extra - 6 shared. n2: b.
    live = liveness.live_bytes(_in_place_chain(), (0, 1, 2))
    self.assertSequenceEqual(live.tolist(), [8, 9, 6])

  def test_an_output_is_not_shared(self):
    # a stays to the end: n1: 8 + 6 + 1. n2: 8 + 6.
    live = liveness.live_bytes(_in_place_chain(live_at_end=True), (0, 1, 2))
    self.assertSequenceEqual(live.tolist(), [8, 15, 14])

  def test_each_buffer_is_shared_once(self):
    # Both operands die at n2; the first pair takes the output, saving 2 bytes:
    # 2 + 8 + 8 - 2.
    buffers = [
      Buffer(name="x", size_bytes=2, touchers=(0, 2), definer=0),
      Buffer(name="y", size_bytes=8, touchers=(1, 2), definer=1),
      Buffer(name="z", size_bytes=8, touchers=(2,), definer=2),
    ]
    graph = random_graphs.build(
      [(), (), (0, 1)], buffers, shares=[(), (), ((0, 2), (1, 2))]
    )
    live = liveness.live_bytes(graph, (0, 1, 2))
    self.assertSequenceEqual(live.tolist(), [2, 10, 16])

  def test_live_ranges(self):
    buffers = [
      Buffer(
        name="unread",
        size_bytes=1,
        touchers=(),
        definer=None,
        live_at_start=True,
      ),
      Buffer(
        name="parameter",
        size_bytes=1,
        touchers=(1,),
        definer=None,
        live_at_start=True,
      ),
      Buffer(
        name="output", size_bytes=1, touchers=(1,), definer=1, live_at_end=True
      ),
      Buffer(name="value", size_bytes=1, touchers=(0, 2), definer=0),
    ]
    graph = random_graphs.build([(), (), (0,)], buffers)
    # Order 0, 2, 1: the value is live at steps 0 and 1, the rest by its flags.
    ranges = liveness.live_ranges(graph, (0, 2, 1))
    self.assertSequenceEqual(ranges.tolist(), [[0, 0], [0, 3], [2, 3], [0, 2]])

  def test_empty_graph(self):
    graph = random_graphs.build([], [])
    self.assertEqual(liveness.peak_bytes(graph, ()), 0)

  def test_agrees_with_the_naive_definition(self):
    for seed in range(150):
      graph = random_graphs.random_graph(seed, 3 + seed % 6)
      for order in random_graphs.sample_orders(graph, 4, seed):
        self.assertEqual(
          liveness.peak_bytes(graph, order),
          naive_peak_bytes(graph, order),
        )


if __name__ == "__main__":
  absltest.main()
