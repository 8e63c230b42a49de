"""Tests of jaxmem_hlo.module."""

import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.module import Module
from jaxmem_hlo.proto import hlo_pb2

_LENGTHS = {1: 8, 5: 4}


def _fields(data: bytes) -> list[tuple[int, int, bytes]]:
  """Splits a message into (field, wire type, payload), without a schema."""
  fields = []
  position = 0
  while position < len(data):
    key, position = _varint(data, position)
    start = position
    kind = key & 7
    if kind == 0:
      _, position = _varint(data, position)
    elif kind == 2:
      length, start = _varint(data, position)
      position = start + length
    elif kind in _LENGTHS:
      position += _LENGTHS[kind]
    else:
      raise ValueError(f"wire type {kind}")
    if position > len(data):
      raise ValueError("cut short")
    fields.append((key >> 3, kind, data[start:position]))
  return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
  value = shift = 0
  while True:
    byte = data[position]
    position += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, position
    shift += 7


def _walk(message: bytes, path: tuple[int, ...]) -> list[tuple[object, ...]]:
  """Lists every field at every depth, in an order that does not matter.

  Fields of one message keep their order only within one field number; entries
  of the schedule, a map, keep none.
  """
  leaves: list[tuple[object, ...]] = []
  count: dict[int, int] = {}
  fields = _fields(message)
  if path == (7,):
    fields.sort()
  for number, kind, payload in fields:
    count[number] = count.get(number, -1) + 1
    here = (*path, number)
    at = (*here, -1 - count[number])
    if kind == 2 and here[:2] != (7, 1) and _is_message(here):
      leaves.append((here, count[number], "message"))
      leaves.extend((at, *leaf) for leaf in _walk(payload, here))
    else:
      leaves.append((here, count[number], payload))
  return leaves


def _is_message(path: tuple[int, ...]) -> bool:
  """Whether the schema has messages at a path; the rest is compared as bytes.

  Of the nested messages, those in which jaxmem reads only a part matter: an
  unknown field in them is the first to be lost.
  """
  descriptor = hlo_pb2.Module.DESCRIPTOR
  for number in path:
    field = descriptor.fields_by_number.get(number)
    if field is None or field.message_type is None:
      return False
    descriptor = field.message_type
  return True


class RoundTripTest(parameterized.TestCase):
  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_keeps_every_field_at_every_depth(self, name):
    data = record_modules.load(name).data
    again = Module.from_bytes(data).to_bytes()
    before, after = _walk(data, ()), _walk(again, ())
    self.assertGreater(len(before), 500)
    self.assertCountEqual(before, after)
    self.assertEqual(len(data), len(again))

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_recorded_modules_have_fields_that_the_schema_lacks(self, name):
    # Else the test above would not show that unknown fields survive.
    known = {f.number for f in hlo_pb2.Module.DESCRIPTOR.fields}
    fields = {f[0] for f in _fields(record_modules.load(name).data)}
    self.assertNotEmpty(fields - known)

  def test_the_walk_sees_a_lost_unknown_field(self):
    data = record_modules.load("mlp_cpu").data
    proto = hlo_pb2.Module.FromString(data)
    for instruction in proto.computations[-1].instructions:
      instruction.DiscardUnknownFields()  # pyright: ignore
    self.assertNotEqual(_walk(data, ()), _walk(proto.SerializeToString(), ()))

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_parses_equal(self, name):
    module = record_modules.load(name).module
    self.assertEqual(Module.from_bytes(module.to_bytes()).proto, module.proto)


