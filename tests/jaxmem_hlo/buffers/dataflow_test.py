"""Tests of jaxmem_hlo.dataflow, on modules built by hand."""

import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.buffers import dataflow
from jaxmem_hlo.buffers.dataflow import Dataflow, UnsupportedModuleError
from tiny_hlo import f32, named, pred, s32, token, tuple_of


def _name_at(flow: Dataflow, name: str, *index: int) -> str:
  """Returns what defines the value that an instruction holds at an index."""
  value = flow.trees[named(flow.module, name).id][index]
  return value.name + (" phi" if value.is_phi else "")


class StraightLineTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.builder = tiny_hlo.Builder()
    self.main = self.builder.computation("main")
    self.x = self.main.parameter(f32(8), name="x")

  def flow(self):
    return Dataflow(self.builder.module(self.main))

  def test_instructions_that_rename_a_value(self):
    main, x = self.main, self.x
    y = main.op("tanh", f32(8), x, name="y")
    bits = main.op("bitcast", f32(2, 4), y, name="bits")
    kept = main.op("opt-barrier", f32(2, 4), bits, name="kept")
    after = main.op("after-all", token(), name="after")
    main.op("add-dependency", f32(2, 4), kept, after, name="last")
    flow = self.flow()
    for name in ("y", "bits", "kept", "last"):
      self.assertEqual(_name_at(flow, name), "y")
    value = flow.trees[named(flow.module, "y").id][()]
    self.assertEqual(value.size_bytes, 32)
    self.assertTrue(value.is_live_out)
    self.assertEqual(
      [p.instruction.name for p in value.positions],
      ["y", "bits", "kept", "last"],
    )
    self.assertEqual(
      [(u.instruction.name, u.operand_number) for u in value.uses],
      [("bits", 0), ("kept", 0), ("last", 0)],
    )

  def test_tuples_hold_the_values_of_their_operands(self):
    main, x = self.main, self.x
    y = main.op("tanh", f32(8), x, name="y")
    inner = main.tuple(x, y, name="inner")
    outer = main.tuple(inner, y, name="outer")
    first = main.element(outer, 0, name="first")
    main.element(first, 1, name="last")
    flow = self.flow()
    self.assertEqual(_name_at(flow, "outer"), "outer")
    self.assertEqual(_name_at(flow, "outer", 0), "inner")
    self.assertEqual(_name_at(flow, "outer", 0, 0), "x")
    self.assertEqual(_name_at(flow, "outer", 0, 1), "y")
    self.assertEqual(_name_at(flow, "outer", 1), "y")
    self.assertEqual(_name_at(flow, "first"), "inner")
    self.assertEqual(_name_at(flow, "first", 0), "x")
    self.assertEqual(_name_at(flow, "last"), "y")
    table = flow.trees[named(flow.module, "outer").id][()]
    self.assertTrue(table.is_tuple_table)
    # Two pointers.
    self.assertEqual(table.size_bytes, 16)
    # Making a tuple reads nothing; taking an element reads the table alone.
    y_value = flow.trees[named(flow.module, "y").id][()]
    self.assertEqual(y_value.uses, [])
    self.assertFalse(y_value.is_tuple_table)
    self.assertEqual([u.instruction.name for u in table.uses], ["first"])
    self.assertTrue(y_value.is_live_out)
    self.assertFalse(table.is_live_out)

  def test_an_operand_read_twice_is_used_twice(self):
    self.main.op("add", f32(8), self.x, self.x, name="sum")
    flow = self.flow()
    uses = flow.trees[named(flow.module, "x").id][()].uses
    self.assertEqual([u.operand_number for u in uses], [0, 1])

  def test_an_instruction_with_several_outputs_defines_each(self):
    shape = tuple_of(f32(8), tuple_of(s32(), f32(2)))
    self.main.op("custom-call", shape, self.x, name="call")
    flow = self.flow()
    sizes = {
      v.name: v.size_bytes for v in flow.values if v.instruction.name == "call"
    }
    expected = {
      "call": 16,
      "call.0": 32,
      "call.1": 16,
      "call.1.0": 4,
      "call.1.1": 8,
    }
    self.assertEqual(sizes, expected)

  def test_a_copied_tuple_has_a_table_of_its_own_and_the_same_elements(self):
    pair = self.main.tuple(self.x, self.x, name="pair")
    self.main.op("copy", tuple_of(f32(8), f32(8)), pair, name="copied")
    flow = self.flow()
    self.assertEqual(_name_at(flow, "copied"), "copied")
    self.assertEqual(_name_at(flow, "copied", 1), "x")

  def test_a_copied_array_is_a_new_value(self):
    self.main.op("copy", f32(8), self.x, name="copied")
    self.assertEqual(_name_at(self.flow(), "copied"), "copied")

  def test_memory_space_is_that_of_the_layout(self):
    self.main.op("copy", f32(8, memory_space=5), self.x, name="host")
    flow = self.flow()
    spaces = {v.name: v.memory_space for v in flow.values}
    self.assertEqual(spaces, {"x": 0, "host": 5})

  def test_ids_follow_the_post_order_of_definitions(self):
    y = self.main.op("tanh", f32(8), self.x, name="y")
    self.main.tuple(self.x, y, name="root")
    flow = self.flow()
    self.assertEqual([v.name for v in flow.values], ["x", "y", "root"])
    self.assertEqual([v.id for v in flow.values], [0, 1, 2])


