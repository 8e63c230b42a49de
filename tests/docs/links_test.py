"""Links between the documents of the clone: files and headings exist."""

import re
import urllib.parse

import source_tree
from absl.testing import absltest, parameterized

_FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)


def _documents():
  tops = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
  found = [source_tree.ROOT / name for name in tops]
  found += sorted((source_tree.ROOT / "docs").rglob("*.md"))
  found += sorted((source_tree.ROOT / "jaxmem").rglob("*.md"))
  return [path.relative_to(source_tree.ROOT).as_posix() for path in found]


def _text(path):
  """Returns a document without its blocks of code."""
  return _FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(text):
  """Returns the anchors of a document's headings, as GitHub makes them."""
  found = set()
  for heading in _HEADING.findall(text):
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
    number, own = 0, anchor
    while own in found:
      number += 1
      own = f"{anchor}-{number}"
    found.add(own)
  return found


class LinksTest(parameterized.TestCase):
  @parameterized.parameters(*_documents())
  def test_lead_somewhere(self, name):
    path = source_tree.ROOT / name
    for link in _LINK.findall(_text(path)):
      target = urllib.parse.unquote(link[0] or link[1])
      if re.match(r"[a-z]+:", target):
        continue
      file, _, anchor = target.partition("#")
      there = (path.parent / file).resolve() if file else path
      with self.subTest(link=target):
        self.assertTrue(there.exists(), f"{there} does not exist")
        if anchor and there.suffix == ".md":
          self.assertIn(anchor, anchors(_text(there)))

  def test_anchors_are_those_of_github(self):
    text = "# Same `code`, twice\n\n## Same code, twice\n\n### [A b](c) & d\n"
    expected = {"same-code-twice", "same-code-twice-1", "a-b--d"}
    self.assertEqual(anchors(text), expected)


if __name__ == "__main__":
  absltest.main()
