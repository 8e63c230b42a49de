"""Programs for what people reported behave as docs/known-issues.md says."""

import pytest
from absl.testing import absltest

from benchmarks import known_issues_report, page
from benchmarks.known_issues import KNOWN_STEPS, KnownStep, measure


def _row_on_cpu(step: KnownStep) -> page.Row:
  return next(iter(measure(step)))


class KnownIssuesTest(absltest.TestCase):
  @pytest.mark.slow
  def test_an_unrolled_loop_takes_one_iteration_s_memory(self):
    row = _row_on_cpu(KNOWN_STEPS["unrolled"])
    # A hundred arrays of indices, or two.
    self.assertGreater(row["jit_bytes"], 100 * 4_000_000)
    self.assertLess(row["planned_bytes"], 3 * 4_000_000)
    self.assertTrue(row["is_bit_equal"])

  def test_a_donation_in_vain_is_named(self):
    row = _row_on_cpu(KNOWN_STEPS["donation"])
    (reason,) = row["vain_donations"]
    self.assertIn("bfloat16[2048,2048]", reason)

  def test_the_page_has_what_was_measured(self):
    rows = page.read_rows("known_issues.jsonl")
    self.assertEqual({row["step"] for row in rows}, {*KNOWN_STEPS})
    text = (page.DOCS / "known-issues.md").read_text(encoding="utf-8")
    self.assertIn(known_issues_report.text_of(rows), text)
    self.assertTrue(all(row.get("is_bit_equal", True) for row in rows))


if __name__ == "__main__":
  absltest.main()