class LoopTest(absltest.TestCase):
  def test_a_kept_value_is_the_initial_one_everywhere(self):
    flow = Dataflow(tiny_hlo.loop(kinds="k"))
    for name in ("start", "carry", "seen", "next", "loop"):
      self.assertEqual(_name_at(flow, name, 1), "initial0")

  def test_an_updated_value_meets_at_the_carry(self):
    flow = Dataflow(tiny_hlo.loop(kinds="u"))
    self.assertEqual(_name_at(flow, "start", 1), "initial0")
    self.assertEqual(_name_at(flow, "carry", 1), "carry.1 phi")
    self.assertEqual(_name_at(flow, "seen", 1), "seen.1 phi")
    self.assertEqual(_name_at(flow, "loop", 1), "loop.1 phi")
    self.assertEqual(_name_at(flow, "next", 1), "update0")

  def test_swapped_values_change_though_the_body_computes_nothing(self):
    flow = Dataflow(tiny_hlo.loop(kinds="ss"))
    self.assertEqual(_name_at(flow, "carry", 1), "carry.1 phi")
    self.assertEqual(_name_at(flow, "carry", 2), "carry.2 phi")
    self.assertEqual(_name_at(flow, "next", 1), "carry.2 phi")
    self.assertEqual(_name_at(flow, "next", 2), "carry.1 phi")
    self.assertEqual(_name_at(flow, "loop", 2), "loop.2 phi")

  def test_values_that_only_ever_are_one_are_that_one(self):
    for kinds in ("nk", "ss", "nnk"):
      flow = Dataflow(tiny_hlo.loop(kinds=kinds, is_one_initial=True))
      for name in ("start", "carry", "seen", "next", "loop"):
        for index in range(1, len(kinds) + 1):
          self.assertEqual(_name_at(flow, name, index), "initial0")

  def test_a_value_that_is_another_one_later_is_a_phi(self):
    flow = Dataflow(tiny_hlo.loop(kinds="nk"))
    self.assertEqual(_name_at(flow, "carry", 1), "carry.1 phi")
    self.assertEqual(_name_at(flow, "carry", 2), "initial1")
    self.assertEqual(_name_at(flow, "next", 1), "initial1")
    flow = Dataflow(tiny_hlo.loop(kinds="ssu", is_one_initial=True))
    self.assertEqual(_name_at(flow, "loop", 2), "initial0")
    self.assertEqual(_name_at(flow, "loop", 3), "loop.3 phi")

  def test_kinds_do_not_mix(self):
    flow = Dataflow(tiny_hlo.loop(kinds="kuss"))
    found = [_name_at(flow, "loop", i) for i in range(1, 5)]
    self.assertEqual(
      found, ["initial0", "loop.2 phi", "loop.3 phi", "loop.4 phi"]
    )

  def test_the_counter_is_a_phi(self):
    flow = Dataflow(tiny_hlo.loop(kinds=""))
    self.assertEqual(_name_at(flow, "loop", 0), "loop.0 phi")
    self.assertEqual(_name_at(flow, "next", 0), "count")

  def test_the_table_of_the_carry_is_a_phi(self):
    # The body makes a new table each time round.
    flow = Dataflow(tiny_hlo.loop(kinds="k"))
    self.assertEqual(_name_at(flow, "loop"), "loop phi")

  def test_phis_come_after_all_definitions(self):
    flow = Dataflow(tiny_hlo.loop(kinds="uk"))
    marks = [v.is_phi for v in flow.values]
    self.assertEqual(marks, sorted(marks))
    self.assertEqual([v.id for v in flow.values], list(range(len(marks))))

  def test_body_and_condition_in_either_order(self):
    module = tiny_hlo.loop(kinds="u")
    loop = named(module, "loop")
    expected = dataflow.while_computations(module, loop)
    self.assertEqual([c.name for c in expected], ["body", "condition"])
    loop.proto.called_computation_ids[:] = reversed(loop.callees)
    self.assertEqual(dataflow.while_computations(module, loop), expected)

  def test_a_value_kept_by_two_nested_loops_is_the_initial_one(self):
    builder = tiny_hlo.Builder()
    carried = tuple_of(s32(), f32(8))

    def condition(name):
      made = builder.computation(name)
      counter = made.element(made.parameter(carried), 0)
      made.op("compare", pred(), counter, counter)
      return made

    inner = builder.computation("inner")
    carry = inner.parameter(carried, name="inner carry")
    counter = inner.element(carry, 0)
    count = inner.op("add", s32(), counter, counter)
    inner.tuple(count, inner.element(carry, 1))
    outer_condition, inner_condition = condition("c1"), condition("c2")
    outer = builder.computation("outer")
    carry = outer.parameter(carried, name="outer carry")
    outer.op("while", carried, carry, calls=(inner, inner_condition))
    main = builder.computation("main")
    start = main.tuple(main.parameter(s32()), main.parameter(f32(8), name="x"))
    main.op("while", carried, start, calls=(outer, outer_condition), name="w")
    flow = Dataflow(builder.module(main))
    self.assertEqual(_name_at(flow, "w", 1), "x")
    self.assertEqual(_name_at(flow, "inner carry", 1), "x")
    self.assertEqual(_name_at(flow, "outer carry", 1), "x")
    self.assertEqual(_name_at(flow, "w", 0), "w.0 phi")
    for tree in flow.trees.values():
      for value in tree.values():
        self.assertIn(value, flow.values)


