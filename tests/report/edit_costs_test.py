"""What single edits free at the peak and take, of modules made by hand."""

import tiny_hlo
from absl.testing import absltest
from jaxmem_hlo.assignment import AssignmentModel
from tiny_hlo import f32

from jaxmem import cost
from jaxmem.report import edit_costs
from jaxmem.report.edits_report import edits_html, edits_lines
from jaxmem.report.plan_data import EditCost
from jaxmem.rewrite import Edits, apply_edits
from jaxmem.rewrite.edits import Offload, Recompute, Value

# A kernel takes a second for each kilobyte that it reads or writes, a copy half
# a second for one.
_RATES = cost.Rates(
  memory_bytes_per_s=1000.0,
  tf32_flops_per_s=1e30,
  bf16_flops_per_s=1e30,
  fp32_flops_per_s=1e30,
  to_host_bytes_per_s=2000.0,
  from_host_bytes_per_s=2000.0,
  launch_s=0.0,
  efficiency=cost.Efficiency(flops=1.0, memory=1.0, link=1.0),
)


def _ordered():
  """Makes a, reads it, has a peak without it, and reads it again."""
  builder = tiny_hlo.Builder()
  main = builder.computation("main")
  x = main.parameter(f32(250), name="x")
  a = main.op("dot", f32(250), x, name="a")
  b = main.op("dot", f32(250), a, name="b")
  peak = main.op("dot", f32(1000), b, name="peak")
  small = main.op("dot", f32(250), peak, name="small")
  more = main.op("dot", f32(250), small, name="more")
  main.op("dot", f32(250), more, a, name="last")
  module = builder.module(main)
  ids = {i.name: i.id for i in module.entry.instructions}
  return AssignmentModel(module, "cuda"), ids


def _costs(ordered, edits):
  planned = apply_edits(ordered.module, edits, "cuda")
  return edit_costs.edit_costs(ordered, edits, planned, _RATES)


class EditCostsTest(absltest.TestCase):
  def test_a_second_run(self):
    ordered, ids = _ordered()
    again = Recompute(value=Value(instruction=ids["a"]), before=ids["last"])
    (row,) = _costs(ordered, Edits(recomputes=(again,)))
    self.assertEqual((row.kind, row.name), ("recompute", "a"))
    # It reads 1000 bytes and writes as many.
    self.assertEqual((row.freed_bytes, row.extra_s), (1000, 2.0))

  def test_one_that_is_needed_at_the_peak_frees_nothing_there(self):
    ordered, ids = _ordered()
    again = Recompute(value=Value(instruction=ids["b"]), before=ids["peak"])
    (row,) = _costs(ordered, Edits(recomputes=(again,)))
    self.assertEqual(row.freed_bytes, 0)

  def test_a_value_that_moves(self):
    ordered, ids = _ordered()
    move = Offload(
      value=Value(instruction=ids["a"]),
      store_done=ids["peak"],
      fetch_start=ids["more"],
      fetch_done=ids["last"],
    )
    (row,) = _costs(ordered, Edits(offloads=(move,)))
    self.assertEqual((row.kind, row.name), ("offload", "a"))
    # Both copies take half a second, behind kernels of two.
    self.assertEqual((row.freed_bytes, row.extra_s), (1000, 0.0))

  def test_a_copy_that_is_waited_for(self):
    ordered, ids = _ordered()
    move = Offload(
      value=Value(instruction=ids["a"]),
      store_done=ids["peak"],
      fetch_start=ids["last"],
      fetch_done=ids["last"],
    )
    (row,) = _costs(ordered, Edits(offloads=(move,)))
    self.assertEqual((row.freed_bytes, row.extra_s), (1000, 0.5))

  def test_rows_are_completed(self):
    def row(name, freed_bytes, extra_s):
      return EditCost(
        kind="recompute",
        name=name,
        source="",
        freed_bytes=freed_bytes,
        extra_s=extra_s,
      )

    rows = [row("a", 100, 1.0), row("b", 300, 0.5), row("nothing", 0, 0.0)]
    found = edit_costs.completed(rows, 350, 2.0)
    self.assertEqual([r.name for r in found[:2]], ["b", "a"])
    rest = found[2]
    self.assertEqual((rest.kind, rest.freed_bytes), ("all else", -50))
    self.assertAlmostEqual(rest.extra_s, 0.5)
    self.assertLen(found, 3)
    self.assertEmpty(edit_costs.completed([], 0, 0.0))


class ReportTest(absltest.TestCase):
  def _edits(self, count):
    return [
      EditCost(
        kind="recompute",
        name=f"<b>{k}",
        source="f.py:3",
        freed_bytes=1 << 20,
        extra_s=1e-3,
      )
      for k in range(count)
    ]

  def test_what_is_too_much_to_show_is_one_row(self):
    lines = edits_lines(self._edits(20))
    # A head, seven edits, the thirteen others, and all together.
    self.assertLen(lines, 10)
    self.assertIn("13 that free less", lines[-2])
    self.assertIn("13.0 MiB", lines[-2])
    self.assertIn("20.0 MiB", lines[-1])
    self.assertIn("+20.000 ms", lines[-1])
    page = edits_html(self._edits(700))
    self.assertEqual(page.count("<tr>"), 502)
    self.assertIn("201 that free less", page)

  def test_names_are_text(self):
    page = edits_html(self._edits(3))
    self.assertNotIn("<b>", page)
    self.assertIn("&lt;b&gt;2", page)

  def test_nothing_was_edited(self):
    self.assertEmpty(edits_lines([]))


if __name__ == "__main__":
  absltest.main()
