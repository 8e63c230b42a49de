"""Tests of graph.from_hlo: graphs of computations, and back."""

import dataclasses

import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import schedule
from jaxmem_hlo.buffers.dataflow import UnsupportedModuleError
from jaxmem_hlo.module.opcodes import RENAMES
from tiny_hlo import f32, s32, tuple_of

from jaxmem import rewrite
from jaxmem.graph import ValidationError, check_order
from jaxmem.graph.hlo_graph import from_hlo


def _graph(module, computation=None, callees=None, platform="cpu"):
  model = AssignmentModel(module, platform)
  return from_hlo(model, computation or module.entry, callees)


def _edges(found):
  """Returns "before > after" for every precedence."""
  nodes = found.graph.nodes
  return {
    f"{nodes[p].name} > {node.name}"
    for node in nodes
    for p in node.predecessors
  }


class RecordedTest(parameterized.TestCase):
  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_the_modules_own_order_comes_back(self, name):
    recorded = record_modules.load(name)
    module = recorded.module
    model = AssignmentModel(module, recorded.platform)
    orders = {}
    for computation in model.analysis.dataflow.computations:
      found = from_hlo(model, computation)
      self.assertFalse(found.is_repaired)
      initial = range(found.graph.num_nodes)
      check_order(found.graph, initial)
      orders[computation.id] = found.schedule(initial)
      schedule.check_schedule(computation, orders[computation.id])
      # Nodes are in the order of XLA's schedule.
      at = {i.id: n for n, i in enumerate(module.schedule(computation.id))}
      positions = [at[i.id] for i in found.instructions]
      self.assertEqual(positions, sorted(positions))
    self.assertEqual(model.assign(orders).temp_bytes, recorded.temp_bytes)

  @parameterized.product(name=sorted(record_modules.PROGRAMS), seed=(0, 1, 2))
  def test_other_orders_are_schedules_whose_reads_precede_writes(
    self, name, seed
  ):
    recorded = record_modules.load(name)
    orders = record_modules.shuffled(recorded.module, recorded.platform, seed)
    for computation_id, ids in orders.items():
      computation = recorded.module.by_id[computation_id]
      schedule.check_schedule(computation, ids)
    late = _late_readers(recorded.module, recorded.platform, orders)
    self.assertEqual(late, [])

  @parameterized.parameters("mlp_cpu", "mlp_h200")
  def test_without_an_anti_dependency_a_read_comes_late(self, name):
    # Without XLA's copies only the order keeps donated arguments from being
    # overwritten too early. Move each reader behind the writer it has to
    # precede: a valid schedule in XLA's eyes, and not in ours.
    recorded = record_modules.load(name)
    model = AssignmentModel(recorded.module, recorded.platform)
    found = from_hlo(model, model.module.entry)
    copies = rewrite.find_copies(model, found)
    self.assertNotEmpty(copies.removable)
    module = model.module.with_bitcasts(copies.removable)
    found = _graph(module, platform=recorded.platform)
    initial = range(found.graph.num_nodes)
    order_ids = found.schedule(initial)
    orders = {module.entry.id: order_ids}
    self.assertEqual(_late_readers(module, recorded.platform, orders), [])
    plain = _data_precedences(found)
    num_caught = 0
    for writer, node in enumerate(found.graph.nodes):
      for reader in node.predecessors:
        if reader in plain[writer]:
          continue
        first = [*sorted(plain[writer]), writer]
        order = [*first, *(n for n in initial if n not in first)]
        order_ids = found.schedule(order)
        schedule.check_schedule(module.entry, order_ids)
        with self.assertRaises(ValidationError):
          check_order(found.graph, order)
        orders = {module.entry.id: order_ids}
        late = _late_readers(module, recorded.platform, orders)
        self.assertIn(found.instructions[reader].name, late)
        num_caught += 1
    self.assertGreater(num_caught, 0)


def _data_precedences(found):
  """Returns all that precede a node by data or control, transitively."""
  computation = found.computation
  behind = {}
  index = {i.id: n for n, i in enumerate(found.instructions)}
  for instruction in computation.instructions:
    before = set()
    for needed in (*instruction.operands, *instruction.control_predecessors):
      before |= behind[needed]
      if needed in index:
        before.add(index[needed])
    behind[instruction.id] = before
  return [behind[i.id] for i in found.instructions]


