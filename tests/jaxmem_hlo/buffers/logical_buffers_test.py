"""Tests of jaxmem_hlo.buffers and aliasing, on modules built by hand."""

import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.buffers import BufferAnalysis, aliasing
from jaxmem_hlo.buffers.aliasing import InPlacePair
from tiny_hlo import f32, named, s32, tuple_of


def _groups(analysis: BufferAnalysis) -> list[set[str]]:
  """Returns the names of the values of each buffer that holds several."""
  groups = [{v.name for v in b.values} for b in analysis.buffers]
  return [g for g in groups if len(g) > 1]


def _writes(analysis: BufferAnalysis) -> list[tuple[str, str, str]]:
  return [
    (read.name, written.name, instruction.name)
    for read, written, instruction in analysis.writes
  ]


class InPlaceTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.builder = tiny_hlo.Builder()
    self.main = self.builder.computation("main")

  def analysis(self, donations=()):
    return BufferAnalysis(self.builder.module(self.main, donations))

  def parameters(self, *names):
    return [self.main.parameter(f32(8), name=n) for n in names]

  def test_ordinary_instructions_have_buffers_of_their_own(self):
    x, y = self.parameters("x", "y")
    self.main.op("add", f32(8), x, y, name="sum")
    analysis = self.analysis()
    self.assertEqual(_groups(analysis), [])
    self.assertEqual(_writes(analysis), [])
    self.assertLen(analysis.buffers, 3)

  def test_dynamic_update_slice(self):
    x, y = self.parameters("x", "y")
    index = self.main.parameter(s32(), name="i")
    self.main.op("dynamic-update-slice", f32(8), x, y, index, name="updated")
    analysis = self.analysis()
    self.assertEqual(_groups(analysis), [{"x", "updated"}])
    self.assertEqual(_writes(analysis), [("x", "updated", "updated")])

  def test_scatter_of_one_operand(self):
    x, updates = self.parameters("x", "updates")
    index = self.main.parameter(s32(), name="i")
    self.main.op("scatter", f32(8), x, index, updates, name="scattered")
    self.assertEqual(_groups(self.analysis()), [{"x", "scattered"}])

  def test_scatter_of_two_operands(self):
    x, y, a, b = self.parameters("x", "y", "a", "b")
    index = self.main.parameter(s32(), name="i")
    shape = tuple_of(f32(8), f32(8))
    self.main.op("scatter", shape, x, y, index, a, b, name="s")
    expected = [{"x", "s.0"}, {"y", "s.1"}]
    self.assertEqual(_groups(self.analysis()), expected)

  def test_custom_call_that_names_its_aliases(self):
    x, y = self.parameters("x", "y")
    pair = self.main.tuple(x, y, name="pair")
    self.main.op(
      "custom-call",
      tuple_of(f32(8), f32(8)),
      pair,
      name="called",
      aliasing=[(0, (1,), (0,))],
    )
    analysis = self.analysis()
    self.assertEqual(_groups(analysis), [{"y", "called.0"}])
    self.assertEqual(_writes(analysis), [("y", "called.0", "called")])

  def test_all_reduce_start(self):
    (x,) = self.parameters("x")
    start = self.main.op("all-reduce-start", f32(8), x, name="start")
    self.main.op("all-reduce-done", f32(8), start, name="done")
    self.assertEqual(_groups(self.analysis()), [{"x", "start"}])

  def test_donation(self):
    x, y = self.parameters("x", "y")
    total = self.main.op("add", f32(8), x, y, name="total")
    self.main.tuple(y, total, name="root")
    analysis = self.analysis(donations=[(0, (1,))])
    self.assertEqual(_groups(analysis), [{"x", "total"}])
    self.assertEqual({v.name for v in analysis.donated}, {"x"})
    buffer = analysis.buffer_of(analysis.dataflow.values[0])
    self.assertTrue(buffer.is_live_out)
    # XLA does not order readers before the write; it is no in-place write.
    self.assertEqual(_writes(analysis), [])

  def test_a_buffer_is_as_large_as_its_largest_value(self):
    x = self.main.parameter(f32(8), name="x")
    self.main.op("custom-call", f32(2), x, name="part", aliasing=[(0, (), ())])
    analysis = self.analysis()
    (buffer,) = analysis.buffers
    self.assertEqual(buffer.size_bytes, 32)
    self.assertEqual(buffer.id, 0)

  def test_chains_of_writes_are_one_buffer(self):
    x, y = self.parameters("x", "y")
    index = self.main.parameter(s32(), name="i")
    for name in ("first", "second"):
      x = self.main.op("dynamic-update-slice", f32(8), x, y, index, name=name)
    analysis = self.analysis()
    self.assertEqual(_groups(analysis), [{"x", "first", "second"}])
    expected = [("x", "first", "first"), ("first", "second", "second")]
    self.assertEqual(_writes(analysis), expected)


