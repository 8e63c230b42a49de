"""Changes from one plan to another, as text and as Markdown."""

from absl.testing import absltest

from jaxmem.report.plan_diff import Change, PlanDiff


def _diff(*children: Change, notes=()) -> PlanDiff:
  before = sum(c.before_bytes for c in children)
  after = sum(c.after_bytes for c in children)
  whole = Change(
    name="total", before_bytes=before, after_bytes=after, children=children
  )
  return PlanDiff(
    title="step on cpu",
    figures={"whole program": (before, after)},
    trees=dict.fromkeys(("kind", "module", "line", "argument"), whole),
    notes=notes,
  )


class PlanDiffTest(absltest.TestCase):
  def test_markdown_shows_names_as_they_are(self):
    change = Change(name="a|b*`<i>\nc", before_bytes=0, after_bytes=1024)
    text = _diff(change).to_markdown()
    row = next(line for line in text.splitlines() if "c |" in line)
    self.assertEqual(row, r"| a\|b\*\`\<i\> c | 0 B | 1.00 KiB | +1.00 KiB |")

  def test_long_names_and_long_lists_are_cut(self):
    changes = [
      Change(name=f"{i:03}" * 100, before_bytes=0, after_bytes=i)
      for i in range(1, 500)
    ]
    diff = _diff(*changes)
    self.assertLess(len(diff.to_markdown()), 10_000)
    self.assertIn("491 more", str(diff))

  def test_growth_from_nothing(self):
    diff = _diff(Change(name="a", before_bytes=0, after_bytes=2048))
    self.assertIn("0 B -> 2.00 KiB (+2.00 KiB)", str(diff))
    self.assertGreater(diff.growth, 1)

  def test_notes_are_told(self):
    diff = _diff(notes=("planned with jax 1 and with jax 2",))
    self.assertIn("note: planned with jax 1", str(diff))
    self.assertIn("Note: planned with jax 1", diff.to_markdown())


if __name__ == "__main__":
  absltest.main()