class CalleeTest(absltest.TestCase):
  def conditional(self, *, is_same):
    builder = tiny_hlo.Builder()
    branches = []
    for name in ("left", "right"):
      branch = builder.computation(name)
      given = branch.parameter(f32(8), name=f"{name} given")
      if not is_same:
        branch.op("dot", f32(8), given, name=f"{name} made")
      branches.append(branch)
    main = builder.computation("main")
    index = main.parameter(s32(), name="index")
    x = main.parameter(f32(8), name="x")
    main.op("conditional", f32(8), index, x, x, calls=branches, name="chosen")
    return Dataflow(builder.module(main))

  def test_a_conditional_that_always_returns_the_same_value(self):
    flow = self.conditional(is_same=True)
    self.assertEqual(_name_at(flow, "chosen"), "x")
    self.assertEqual(_name_at(flow, "right given"), "x")

  def test_a_conditional_that_returns_either_of_two_values(self):
    flow = self.conditional(is_same=False)
    self.assertEqual(_name_at(flow, "chosen"), "chosen phi")
    self.assertEqual(_name_at(flow, "left made"), "left made")
    callers = {
      flow.module.by_id[key].name: caller.name
      for key, caller in flow.callers.items()
    }
    self.assertEqual(callers, {"left": "chosen", "right": "chosen"})

  def test_a_call_passes_values_in_and_out(self):
    builder = tiny_hlo.Builder()
    callee = builder.computation("callee")
    given = callee.parameter(f32(8), name="given")
    made = callee.op("tanh", f32(8), given, name="made")
    callee.tuple(given, made, name="result")
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    main.op("call", tuple_of(f32(8), f32(8)), x, calls=(callee,), name="call")
    flow = Dataflow(builder.module(main))
    self.assertEqual(_name_at(flow, "given"), "x")
    self.assertEqual(_name_at(flow, "call"), "result")
    self.assertEqual(_name_at(flow, "call", 0), "x")
    self.assertEqual(_name_at(flow, "call", 1), "made")
    self.assertTrue(flow.trees[named(flow.module, "made").id][()].is_live_out)

  def test_callees_that_run_once_per_element_have_no_values(self):
    builder = tiny_hlo.Builder()
    add = builder.computation("add", is_scheduled=False)
    add.op("add", f32(), add.parameter(f32()), add.parameter(f32()))
    main = builder.computation("main")
    x = main.parameter(f32(8))
    zero = main.op("constant", f32())
    main.op("reduce", f32(), x, zero, calls=(add,))
    flow = Dataflow(builder.module(main))
    self.assertEqual([c.name for c in flow.computations], ["main"])
    self.assertLen(flow.values, 3)


class AsyncTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.builder = tiny_hlo.Builder()

  def test_async_pair(self):
    callee = self.builder.computation("callee")
    given = callee.parameter(f32(8), name="given")
    callee.op("tanh", f32(8), given, name="made")
    main = self.builder.computation("main")
    x = main.parameter(f32(8), name="x")
    shape = tuple_of(tuple_of(f32(8)), f32(8), s32())
    start = main.op("async-start", shape, x, calls=(callee,), name="start")
    main.op("async-done", f32(8), start, name="done")
    flow = Dataflow(self.builder.module(main))
    self.assertEqual(_name_at(flow, "start", 0, 0), "x")
    self.assertEqual(_name_at(flow, "start", 1), "made")
    self.assertEqual(_name_at(flow, "start", 2), "start.2")
    self.assertEqual(_name_at(flow, "done"), "made")

  def test_copy_pair(self):
    main = self.builder.computation("main")
    x = main.parameter(f32(8), name="x")
    shape = tuple_of(f32(8, memory_space=5), f32(8), s32())
    start = main.op("copy-start", shape, x, name="start")
    main.op("copy-done", f32(8, memory_space=5), start, name="done")
    flow = Dataflow(self.builder.module(main))
    self.assertEqual(_name_at(flow, "start", 1), "x")
    self.assertEqual(_name_at(flow, "done"), "start.0")
    done = flow.trees[named(flow.module, "done").id][()]
    self.assertEqual(done.memory_space, 5)

  def test_all_gather_pair(self):
    main = self.builder.computation("main")
    x = main.parameter(f32(8), name="x")
    shape = tuple_of(f32(8), f32(32))
    start = main.op("all-gather-start", shape, x, name="start")
    main.op("all-gather-done", f32(32), start, name="done")
    flow = Dataflow(self.builder.module(main))
    self.assertEqual(_name_at(flow, "start", 0), "x")
    self.assertEqual(_name_at(flow, "done"), "start.1")

  def test_all_reduce_pair(self):
    main = self.builder.computation("main")
    x = main.parameter(f32(8), name="x")
    start = main.op("all-reduce-start", f32(8), x, name="start")
    main.op("all-reduce-done", f32(8), start, name="done")
    flow = Dataflow(self.builder.module(main))
    self.assertEqual(_name_at(flow, "done"), "start")


class UnsupportedTest(parameterized.TestCase):
  def test_unknown_flow_is_named(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    main.op("infeed", tuple_of(f32(8), token()), name="fed")
    with self.assertRaisesRegex(UnsupportedModuleError, "fed has opcode infee"):
      Dataflow(builder.module(main))

  @parameterized.parameters(
    "send",
    "recv-done",
    "async-update",
    "reduce-scatter-start",
    "ragged-all-to-all-done",
  )
  def test_asynchronous_pairs_that_are_not_modelled(self, opcode):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    main.op(opcode, f32(8), main.parameter(f32(8)), name="pair")
    with self.assertRaisesRegex(UnsupportedModuleError, f"pair .* {opcode}"):
      Dataflow(builder.module(main))

  def test_a_computation_with_two_callers(self):
    builder = tiny_hlo.Builder()
    callee = builder.computation("shared")
    callee.parameter(f32(8))
    main = builder.computation("main")
    x = main.parameter(f32(8))
    y = main.op("call", f32(8), x, calls=(callee,))
    main.op("call", f32(8), y, calls=(callee,))
    with self.assertRaisesRegex(UnsupportedModuleError, "shared has several"):
      Dataflow(builder.module(main))

  def test_several_transfers_in_one_start(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8))
    pair = tuple_of(f32(8), f32(8))
    main.op("all-gather-start", tuple_of(pair, pair), x, x, name="both")
    with self.assertRaisesRegex(UnsupportedModuleError, "both starts several"):
      Dataflow(builder.module(main))

  def test_unknown_element_type(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    shape = f32(8)
    shape.element_type = 99
    main.parameter(shape)
    with self.assertRaisesRegex(ValueError, "element type 99"):
      Dataflow(builder.module(main))


class RecordedTest(parameterized.TestCase):
  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_every_place_has_a_value_of_its_size(self, name):
    flow = Dataflow(record_modules.load(name).module)
    self.assertEqual([v.id for v in flow.values], list(range(len(flow.values))))
    seen = set()
    for computation in flow.computations:
      for instruction in computation.instructions:
        found = dataflow.shapes.subshapes(instruction.shape)
        tree = flow.trees[instruction.id]
        self.assertSameElements(tree, [index for index, _ in found])
        for index, value in tree.items():
          seen.add(value)
          self.assertIn((instruction, index), value.positions)
          shape = dataflow.shapes.subshape(instruction.shape, index)
          size = dataflow.shapes.top_level_bytes(shape)
          self.assertEqual(size, value.size_bytes)
    self.assertEqual(seen, set(flow.values))


if __name__ == "__main__":
  absltest.main()