class FusionTest(absltest.TestCase):
  def fused(self, make_body, shape, num_parameters=2):
    """Returns the analysis of a fusion and of its in-place pairs."""
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    make_body(body, *(body.parameter(f32(8)) for _ in range(num_parameters)))
    main = builder.computation("main")
    given = [
      main.parameter(f32(8), name=f"x{i}") for i in range(num_parameters)
    ]
    main.op(
      "fusion", shape, *given, name="f", calls=(body,), fusion_kind="kLoop"
    )
    module = builder.module(main)
    pairs = aliasing.in_place_pairs(module, named(module, "f"))
    return BufferAnalysis(module), pairs

  def test_root_writes_a_parameter(self):
    def body(c, a, b):
      c.op("dynamic-update-slice", f32(8), b, a, c.op("constant", s32()))

    analysis, pairs = self.fused(body, f32(8))
    self.assertEqual(pairs, [InPlacePair(1, (), ())])
    self.assertEqual(_groups(analysis), [{"x1", "f"}])

  def test_bitcasts_around_the_write(self):
    def body(c, a, b):
      view = c.op("bitcast", f32(2, 4), b)
      new = c.op("bitcast", f32(2, 4), a)
      zero = c.op("constant", s32())
      written = c.op("dynamic-update-slice", f32(2, 4), view, new, zero, zero)
      c.op("bitcast", f32(8), written)

    _, pairs = self.fused(body, f32(8))
    self.assertEqual(pairs, [InPlacePair(1, (), ())])

  def test_one_of_two_outputs(self):
    def body(c, a, b):
      written = c.op(
        "dynamic-update-slice", f32(8), a, b, c.op("constant", s32())
      )
      c.tuple(c.op("negate", f32(8), b), written)

    analysis, pairs = self.fused(body, tuple_of(f32(8), f32(8)))
    self.assertEqual(pairs, [InPlacePair(0, (), (1,))])
    self.assertEqual(_groups(analysis), [{"x0", "f.1"}])

  def test_a_write_into_something_computed_is_not_in_place(self):
    def body(c, a, b):
      fresh = c.op("negate", f32(8), a)
      c.op("dynamic-update-slice", f32(8), fresh, b, c.op("constant", s32()))

    _, pairs = self.fused(body, f32(8))
    self.assertEqual(pairs, [])

  def test_a_write_below_the_root_is_not_in_place(self):
    def body(c, a, b):
      written = c.op(
        "dynamic-update-slice", f32(8), a, b, c.op("constant", s32())
      )
      c.op("negate", f32(8), written)

    _, pairs = self.fused(body, f32(8))
    self.assertEqual(pairs, [])

  def test_elementwise_fusions_write_nothing_in_place(self):
    # They may share when the operand dies; that depends on the order.
    _, pairs = self.fused(lambda c, a, b: c.op("add", f32(8), a, b), f32(8))
    self.assertEqual(pairs, [])


class ControlFlowTest(absltest.TestCase):
  def test_an_updated_carry_is_one_buffer(self):
    groups = _groups(BufferAnalysis(tiny_hlo.loop(kinds="u")))
    self.assertIn(
      {"initial0", "carry.1", "seen.1", "update0", "loop.1"}, groups
    )

  def test_a_kept_carry_is_the_initial_value(self):
    groups = _groups(BufferAnalysis(tiny_hlo.loop(kinds="k")))
    self.assertFalse([g for g in groups if "initial0" in g])

  def test_swapped_carries_are_one_buffer_after_all(self):
    # XLA copies one of them beforehand, or this would compute nonsense.
    groups = _groups(BufferAnalysis(tiny_hlo.loop(kinds="ss")))
    (both,) = [g for g in groups if "initial0" in g]
    self.assertContainsSubset({"initial1", "carry.1", "carry.2"}, both)

  def test_a_conditional_writes_where_its_result_is_expected(self):
    builder = tiny_hlo.Builder()
    branches = []
    for name in ("left", "right"):
      branch = builder.computation(name)
      branch.op("dot", f32(8), branch.parameter(f32(8)), name=name)
      branches.append(branch)
    main = builder.computation("main")
    index, x = main.parameter(s32()), main.parameter(f32(8), name="x")
    main.op("conditional", f32(8), index, x, x, calls=branches, name="c")
    groups = _groups(BufferAnalysis(builder.module(main)))
    self.assertEqual(groups, [{"left", "right", "c"}])

  def test_an_asynchronous_result_is_the_callees(self):
    builder = tiny_hlo.Builder()
    callee = builder.computation("callee")
    callee.op("tanh", f32(8), callee.parameter(f32(8)), name="made")
    main = builder.computation("main")
    x = main.parameter(f32(8))
    shape = tuple_of(tuple_of(f32(8)), f32(8), s32())
    start = main.op("async-start", shape, x, calls=(callee,), name="start")
    main.op("async-done", f32(8), start, name="done")
    analysis = BufferAnalysis(builder.module(main))
    self.assertEqual(_groups(analysis), [])
    trees = analysis.dataflow.trees
    done = trees[named(analysis.module, "done").id][()]
    made = trees[named(analysis.module, "made").id][()]
    self.assertIs(analysis.buffer_of(done), analysis.buffer_of(made))


