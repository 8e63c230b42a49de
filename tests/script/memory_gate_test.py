"""The gate in examples/memory_gate: its workflow, command by command."""

import os
import pathlib
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


def _commands() -> list[list[str]]:
  """Returns the words of each command, the interpreter left out."""
  workflow = (_FOLDER / "workflow.yml").read_text(encoding="utf-8")
  found = re.findall(r"run: >-\n((?: {10}.*\n)+)", workflow)
  commands = [shlex.split(folded) for folded in found]
  assert all(first == "python" for first, *_ in commands)
  return [words for _, *words in commands]


class MemoryGateTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    if not targets.is_available("h200"):
      self.skipTest("JAX's CUDA plugin is not installed.")
    holder = tempfile.TemporaryDirectory()
    self.addCleanup(holder.cleanup)
    self.folder = pathlib.Path(holder.name)
    for side in ("before", "after"):
      (self.folder / side).mkdir()
      shutil.copy(_FOLDER / "step.py", self.folder / side)

  def _run(self, words: list[str], side: str) -> subprocess.CompletedProcess:
    """Runs Python where a step is; what it summarizes is left beside it."""
    paths = [os.path.abspath(folder) for folder in filter(None, sys.path)]
    return subprocess.run(
      [sys.executable, *words],
      cwd=self.folder / side,
      env={
        **os.environ,
        "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
        "PYTHONPATH": os.pathsep.join(paths),
      },
      capture_output=True,
      text=True,
      check=False,
    )

  @pytest.mark.slow
  def test_passes_what_did_not_grow_and_fails_what_did(self):
    plan, check = _commands()
    done = self._run(plan, "before")
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn("byte limit", done.stdout)

    done = self._run(check, "after")
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn("OK: ", (self.folder / "summary.md").read_text())

    step = self.folder / "after" / "step.py"
    step.write_text(
      step.read_text().replace("BATCH = 512, 8, 4096", "BATCH = 512, 8, 4352")
    )
    done = self._run(check, "after")
    self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
    self.assertIn("FAILED: ", (self.folder / "summary.md").read_text())

    limit = check.index("--memory-limit") + 1
    done = self._run([*check[:limit], "1MiB", *check[limit + 1 :]], "after")
    self.assertEqual(done.returncode, 1, done.stderr)
    self.assertIn("smallest", done.stderr)


if __name__ == "__main__":
  absltest.main()
