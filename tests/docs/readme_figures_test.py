"""The figures of the README's tables are those of the pages that they name."""

import re

import source_tree
from absl.testing import absltest

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# What a cell says of a figure, and how the rows of the page write it.
_FIGURE = re.compile(r"(\d+(?:\.\d+)?) (?:MB|ms)|[+-](\d+\.\d+) %")


def _figures(text: str) -> set[str]:
  return {a or b for a, b in _FIGURE.findall(text)}


class ReadmeFiguresTest(absltest.TestCase):
  def test_come_from_tables(self):
    readme = (source_tree.ROOT / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## What it saves") :]
    section = section[: section.index("**What it cannot do.**")]
    # Each table is followed by the page that has all its rows.
    parts = re.split(
      r"^\[(docs/\w+\.md)\]\(.*has all rows", section, flags=re.M
    )
    tables, pages = parts[0:-1:2], parts[1::2]
    self.assertEqual(pages, ["docs/budget.md", "docs/devices.md"])
    for table, page in zip(tables, pages, strict=True):
      text = (source_tree.ROOT / page).read_text(encoding="utf-8")
      rows = [line for line in text.splitlines() if line.startswith("| ")]
      rows += [line for line in text.splitlines() if "XLA alone:" in line]
      known = [set(_NUMBER.findall(row)) for row in rows]
      lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
      self.assertLen(lines, 4)
      for line in lines:
        for cell in line.split(" | ")[1:]:
          figures = _figures(cell)
          # All figures of a cell are those of one row.
          if figures:
            self.assertTrue(any(figures <= row for row in known), cell)


if __name__ == "__main__":
  absltest.main()
