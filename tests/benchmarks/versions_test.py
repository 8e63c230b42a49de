"""What versions take: rows of a tiny step, and the tables that are made."""

import benchmark_process
import pytest
from absl.testing import absltest

from benchmarks import page, versions_report


def _rows(model, *flags):
  return benchmark_process.rows(
    *("versions_benchmark", f"--cases={model}:cpu"),
    *("--size=tiny", "--batch=2", *flags),
  )


class RowsTest(absltest.TestCase):
  @pytest.mark.slow
  def test_blocks_that_keep_more_add_less(self):
    written, *blocks = _rows("gpt2_small", "--shares=0.5,1")
    self.assertNotIn("share", written)
    self.assertEqual([r["share"] for r in blocks], [0.0, 0.5, 1.0])
    added = [r["extra"] for r in blocks]
    self.assertEqual(added, sorted(added, reverse=True))
    kept = [r["kept_bytes"] for r in blocks]
    self.assertEqual(kept, sorted(kept))
    self.assertLess(blocks[0]["temp_bytes"], written["temp_bytes"])

  @pytest.mark.slow
  def test_loops_stack_less(self):
    written, *loops = _rows(
      "scan_transformer", "--kind=loops", "--saved_mb=all"
    )
    self.assertEqual([r["keep_bits"] for r in loops], [True, False])
    for row in loops:
      self.assertGreater(row["saved_bytes"], 0)
      self.assertLess(row["temp_bytes"], written["temp_bytes"])

  @pytest.mark.slow
  def test_operands_that_are_written_first(self):
    (row,) = benchmark_process.rows(
      *("operands_benchmark", "--steps=lora", "--rounds=1")
    )
    self.assertLess(row["estimated"], 1.0)
    self.assertLen(row["temp_bytes"], 2)


class TablesTest(absltest.TestCase):
  def test_of_blocks(self):
    known = {"model": "m", "target": "cpu"}
    text = versions_report.blocks_table(
      [
        known | {"temp_bytes": 9e6, "extra": 0.0},
        known | {"share": 0.0, "temp_bytes": 2e6, "extra": 0.2},
        known
        | {"share": 0.5, "temp_bytes": 4e6, "extra": 0.1}
        | {"estimated_extra": 0.09},
        known | {"target": "h200", "temp_bytes": 8e6, "extra": 0.0},
      ]
    )
    lines = text.splitlines()
    self.assertEqual(lines[0], "|  | as written | 0% | 50% |")
    self.assertEqual(lines[2], "| `m`, cpu: temporaries MB | 9 | 2 | 4 |")
    self.assertEqual(lines[3], "| added % |  | 20.0 | 10.0 |")
    self.assertEqual(lines[4], "| estimated % |  |  | 9.0 |")
    # What was not measured has no figure.
    self.assertEqual(lines[5], "| `m`, h200: temporaries MB | 8 |  |  |")

  def test_of_loops(self):
    rows = [{"temp_bytes": 9e6, "extra": 0.0}]
    for asked, keep_bits, extra in (
      (10**6, False, -0.2),
      (10**6, True, -0.1),
      ("all", True, 0.0),
      ("all", False, 0.1),
    ):
      row = {"asked_bytes": asked, "keep_bits": keep_bits, "extra": extra}
      rows.append(row | {"temp_bytes": 5e6 if keep_bits else 4e6})
    lines = versions_report.loops_table(rows).splitlines()
    self.assertEqual(lines[2], "| 1 MB | 5 | -10.0 | 4 | -20.0 |")
    self.assertEqual(lines[3], "| all | 5 | 0.0 | 4 | 10.0 |")

  def test_of_operands(self):
    interval = {"median_of_ratios_interval": [0.4, 0.625]}
    row = {
      "step": "m",
      "policy": "none",
      "wall": {"median_of_ratios": 0.5} | interval,
      "estimated": 0.75,
      "temp_bytes": [4e6, 3e6],
    }
    text = versions_report.operands_table([row, row | {"policy": "dots"}])
    lines = text.splitlines()
    self.assertEqual(lines[2], "| `m` |  | 0.50 (0.40 to 0.62) | 0.75 | 0.75 |")
    self.assertStartsWith(lines[3], "| `m` | `dots` |")

  def test_the_pages_are_those_of_the_rows(self):
    rows = page.read_rows("versions.jsonl")
    for name, kind, table in (
      ("blocks.md", "blocks", versions_report.blocks_table),
      ("scan.md", "loops", versions_report.loops_table),
    ):
      text = table([r for r in rows if r["kind"] == kind])
      self.assertIn(text, (page.DOCS / name).read_text(encoding="utf-8"))
    text = versions_report.operands_table(page.read_rows("operands.jsonl"))
    self.assertIn(text, (page.DOCS / "blocks.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
  absltest.main()