class SharingTest(parameterized.TestCase):
  def can_share(self, opcode, shape, platform="cpu", **fields):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.op("tanh", f32(8), main.parameter(f32(8)), name="x")
    main.op(opcode, shape, x, name="user", **fields)
    module = builder.module(main)
    operand, user = named(module, "x"), named(module, "user")
    return aliasing.can_share(module, platform, operand, (), user, ())

  @parameterized.parameters("negate", "tanh", "convert")
  def test_elementwise(self, opcode):
    self.assertTrue(self.can_share(opcode, f32(8)))
    self.assertFalse(self.can_share(opcode, f32(16)))

  @parameterized.parameters("copy", "reverse", "dot", "reduce", "transpose")
  def test_not_elementwise(self, opcode):
    self.assertFalse(self.can_share(opcode, f32(8)))

  def test_constants_are_never_overwritten(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    one = main.op("constant", f32(8), name="one")
    main.op("negate", f32(8), one, name="user")
    module = builder.module(main)
    one, user = named(module, "one"), named(module, "user")
    self.assertFalse(aliasing.can_share(module, "cpu", one, (), user, ()))

  def test_another_layout(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.op("tanh", f32(2, 4), main.parameter(f32(2, 4)), name="x")
    turned = f32(2, 4)
    turned.layout.minor_to_major[:] = [0, 1]
    main.op("negate", turned, x, name="user")
    module = builder.module(main)
    x, user = named(module, "x"), named(module, "user")
    self.assertFalse(aliasing.can_share(module, "cpu", x, (), user, ()))

  @parameterized.parameters(
    ("cpu", "negate", True),
    ("cuda", "negate", True),
    ("cpu", "reverse", False),
    ("cuda", "reverse", False),
  )
  def test_fusions(self, platform, opcode, expected):
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    changed = body.op(opcode, f32(8), body.parameter(f32(8)))
    body.op("tanh", f32(8), changed)
    main = builder.computation("main")
    x = main.op("tanh", f32(8), main.parameter(f32(8)), name="x")
    main.op(
      "fusion", f32(8), x, calls=(body,), name="user", fusion_kind="kLoop"
    )
    module = builder.module(main)
    x, user = named(module, "x"), named(module, "user")
    self.assertEqual(
      aliasing.can_share(module, platform, x, (), user, ()), expected
    )

  @parameterized.parameters(("cpu", False), ("cuda", True))
  def test_bitcasts_inside_fusions_matter_on_the_cpu_only(
    self, platform, expected
  ):
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    view = body.op("bitcast", f32(2, 4), body.parameter(f32(8)))
    body.op("tanh", f32(2, 4), view)
    main = builder.computation("main")
    x = main.op("tanh", f32(8), main.parameter(f32(8)), name="x")
    main.op(
      "fusion", f32(2, 4), x, calls=(body,), name="user", fusion_kind="kLoop"
    )
    module = builder.module(main)
    x, user = named(module, "x"), named(module, "user")
    self.assertEqual(
      aliasing.can_share(module, platform, x, (), user, ()), expected
    )


class RecordedTest(parameterized.TestCase):
  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_every_value_has_one_buffer(self, name):
    analysis = BufferAnalysis(record_modules.load(name).module)
    held = [v for b in analysis.buffers for v in b.values]
    self.assertCountEqual(held, analysis.dataflow.values)
    for buffer in analysis.buffers:
      for value in buffer.values:
        self.assertIs(analysis.buffer_of(value), buffer)
        self.assertGreaterEqual(buffer.size_bytes, value.size_bytes)
        self.assertEqual(buffer.memory_space, value.memory_space)

  def test_the_donated_table_is_scattered_into(self):
    analysis = BufferAnalysis(record_modules.load("branch_cpu").module)
    (donated,) = analysis.donated
    self.assertTrue(analysis.buffer_of(donated).is_live_out)
    written = {written for _, written, _ in analysis.writes}
    self.assertTrue(written & set(analysis.buffer_of(donated).values))


if __name__ == "__main__":
  absltest.main()
