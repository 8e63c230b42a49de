"""Tests of the graph of what conditionals take and hand on."""

import tiny_hlo
from absl.testing import absltest
from jaxmem_hlo.assignment import AssignmentModel
from tiny_hlo import f32, s32, tuple_of

from jaxmem.graph import from_hlo


class TableTest(absltest.TestCase):
  def test_a_table_is_there_before_whoever_hands_it_on(self):
    carried = tuple_of(f32(8))
    builder = tiny_hlo.Builder()
    kept = [builder.computation(f"kept{i}") for i in range(2)]
    read = [builder.computation(f"read{i}") for i in range(2)]
    for branch in kept:
      branch.parameter(carried)
    for branch in read:
      branch.op("dot", f32(8), branch.element(branch.parameter(carried), 0))
    main = builder.computation("main")
    which = main.op("compare", tiny_hlo.pred(), *[main.parameter(s32())] * 2)
    table = main.tuple(main.op("dot", f32(8), main.parameter(f32(8))))
    early = main.op("conditional", f32(8), which, table, table, calls=read)
    late = main.op("conditional", carried, which, table, table, calls=kept)
    main.op("add", f32(8), main.element(late, 0), early, name="result")
    module = builder.module(main)
    found = from_hlo(AssignmentModel(module, "cpu"), module.entry)
    names = [n.name.split(".")[0] for n in found.graph.nodes]
    self.assertEqual(
      names, ["compare", "dot", "conditional", "conditional", "result"]
    )
    (table,) = [b for b in found.graph.buffers if b.size_bytes == 8]
    # Made with its element, and not by the call whose branches return it.
    self.assertEqual(table.definer, 1)
    self.assertContainsSubset({1, 2, 3}, {*table.touchers})


if __name__ == "__main__":
  absltest.main()
