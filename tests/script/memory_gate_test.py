"""The gate in examples/memory_gate: the command of its workflow, as it is."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import pytest
import source_tree
from absl.testing import absltest

from jaxmem import targets

_FOLDER = source_tree.ROOT / "examples" / "memory_gate"


def _command() -> list[str]:
  """Returns the words of the command, the interpreter left out."""
  workflow = (_FOLDER / "workflow.yml").read_text(encoding="utf-8")
  [folded] = re.findall(r"run: >-\n((?: {10}.*\n)+)", workflow)
  first, *words = shlex.split(folded)
  assert first == "python"
  return words


def _run(words: list[str]) -> subprocess.CompletedProcess:
  """Runs Python where the step is, in a folder that may be written to."""
  paths = [os.path.abspath(folder) for folder in filter(None, sys.path)]
  with tempfile.TemporaryDirectory() as folder:
    shutil.copy(_FOLDER / "step.py", folder)
    return subprocess.run(
      [sys.executable, *words],
      cwd=folder,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
      capture_output=True,
      text=True,
      check=False,
    )


@pytest.mark.slow
class MemoryGateTest(absltest.TestCase):
  def test_passes_and_fails(self):
    if not targets.is_available("h200"):
      self.skipTest("JAX's CUDA plugin is not installed.")
    words = _command()
    done = _run(words)
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn("byte limit", done.stdout)
    limit = words.index("--memory-limit") + 1
    done = _run([*words[:limit], "1MiB", *words[limit + 1 :]])
    self.assertEqual(done.returncode, 1, done.stderr)
    self.assertIn("smallest", done.stderr)


if __name__ == "__main__":
  absltest.main()
