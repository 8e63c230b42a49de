"""What `make docs` would not notice: pages that are missing, or do not draw."""

import re

import source_tree
from absl.testing import absltest

import jaxmem

_DOCS = source_tree.ROOT / "docs"
# Words of Mermaid's language; a node of such a name is a syntax error, which
# shows only in the reader's browser.
_RESERVED = frozenset(
  "class classDef click default end graph linkStyle style subgraph".split()
)


class SiteTest(absltest.TestCase):
  def test_pages_and_notebooks_are_in_the_navigation(self):
    navigation = (source_tree.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in [*_DOCS.rglob("*.md"), *_DOCS.rglob("*.ipynb")]:
      self.assertIn(f": {path.relative_to(_DOCS).as_posix()}\n", navigation)

  def test_api_lists_every_public_name(self):
    page = (_DOCS / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: jaxmem\.(\w+)$", page, re.MULTILINE)
    self.assertCountEqual(listed, set(jaxmem.__all__) - {"__version__"})

  def test_nodes_of_diagrams_have_names_that_mermaid_takes(self):
    diagrams = []
    for path in _DOCS.rglob("*.md"):
      text = path.read_text(encoding="utf-8")
      diagrams += re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    self.assertNotEmpty(diagrams)
    for diagram in diagrams:
      nodes = re.findall(r"^ *(\w+)[\[({]", diagram, re.MULTILINE)
      self.assertNotEmpty(nodes)
      self.assertEmpty(_RESERVED.intersection(nodes))


if __name__ == "__main__":
  absltest.main()
