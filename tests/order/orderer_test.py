"""The orderer of docs/writing-an-orderer.md, run as it stands there."""

import pathlib
import re

import random_graphs
from absl.testing import absltest
from naive_peak import check_peak

from jaxmem.graph import liveness
from jaxmem.order import (
  CpSatOrderer,
  MinCutSearch,
  Orderer,
  ProbingProver,
  unchanged,
)

_DOC = pathlib.Path(__file__).parents[2] / "docs" / "writing-an-orderer.md"


def _names_of_the_doc():
  names = {}
  for block in re.findall(r"```python\n(.*?)```", _DOC.read_text(), re.DOTALL):
    exec(block, names)
  return names


class OrdererTest(absltest.TestCase):
  def test_the_example_of_the_doc_finds_topological_orders(self):
    order_of = _names_of_the_doc()["order_of"]
    num_better = 0
    for seed in range(100):
      graph = random_graphs.random_graph(seed, 4 + seed % 9)
      initial = random_graphs.sample_orders(graph, 1, seed)[0]
      result = order_of(graph, initial)
      check_peak(graph, result.order, result.peak_bytes)
      self.assertEqual(result.candidates[-1], initial)
      num_better += result.peak_bytes < liveness.peak_bytes(graph, initial)
    self.assertGreater(num_better, 20)

  def test_every_orderer_keeps_what_is_known(self):
    orderers: list[Orderer] = [
      _names_of_the_doc()["LeastNetBytes"](),
      MinCutSearch(),
      ProbingProver(),
      CpSatOrderer(),
    ]
    for seed in range(20):
      graph = random_graphs.random_graph(seed, 3 + seed % 6)
      initial = random_graphs.sample_orders(graph, 1, seed)[0]
      known = unchanged(graph, initial, 0)
      for orderer in orderers:
        found = orderer.improve(graph, known)
        check_peak(graph, found.order, found.peak_bytes)
        self.assertLessEqual(found.peak_bytes, known.peak_bytes)
        self.assertGreaterEqual(
          found.lower_bound_bytes, known.lower_bound_bytes
        )
        self.assertEqual(found.candidates[0], found.order)
        self.assertEqual(found.candidates[-1], initial)
        known = found


if __name__ == "__main__":
  absltest.main()
