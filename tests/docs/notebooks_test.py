"""The notebooks run from their first cell to their last."""

import os
import tempfile

import nbformat
import pytest
import source_tree
from absl.testing import absltest, parameterized
from nbclient import NotebookClient

from jaxmem import targets

_FOLDER = source_tree.ROOT / "docs" / "notebooks"
_NOTEBOOKS = sorted(path.name for path in _FOLDER.glob("*.ipynb"))


def _read(name: str) -> nbformat.NotebookNode:
  return nbformat.read(_FOLDER / name, as_version=4)


class NotebooksTest(parameterized.TestCase):
  @parameterized.parameters(*_NOTEBOOKS)
  def test_has_no_outputs_and_a_title(self, name: str):
    notebook = _read(name)
    nbformat.validate(notebook)
    self.assertStartsWith(notebook.cells[0].source, "# ")
    for cell in notebook.cells:
      if cell.cell_type == "code":
        self.assertEmpty(cell.outputs)
        self.assertIsNone(cell.execution_count)

  @parameterized.parameters(*_NOTEBOOKS)
  @pytest.mark.slow
  def test_runs(self, name: str):
    if not targets.is_available("h200"):
      self.skipTest("JAX's CUDA plugin is not installed.")
    notebook = _read(name)
    paths = os.pathsep.join(
      str(source_tree.ROOT / folder) for folder in (".", "hlo")
    )
    with tempfile.TemporaryDirectory() as folder:
      client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": folder}},
      )
      # A cell that raises an error is an error here.
      client.execute(env={**os.environ, "PYTHONPATH": paths})
    for cell in notebook.cells:
      for output in cell.get("outputs", ()):
        self.assertNotEqual(output.get("name"), "stderr", output)


if __name__ == "__main__":
  absltest.main()
