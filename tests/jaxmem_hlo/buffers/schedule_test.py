"""Tests of jaxmem_hlo.schedule."""

import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.buffers import BufferAnalysis, schedule
from jaxmem_hlo.buffers.schedule import ScheduleError, Timeline
from tiny_hlo import f32, named, s32, tuple_of


def _times(timeline, module):
  """Returns the names on the line, in order."""
  at = sorted((time, key) for key, time in timeline.times.items())
  return [module.instruction(key).name for _, key in at]


def _ranges(module, orders=None):
  analysis = BufferAnalysis(module)
  ranges = schedule.live_ranges(analysis, Timeline(module, orders))
  return {value.name: (r.start, r.end) for value, r in ranges.items()}


def _diamond():
  """x -> a, b; a, b -> c; f32[8] throughout."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(8), name="x")
  a = main.op("dot", f32(8), x, name="a")
  b = main.op("dot", f32(8), x, name="b")
  main.op("add", f32(8), a, b, name="c")
  return builder.module(main)


class TimelineTest(parameterized.TestCase):
  def test_condition_and_body_come_before_their_loop(self):
    module = tiny_hlo.loop(kinds="u")
    timeline = Timeline(module)
    names = _times(timeline, module)
    self.assertEqual(names[:3], ["zero", "initial0", "start"])
    self.assertEqual([names[3], names[6]], ["seen", "test"])
    self.assertEqual([names[7], names[10]], ["carry", "count"])
    self.assertEqual(names[12:], ["update0", "next", "loop"])
    self.assertEqual(timeline.length, 15)
    spans = {module.by_id[k].name: s for k, s in timeline.spans.items()}
    expected = {"condition": (3, 7), "body": (7, 14), "main": (0, 15)}
    self.assertEqual(spans, expected)

  @parameterized.parameters("call", "conditional")
  def test_callees_come_before_their_caller(self, opcode):
    builder = tiny_hlo.Builder()
    callees = []
    for name in ("first", "second")[: 1 + (opcode == "conditional")]:
      callee = builder.computation(name)
      callee.parameter(f32(8), name=name)
      callees.append(callee)
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    main.op(opcode, f32(8), x, calls=callees, name="caller")
    module = builder.module(main)
    names = _times(Timeline(module), module)
    self.assertEqual(names, ["x", *(c.proto.name for c in callees), "caller"])

  @parameterized.named_parameters(
    ("since_0_12", "0.12.0", ["x", "caller", "inner"]),
    ("until_0_11", "0.11.2", ["x", "inner", "caller"]),
  )
  def test_where_an_asynchronous_callee_comes(self, version, expected):
    builder = tiny_hlo.Builder()
    callee = builder.computation("callee")
    callee.parameter(f32(8), name="inner")
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    main.op("async-start", f32(8), x, calls=(callee,), name="caller")
    module = builder.module(main)
    with tiny_hlo.jaxlib(version):
      names = _times(Timeline(module), module)
    self.assertEqual(names, expected)

  def test_fusions_are_one_step(self):
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    body.op("negate", f32(8), body.parameter(f32(8)))
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    main.op("fusion", f32(8), x, calls=(body,), name="fused")
    module = builder.module(main)
    self.assertEqual(_times(Timeline(module), module), ["x", "fused"])

  def test_orders_replace_schedules(self):
    module = _diamond()
    ids = [named(module, n).id for n in ("x", "b", "a", "c")]
    timeline = Timeline(module, {module.entry.id: ids})
    self.assertEqual(_times(timeline, module), ["x", "b", "a", "c"])
    self.assertEqual(_times(Timeline(module), module), ["x", "a", "b", "c"])

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_recorded_schedules_run_callees_before_callers(self, name):
    module = record_modules.load(name).module
    analysis = BufferAnalysis(module)
    timeline = Timeline(module)
    self.assertCountEqual(timeline.times.values(), range(timeline.length))
    for computation in analysis.dataflow.computations:
      start, end = timeline.spans[computation.id]
      caller = analysis.dataflow.callers.get(computation.id)
      if caller is not None and caller.opcode != "async-start":
        self.assertLessEqual(end, timeline.times[caller.id])
      for instruction in computation.instructions:
        self.assertBetween(timeline.times[instruction.id], start, end - 1)


class LiveRangeTest(absltest.TestCase):
  def test_straight_line(self):
    # Times: x 0, a 1, b 2, c 3; the end is 4. An argument that is not donated
    # lives to the end, and so does the result.
    expected = {"x": (0, 4), "a": (1, 3), "b": (2, 3), "c": (3, 4)}
    self.assertEqual(_ranges(_diamond()), expected)

  def test_another_order(self):
    module = _diamond()
    ids = [named(module, n).id for n in ("x", "b", "a", "c")]
    expected = {"x": (0, 4), "b": (1, 3), "a": (2, 3), "c": (3, 4)}
    self.assertEqual(_ranges(module, {module.entry.id: ids}), expected)

  def test_an_unused_value_lives_while_it_is_made(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    main.op("dot", f32(8), x, name="unused")
    main.op("negate", f32(8), x, name="y")
    ranges = _ranges(builder.module(main))
    self.assertEqual(ranges["unused"], (1, 1))

  def test_a_donated_argument_ends_at_its_last_read(self):
    module = _diamond()
    module.proto.input_output_alias.entries.add(parameter_number=0)
    ranges = _ranges(module)
    # b is the last to read x; c then takes its place.
    self.assertEqual(ranges["x"], (0, 2))
    self.assertEqual(ranges["c"], (3, 4))

  def test_a_value_seen_through_a_bitcast_lives_as_long_as_that(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    a = main.op("dot", f32(8), x, name="a")
    view = main.op("bitcast", f32(2, 4), a, name="view")
    main.op("dot", f32(8), x, name="b")
    main.op("dot", f32(8), view, name="c")
    # Times: x 0, a 1, view 2, b 3, c 4.
    self.assertEqual(_ranges(builder.module(main))["a"], (1, 4))

  def test_a_carried_value_is_handed_on(self):
    module = tiny_hlo.loop(kinds="u")
    module.proto.input_output_alias.entries.add(
      parameter_number=0, output_shape_index=[1]
    )
    ranges = _ranges(module)
    # Times: initial0 1, condition 3-6, body 7-13 with update0 at 12, loop 14.
    # Each value of the buffer ends where the next one starts.
    self.assertEqual(ranges["initial0"], (0, 3))
    self.assertEqual(ranges["seen.1"], (3, 7))
    self.assertEqual(ranges["carry.1"], (7, 12))
    self.assertEqual(ranges["update0"], (12, 14))
    self.assertEqual(ranges["loop.1"], (14, 15))

  def test_what_a_loop_keeps_lives_through_it(self):
    module = tiny_hlo.loop(kinds="k")
    module.proto.input_output_alias.entries.add(
      parameter_number=0, output_shape_index=[1]
    )
    start, end = _ranges(module)["initial0"]
    self.assertEqual((start, end), (0, Timeline(module).length))

  def test_arguments_of_a_call_live_until_the_callee_read_them(self):
    builder = tiny_hlo.Builder()
    callee = builder.computation("callee")
    given = callee.parameter(f32(8), name="given")
    first = callee.op("dot", f32(8), given, name="first")
    callee.op("dot", f32(8), first, name="second")
    main = builder.computation("main")
    x = main.op("dot", f32(8), main.parameter(f32(8)), name="x")
    main.op("call", f32(8), x, calls=(callee,), name="call")
    # Times: parameter 0, x 1, given 2, first 3, second 4, call 5.
    ranges = _ranges(builder.module(main))
    self.assertEqual(ranges["x"], (1, 3))
    self.assertEqual(ranges["first"], (3, 4))
    self.assertEqual(ranges["second"], (4, 6))

  def test_a_value_made_asynchronously_lives_until_it_is_done(self):
    builder = tiny_hlo.Builder()
    callee = builder.computation("callee")
    callee.op("dot", f32(8), callee.parameter(f32(8)), name="made")
    main = builder.computation("main")
    x = main.parameter(f32(8), name="x")
    shape = tuple_of(tuple_of(f32(8)), f32(8), s32())
    start = main.op("async-start", shape, x, calls=(callee,), name="start")
    other = main.op("dot", f32(8), x, name="other")
    done = main.op("async-done", f32(8), start, name="done")
    main.op("add", f32(8), other, done, name="sum")
    with tiny_hlo.jaxlib("0.12.0"):
      ranges = _ranges(builder.module(main))
    # Times: x 0, start 1, callee 2-3, other 4, done 5, sum 6.
    self.assertEqual(ranges["made"], (3, 6))
    self.assertEqual(ranges["other"], (4, 6))


class CheckTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.module = _diamond()

  def check(self, *names):
    ids = [named(self.module, n).id for n in names]
    schedule.check_schedule(self.module.entry, ids)

  def test_accepts_every_topological_order(self):
    self.check("x", "a", "b", "c")
    self.check("x", "b", "a", "c")

  @parameterized.parameters(
    (("x", "a", "b"), "c is not in the schedule"),
    (("a", "b", "c"), "a is scheduled before x, which it needs"),
    (("x", "a", "c", "b"), "c is scheduled before b, which it needs"),
    (("x", "a", "b", "a", "c"), "a is scheduled twice"),
    ((), "a is not in the schedule"),
  )
  def test_names_the_fault(self, names, message):
    with self.assertRaisesRegex(ScheduleError, f"^{message}"):
      self.check(*names)

  def test_names_a_broken_control_dependency(self):
    a, b = named(self.module, "a"), named(self.module, "b")
    a.proto.control_predecessor_ids.append(b.id)
    self.check("x", "b", "a", "c")
    with self.assertRaisesRegex(ScheduleError, "a is scheduled before b"):
      self.check("x", "a", "b", "c")

  def test_names_a_stranger(self):
    with self.assertRaisesRegex(ScheduleError, "77 is not an instruction of m"):
      schedule.check_schedule(self.module.entry, [77])

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_every_swap_that_breaks_a_recorded_schedule_is_found(self, name):
    module = record_modules.load(name).module
    ids = [i.id for i in module.schedule(module.entry.id)]
    schedule.check_schedule(module.entry, ids)
    position = {key: i for i, key in enumerate(ids)}
    for instruction in module.entry.instructions:
      for operand in instruction.operands:
        broken = ids.copy()
        i, j = position[instruction.id], position[operand]
        broken[i], broken[j] = broken[j], broken[i]
        with self.assertRaises(ScheduleError):
          schedule.check_schedule(module.entry, broken)

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_shuffled_recorded_schedules_are_valid(self, name):
    recorded = record_modules.load(name)
    module = recorded.module
    for computation_id, order in recorded.orders.items():
      schedule.check_schedule(module.by_id[computation_id], order)


if __name__ == "__main__":
  absltest.main()
