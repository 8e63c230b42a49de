"""Buffers of a layout: in the device's memory, and what they are."""

import record_modules
import tiny_hlo
from absl.testing import absltest, parameterized
from jaxmem_hlo.assignment import AssignmentModel
from tiny_hlo import f32

from jaxmem.report import layout, origins_in, peak_rows
from jaxmem.rewrite import Edits, apply_edits
from jaxmem.rewrite.edits import Offload, Value


class LayoutTest(parameterized.TestCase):
  @parameterized.parameters(*record_modules.PROGRAMS)
  def test_buffers_are_what_the_rows_of_the_peak_say(self, name):
    recorded = record_modules.load(name)
    model = AssignmentModel(recorded.module, recorded.platform)
    assigned = model.assign()
    origins = origins_in(model, {})
    rows = {
      row.name: row
      for row in peak_rows(
        origins, assigned, output_paths=(), total_bytes=assigned.program_bytes
      )
      if not row.argument
    }
    placed = layout.describe(recorded.module, assigned, origins)
    found = [b for b in placed.at_peak() if b.name in rows]
    self.assertEqual(bool(found), bool(placed.at_peak()))
    for buffer in found:
      row = rows[buffer.name]
      self.assertEqual(buffer.kind, row.kind)
      self.assertEqual(buffer.module, "/".join(row.module))
      self.assertIn(buffer.operation, _names(recorded.module))
    plain = layout.describe(recorded.module, assigned)
    self.assertEqual({b.kind for b in plain.buffers}, {""})

  def test_what_is_on_the_host_takes_nothing_here(self):
    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(f32(250), name="x")
    value = main.op("dot", f32(250), x, name="value")
    last = value
    for number in range(4):
      last = main.op("dot", f32(250), last, name=f"kernel.{number}")
    main.op("dot", f32(250), last, value, name="last")
    module = builder.module(main)
    ids = {i.name: i.id for i in module.entry.instructions}
    move = Offload(
      value=Value(instruction=ids["value"]),
      store_done=ids["kernel.1"],
      fetch_start=ids["kernel.3"],
      fetch_done=ids["last"],
    )
    moved = apply_edits(module, Edits(offloads=(move,)), "cuda")
    assigned = AssignmentModel(moved, "cuda").assign()
    placed = layout.describe(moved, assigned)
    self.assertEqual(placed.temp_bytes, assigned.temp_bytes)
    self.assertLessEqual(placed.max_live_bytes, placed.temp_bytes)
    self.assertGreaterEqual(placed.fragmentation_bytes, 0)
    on_host = [v.name for v in assigned.ranges if v.memory_space]
    self.assertNotEmpty(on_host)
    self.assertEmpty({b.name for b in placed.buffers} & {*on_host})


def _names(module):
  """Returns all names of operations, without their scopes."""
  return {
    i.proto.metadata.op_name.rpartition("/")[2]
    for computation in module.computations
    for i in computation.instructions
  }


if __name__ == "__main__":
  absltest.main()