def _late_readers(module, platform, orders):
  """Names the instructions that read a value after it was overwritten.

  Looks at donated arguments and at in-place writes of the entry alone, by the
  definition, and at nothing that `extract` computes.
  """
  analysis = AssignmentModel(module, platform).analysis
  entry = module.entry
  ids = orders.get(entry.id) or [i.id for i in module.schedule(entry.id)]
  position = {key: at for at, key in enumerate(ids)}
  writes = [
    (read, written)
    for read, written, instruction in analysis.writes
    if instruction.computation is entry
  ]
  trees = analysis.dataflow.trees
  for (number, index), output in module.donations.items():
    read = trees[entry.parameters[number].id][index]
    writes.append((read, trees[entry.root.id][output]))
  late = []
  for read, written in writes:
    # Between a donated argument and the output others may share the buffer:
    # the first of them overwrites it.
    chain = [
      position[v.instruction.id]
      for v in analysis.buffer_of(read).values
      if v is not read and v.instruction.computation is entry
    ]
    del written
    for use in read.uses:
      name = use.instruction.name
      at = position.get(use.instruction.id, -1)
      if use.instruction.opcode not in RENAMES and at > min(chain):
        late.append(name)
  return late


class AntiDependencyTest(absltest.TestCase):
  def test_readers_of_a_donated_argument_precede_its_successor(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    y = main.parameter(f32(8), name="y")
    read = main.op("dot", f32(8), x, name="read")
    new = main.op("dot", f32(8), y, name="new")
    main.tuple(new, read)
    module = builder.module(main, donations=[(0, (0,))])
    self.assertEqual(_edges(_graph(module)), {"read > new"})
    # Not donated, the two have nothing to do with each other.
    self.assertEqual(_edges(_graph(builder.module(main))), set())

  def test_readers_precede_an_in_place_write(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.op("dot", f32(8), main.parameter(f32(8)), name="x")
    early = main.op("dot", f32(8), x, name="early")
    index = main.parameter(s32())
    part = main.parameter(f32(2))
    new = main.op("dynamic-update-slice", f32(8), x, part, index, name="write")
    late = main.op("dot", f32(8), new, name="late")
    main.tuple(early, late)
    edges = _edges(_graph(builder.module(main)))
    expected = {"x > early", "x > write", "early > write", "write > late"}
    self.assertEqual(edges, expected)

  def test_reads_through_a_bitcast_count(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    view = main.op("bitcast", f32(2, 4), x, name="view")
    read = main.op("dot", f32(8), view, name="read")
    new = main.op("dot", f32(8), main.parameter(f32(8)), name="new")
    main.tuple(new, read)
    module = builder.module(main, donations=[(0, (0,))])
    self.assertEqual(_edges(_graph(module)), {"read > new"})

  def test_a_schedule_that_reads_too_late_is_listed_in_another_order(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    new = main.op("dot", f32(8), main.parameter(f32(8)), name="new")
    read = main.op("dot", f32(8), x, name="read")
    main.tuple(new, read)
    found = _graph(builder.module(main, donations=[(0, (0,))]))
    self.assertTrue(found.is_repaired)
    self.assertEqual([n.name for n in found.graph.nodes], ["read", "new"])

  def test_a_write_that_needs_a_later_read_is_refused(self):
    # read needs new, and has to come before it.
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    new = main.op("dot", f32(8), main.parameter(f32(8)), name="new")
    read = main.op("add", f32(8), x, new, name="read")
    main.tuple(new, read)
    with self.assertRaisesRegex(UnsupportedModuleError, "form a cycle"):
      _graph(builder.module(main, donations=[(0, (0,))]))

  def test_the_carry_of_a_loop_is_read_before_it_is_replaced(self):
    module = tiny_hlo.loop(kinds="u")
    module.proto.input_output_alias.entries.add(output_shape_index=[1])
    (body,) = [c for c in module.computations if c.name == "body"]
    found = _graph(module, body)
    # update0 reads the carry itself; nothing else does.
    self.assertEqual(_edges(found), set())
    self.assertEqual({n.name for n in found.graph.nodes}, {"count", "update0"})
    # The carried f32[8] and its table of two pointers belong to the caller;
    # the counter starts as a constant, which is never free.
    self.assertEqual(found.owned_bytes, 32 + 16)

  def test_the_table_of_views_is_written_after_what_they_show(self):
    def run_body(body, carry):
      new = body.op("dot", f32(8), body.element(carry, 0), name="new")
      body.tuple(body.op("bitcast", f32(8), new), name="next")

    found = _body_graph(tuple_of(f32(8)), run_body)
    # It lies where the table of the carry was.
    (table,) = [b for b in found.graph.buffers if b.name == "next"]
    self.assertEqual(table.definer, 0)
    self.assertEqual(found.graph.nodes[0].name, "new")

  def test_an_array_that_a_loop_carries_twice_is_one_buffer(self):
    def run_body(body, carry):
      first, second, last = (body.element(carry, i) for i in range(3))
      early = body.op("dot", f32(8), first, name="early")
      new = body.op("add", f32(8), last, early, name="new")
      body.tuple(second, second, new, name="next")

    found = _body_graph(tuple_of(f32(8), f32(8), f32(8)), run_body)
    self.assertEqual(_edges(found), {"early > new"})
    given = [b for b in found.graph.buffers if b.live_at_start]
    # The array, and what is replaced; each table has three pointers.
    sizes = [b.size_bytes for b in given]
    self.assertCountEqual(sizes, [32, 32, 24])
    (kept,) = [b for b in given if b.live_at_end]
    self.assertEqual((kept.size_bytes, kept.touchers), (32, (0,)))
    self.assertEqual(found.owned_bytes, 32 + 32 + 24)


def _body_graph(carried, run_body, result=None):
  """Returns the graph of a loop's body; the first two of a carry are one.

  The program returns what the loop carries, or a result of a given shape.
  """
  builder = tiny_hlo.Builder()
  condition = builder.computation("condition")
  seen = condition.element(condition.parameter(carried, "seen"), 0)
  condition.op("compare", tiny_hlo.pred(), seen, seen, name="test")
  body = builder.computation("body")
  run_body(body, body.parameter(carried, "carry"))
  main = builder.computation("main")
  x, y = (main.op("dot", f32(8), main.parameter(f32(8))) for _ in range(2))
  start = (x, x, y) if len(carried.tuple_shapes) == 3 else (x,)
  start = main.tuple(*start)
  loop = main.op("while", carried, start, calls=(body, condition))
  if result is not None:
    main.op("dot", result, main.element(loop, 0), name="result")
  module = builder.module(main)
  (computation,) = [c for c in module.computations if c.name == "body"]
  return _graph(module, computation)


class NodeTest(parameterized.TestCase):
  def test_instructions_that_do_nothing_are_no_nodes(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    one = main.op("constant", f32(8), name="one")
    total = main.op("add", f32(8), x, one, name="sum")
    view = main.op("bitcast", f32(2, 4), total, name="view")
    pair = main.tuple(total, view, name="pair")
    first = main.element(pair, 0, name="first")
    main.op("dot", f32(8), first, name="last")
    found = _graph(builder.module(main))
    self.assertEqual([n.name for n in found.graph.nodes], ["sum", "last"])
    self.assertEqual(_edges(found), {"sum > last"})
    names = [found.computation.by_id[i].name for i in found.schedule([0, 1])]
    self.assertEqual(names[2:], ["sum", "view", "pair", "first", "last"])

  def test_control_dependencies_are_kept_also_through_renamings(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    a = main.op("dot", f32(8), x, name="a")
    view = main.op("bitcast", f32(2, 4), a, name="view")
    b = main.op("dot", f32(8), x, name="b", after=(view,))
    c = main.op("dot", f32(8), x, name="c", after=(b,))
    main.tuple(a, b, c)
    self.assertEqual(_edges(_graph(builder.module(main))), {"a > b", "b > c"})

  def test_the_root_comes_last(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    a = main.op("dot", f32(8), x, name="a")
    root = main.tuple(a, name="root")
    main.op("dot", f32(8), x, name="unused")
    main.root(root)
    found = _graph(builder.module(main))
    self.assertEqual(found.schedule([0, 1])[-1], root)
    self.assertEqual(found.schedule([1, 0])[-1], root)

  @parameterized.parameters(
    ("all-reduce", {}, True),
    ("all-gather-start", {}, False),
    ("collective-permute", {}, True),
    ("reduce-scatter", {}, True),
    ("rng", {}, True),
    ("rng-get-and-update-state", {}, True),
    ("rng-bit-generator", {}, False),
    ("custom-call", {"custom_call_has_side_effect": True}, True),
    ("custom-call", {}, False),
    ("dot", {}, False),
  )
  def test_what_others_see_keeps_its_order(self, opcode, fields, expected):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    y = main.parameter(f32(8), name="y")
    shape = f32(8)
    if opcode.endswith("-start"):
      shape = tuple_of(f32(8), f32(8))
    a = main.op(opcode, shape, x, name="a", **fields)
    b = main.op("dot", f32(8), y, name="b")
    c = main.op(opcode, shape, y, name="c", **fields)
    main.tuple(a, b, c)
    found = _graph(builder.module(main))
    self.assertEqual(_edges(found), {"a > c"} if expected else set())
    self.assertEqual(found.num_pinned, 2 if expected else 0)

  def test_a_call_that_holds_a_collective_is_pinned_like_one(self):
    builder = tiny_hlo.Builder()
    callee = builder.computation("callee")
    callee.op("all-reduce", f32(8), callee.parameter(f32(8)))
    main = builder.computation("main")
    x, y = main.parameter(f32(8)), main.parameter(f32(8))
    a = main.op("all-reduce", f32(8), x, name="a")
    b = main.op("call", f32(8), y, calls=(callee,), name="b")
    main.tuple(a, b)
    self.assertEqual(_edges(_graph(builder.module(main))), {"a > b"})

  def test_what_a_callee_needs_is_extra(self):
    module = tiny_hlo.loop(kinds="u")
    (body,) = [c for c in module.computations if c.name == "body"]
    callees = {body.id: 500}
    found = _graph(module, callees=lambda: callees)
    (loop,) = [n for n in found.graph.nodes if n.name == "loop"]
    self.assertEqual(loop.extra_bytes, 500)

  def test_buffers(self):
    # x is donated to new; kept is not, and costs nothing that an order could
    # change; a is a temporary.
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    kept = main.parameter(f32(64), name="kept")
    a = main.op("dot", f32(4), kept, name="a")
    main.op("add", f32(8), x, a, name="new")
    found = _graph(builder.module(main, donations=[(0, ())]))
    buffers = {b.name: b for b in found.graph.buffers}
    self.assertEqual(set(buffers), {"x", "a", "new"})
    self.assertEqual([buffers[n].size_bytes for n in ("x", "a")], [32, 16])
    self.assertTrue(buffers["x"].live_at_start)
    self.assertFalse(buffers["a"].live_at_start)
    self.assertTrue(buffers["new"].live_at_end)
    self.assertEqual(buffers["a"].touchers, (0, 1))
    # The donated slot is no temporary.
    self.assertEqual(found.graph.base_bytes, 32)
    # new takes the place of x.
    x_to_new = [b.name for b in found.graph.buffers]
    share = (x_to_new.index("x"), x_to_new.index("new"))
    self.assertIn(share, found.graph.nodes[1].shares)

  @parameterized.parameters(False, True)
  def test_buffers_of_several_values_share_only_in_slots(self, is_slot):
    # a and b are as large as each other, a dies at b, and both operations are
    # elementwise. But b and c are one buffer: on the heap it takes no place
    # over. In the memory of a donated argument it may.
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(2), name="x")
    index = main.parameter(s32(), name="i")
    given = main.parameter(f32(8), name="given")
    big = main.op("broadcast", f32(8), x, name="big")
    a = main.op("tanh", f32(8), big, name="a")
    b = main.op("negate", f32(8), a, name="b")
    c = main.op("dynamic-update-slice", f32(8), b, x, index, name="c")
    d = main.op("dot", f32(2), c, name="d")
    # Without donation the second output is as small as the first.
    new, shape = (given, f32(8)) if is_slot else (x, f32(2))
    main.tuple(d, main.op("tanh", shape, new, name="new"))
    module = builder.module(main, donations=[(2, (1,))] if is_slot else [])
    found = _graph(module)
    names = [b.name for b in found.graph.buffers]
    (node,) = [n for n in found.graph.nodes if n.name == "b"]
    pair = names.index("a"), names.index("b")
    self.assertEqual(pair in node.shares, is_slot)

  @parameterized.parameters(False, True)
  def test_what_is_called_may_lie_in_slots_of_the_program(self, is_slot):
    # first is as large as what the loop carries, which dies there. The carry
    # is a buffer of several values; where it lies in the memory of an output,
    # first may lie on it.
    def run_body(body, carry):
      first = body.op("negate", f32(8), body.element(carry, 0), name="first")
      body.tuple(body.op("dot", f32(8), first, name="last"))

    result = f32(8) if is_slot else f32(4)
    found = _body_graph(tuple_of(f32(8)), run_body, result)
    names = [b.name for b in found.graph.buffers]
    (node,) = [n for n in found.graph.nodes if n.name == "first"]
    pair = names.index("carry.0"), names.index("first")
    self.assertEqual(pair in node.shares, is_slot)

  def test_frozen(self):
    found = _graph(tiny_hlo.loop(kinds="u"))
    with self.assertRaises(dataclasses.FrozenInstanceError):
      found.num_pinned = 3  # pyright: ignore


if __name__ == "__main__":
  absltest.main()
