"""The Python of the README, of getting started and of the guides runs."""

import contextlib
import os
import re
import tempfile

import code_blocks
import pytest
import source_tree
from absl.testing import absltest, parameterized

import jaxmem
from jaxmem import targets

_ROOT = source_tree.ROOT
_PAGES = (
  "README.md",
  "docs/getting-started.md",
  *(f"docs/guides/{path.name}" for path in _ROOT.glob("docs/guides/*.md")),
)
_FENCE = re.compile(r"^```python$", re.MULTILINE)
_HIDDEN = re.compile(r"^<!-- invisible-code-block: python$", re.MULTILINE)
_SKIP = re.compile(r"^<!-- skip:", re.MULTILINE)
_SKIP_WITH_REASON = re.compile(r'^<!-- skip: next ".+" -->$', re.MULTILINE)


class CodeBlocksTest(parameterized.TestCase):
  @parameterized.parameters(*_PAGES)
  def test_all_are_found_and_compile(self, name: str):
    text = (_ROOT / name).read_text(encoding="utf-8")
    # Whatever is not run says why.
    skipped = len(_SKIP.findall(text))
    self.assertLen(_SKIP_WITH_REASON.findall(text), skipped)
    examples = list(code_blocks.parsed(_ROOT / name).examples())
    num_blocks = len(_FENCE.findall(text)) + len(_HIDDEN.findall(text))
    self.assertLen(examples, num_blocks + skipped)
    for example in examples:
      if isinstance(example.parsed, str):
        compile(example.parsed, f"{name}:{example.line}", "exec")

  @parameterized.parameters(*_PAGES)
  @pytest.mark.slow
  def test_run(self, name: str):
    if not targets.is_available("h200"):
      self.skipTest("JAX's CUDA plugin is not installed.")
    document = code_blocks.parsed(_ROOT / name)
    self.addCleanup(jaxmem.disable)
    with (
      tempfile.TemporaryDirectory() as folder,
      contextlib.chdir(folder),
      open(os.devnull, "w") as nowhere,
      # What a page prints is for its reader.
      contextlib.redirect_stdout(nowhere),
    ):
      for example in document.examples():
        example.evaluate()


if __name__ == "__main__":
  absltest.main()