class AccessTest(parameterized.TestCase):
  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_every_reference_resolves(self, name):
    module = record_modules.load(name).module
    self.assertRegex(module.name, "^jit_")
    for computation in module.computations:
      self.assertIs(module.by_id[computation.id], computation)
      for instruction in computation.instructions:
        self.assertIs(module.instruction(instruction.id), instruction)
        self.assertIs(instruction.computation, computation)
        for operand in instruction.operands:
          self.assertIn(instruction, computation.users[operand])
        for callee in instruction.callees:
          self.assertIn(callee, module.by_id)

  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_schedules_hold_every_instruction_once(self, name):
    module = record_modules.load(name).module
    self.assertTrue(module.is_scheduled(module.entry.id))
    for computation_id in module.scheduled_ids:
      scheduled = module.schedule(computation_id)
      computation = module.by_id[computation_id]
      self.assertCountEqual(scheduled, computation.instructions)

  def test_fusion_bodies_are_not_scheduled(self):
    module = record_modules.load("mlp_cpu").module
    bodies = [c for c in module.computations if c.is_fusion]
    self.assertNotEmpty(bodies)
    for body in bodies:
      self.assertFalse(module.is_scheduled(body.id))
      with self.assertRaisesRegex(ValueError, f"{body.name} is not scheduled"):
        module.schedule(body.id)

  def test_views(self):
    builder = tiny_hlo.Builder()
    body = builder.fusion("body")
    body.parameter(tiny_hlo.f32(2))
    main = builder.computation("main")
    second = main.op(
      "parameter", tiny_hlo.f32(2), name="second", parameter_number=1
    )
    first = main.parameter(tiny_hlo.f32(2), name="first")
    total = main.op("add", tiny_hlo.f32(2), first, first, name="total")
    main.op(
      "fusion",
      tiny_hlo.f32(2),
      total,
      second,
      name="fused",
      calls=(body,),
      after=(first,),
    )
    module = builder.module(main, donations=[(1, ()), (0, (2, 0))])
    entry = module.entry
    self.assertEqual([p.name for p in entry.parameters], ["first", "second"])
    self.assertEqual(entry.root.name, "fused")
    self.assertEqual(entry.root.callees, (body.proto.id,))
    self.assertEqual(entry.root.control_predecessors, (first,))
    self.assertEqual(repr(entry.root), "<fusion fused>")
    self.assertEqual(repr(entry), "<computation main>")
    # An operand that is named twice has one user.
    self.assertEqual([u.name for u in entry.users[first]], ["total"])
    self.assertEqual(module.instruction(total).operands, (first, first))
    self.assertEqual(module.donations, {(1, ()): (), (0, ()): (2, 0)})
    self.assertTrue(module.by_id[body.proto.id].is_fusion)
    self.assertEqual(module.scheduled_ids, [entry.id])

  def test_donations_of_a_recorded_step(self):
    module = record_modules.load("mlp_cpu").module
    # Three weights and three momenta, returned in the same order.
    expected = {(i, ()): (i,) for i in range(6)}
    self.assertEqual(module.donations, expected)

  def test_source_names_the_users_line(self):
    module = record_modules.load("mlp_cpu").module
    sources = {module.source(i) for i in module.entry.instructions}
    matching = [s for s in sources if s.startswith("record_modules.py:")]
    self.assertGreater(len(matching), 2)

  def test_source_prefers_the_file_then_the_frame_then_the_scope(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(tiny_hlo.f32(2), name="x")
    for name in ("unknown", "scoped", "framed", "installed", "lined"):
      main.op("negate", tiny_hlo.f32(2), x, name=name)
    module = builder.module(main)
    index = module.proto.stack_frame_index
    index.file_names[:] = ["a.py", "/lib/site-packages/flax/b.py", "c.py"]
    for i in range(3):
      index.file_locations.add(file_name_id=i + 1, line=10 + i)
    # Frames from the outside in: a.py calls flax/b.py, which calls c.py.
    for i in range(3):
      index.stack_frames.add(file_location_id=i + 1, parent_frame_id=i)
    metadata = {i.name: i.proto.metadata for i in module.entry.instructions}
    for name in ("scoped", "framed", "installed", "lined"):
      metadata[name].op_name = "jit(f)/neg"
    metadata["framed"].stack_frame_id = 3
    metadata["installed"].stack_frame_id = 2
    metadata["lined"].stack_frame_id = 3
    metadata["lined"].source_file = "d.py"
    metadata["lined"].source_line = 5
    sources = {
      name: module.source(tiny_hlo.named(module, name)) for name in metadata
    }
    expected = {
      "x": "",
      "unknown": "",
      "scoped": "jit(f)/neg",
      "framed": "c.py:12",
      "installed": "a.py:10 via flax/b.py:11",
      "lined": "d.py:5",
    }
    self.assertEqual(sources, expected)


class EditTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.recorded = record_modules.load("scan_cpu")
    self.module = self.recorded.module

  def ids(self, module, computation_id):
    return [i.id for i in module.schedule(computation_id)]

  def test_set_schedule_is_written(self):
    entry = self.module.entry.id
    others = [c for c in self.module.scheduled_ids if c != entry]
    before = {c: self.ids(self.module, c) for c in others}
    order = self.recorded.orders[entry]
    self.assertNotEqual(self.ids(self.module, entry), order)
    self.module.set_schedule(entry, order)
    again = Module.from_bytes(self.module.to_bytes())
    self.assertEqual(self.ids(again, entry), order)
    self.assertEqual({c: self.ids(again, c) for c in others}, before)
    self.assertEqual(again.proto.computations, self.module.proto.computations)

  def test_with_schedules_leaves_the_module_alone(self):
    copy = self.module.with_schedules(self.recorded.orders)
    for computation_id, order in self.recorded.orders.items():
      self.assertEqual(self.ids(copy, computation_id), order)
    self.assertEqual(self.module.to_bytes(), self.recorded.module.to_bytes())

  def test_copies_have_the_schedules_of_their_time(self):
    entry = self.module.entry.id
    before, order = self.ids(self.module, entry), self.recorded.orders[entry]
    early = self.module.with_schedules({})
    self.module.set_schedule(entry, order)
    late = self.module.with_schedules({})
    self.assertEqual(self.ids(early, entry), before)
    self.assertEqual(self.ids(late, entry), order)

  def test_copies_are_written_whole(self):
    self.module.with_schedules({}).set_schedule(self.module.entry.id, [])
    again = self.module.with_schedules({})
    self.assertEqual(again.to_bytes(), self.module.to_bytes())
    # The same once its message was asked for.
    self.assertEqual(again.with_schedules({}).to_bytes(), again.to_bytes())

  def test_who_is_gone_has_no_schedule(self):
    gone = self.module.scheduled_ids[0]
    self.assertNotEqual(gone, self.module.entry.id)
    kept = [c.proto for c in self.module.computations if c.id != gone]
    changed = self.module.with_computations(kept)
    others = [c for c in self.module.scheduled_ids if c != gone]
    self.assertEqual(changed.scheduled_ids, others)
    self.assertNotIn(gone, changed.proto.schedule.sequences)
    self.assertIn(gone, self.module.proto.schedule.sequences)


class ErrorTest(absltest.TestCase):
  def test_not_a_module(self):
    with self.assertRaisesRegex(ValueError, "Not a serialized HloModuleProto"):
      Module.from_bytes(b"\xff\xff\xff")

  def test_no_entry(self):
    with self.assertRaisesRegex(ValueError, "Module none has no entry"):
      Module.from_bytes(hlo_pb2.Module(name="none").SerializeToString())

  def test_no_root(self):
    proto = hlo_pb2.Module(name="one", entry_computation_id=1)
    proto.computations.add(name="main", id=1, root_id=3)
    with self.assertRaisesRegex(ValueError, "Computation main has no root"):
      _ = Module(proto).entry.root


if __name__ == "__main__":
  absltest.main()
