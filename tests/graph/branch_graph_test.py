"""Tests of the graph of what conditionals take and hand on."""

import tiny_hlo
from absl.testing import absltest
from jaxmem_hlo.assignment import AssignmentModel
from tiny_hlo import f32, s32, tuple_of

from jaxmem.graph import from_hlo
from jaxmem.rewrite.recompute_rules import recomputable


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


def _written_in_a_branch():
  """Returns a module whose first branch runs a loop in what it is given."""
  carried = tuple_of(f32(8))
  builder = tiny_hlo.Builder()
  condition, body, loops, keeps = map(
    builder.computation, ("condition", "body", "loops", "keeps")
  )
  seen = condition.element(condition.parameter(carried), 0)
  condition.op("compare", tiny_hlo.pred(), seen, seen)
  body.tuple(body.op("tanh", f32(8), body.element(body.parameter(carried), 0)))
  given = loops.parameter(carried)
  loop = loops.op("while", carried, given, calls=(body, condition))
  loops.op("dot", f32(4), loops.element(loop, 0))
  keeps.op("dot", f32(4), keeps.element(keeps.parameter(carried), 0))
  main = builder.computation("main")
  which = main.op("compare", tiny_hlo.pred(), *[main.parameter(s32())] * 2)
  x = main.op("dot", f32(8), main.parameter(f32(8)), name="x")
  read = main.op("reduce", f32(2), x, name="read")
  table = main.tuple(x)
  called = main.op(
    "conditional",
    f32(4),
    *(which, table, table),
    calls=(loops, keeps),
    name="call",
  )
  main.tuple(read, called)
  return builder.module(main)


class WrittenInsideTest(absltest.TestCase):
  """What the entry never sees, as a loop inside of a call writes it."""

  def test_readers_run_before_the_call(self):
    module = _written_in_a_branch()
    graph = from_hlo(AssignmentModel(module, "cpu"), module.entry).graph
    names = [node.name for node in graph.nodes]
    (call,) = [n for n in graph.nodes if n.name == "call"]
    self.assertContainsSubset(
      {"x", "read"}, {names[p] for p in call.predecessors}
    )

  def test_nothing_is_made_of_it_after_the_call(self):
    overwriters = recomputable(_written_in_a_branch()).overwriters
    found = {
      value.instruction.name: writer.name
      for value, writer in overwriters.items()
      if value.instruction.name == "x"
    }
    self.assertEqual(found, {"x": "call"})


if __name__ == "__main__":
  absltest.main()
