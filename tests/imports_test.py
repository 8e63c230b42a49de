"""Who imports whom, and how: packages by what their `__init__` offers.

The first test finds imports that reach past a package's `__init__`. The others
run the import contracts of pyproject.toml, which `make lint` runs, on copies of
the sources: they must hold, and must fail where a file breaks one.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping

import source_tree
from absl.testing import absltest, parameterized

# What lies directly in one of these is reached by its full name.
_TOP = ("jaxmem", "jaxmem_hlo", "benchmarks")


def _trespasses(
  module: str, source: str, known: Mapping[str, pathlib.Path]
) -> Iterator[str]:
  """Yields the imports of a module that reach past a package's `__init__`."""
  home = module
  if not (module in known and source_tree.is_package(known[module])):
    home = module.rpartition(".")[0]
  for line, target, name in source_tree.imports(source):
    package = target
    if target not in known:
      continue
    if not source_tree.is_package(known[target]):
      package = target.rpartition(".")[0]
    if package in _TOP or f"{home}.".startswith(f"{package}."):
      continue
    if package == target and (
      name is None
      or (
        f"{target}.{name}" in known
        and source_tree.is_package(known[f"{target}.{name}"])
      )
      or name in source_tree.public_names(known[target].read_text())
    ):
      continue
    what = target if name is None else f"{name} from {target}"
    yield f"{module}:{line} imports {what}, which {package} does not offer"


class FacadeTest(parameterized.TestCase):
  """Other packages are reached through what their `__init__` lists."""

  def test_no_import_reaches_past_a_package(self):
    known = source_tree.modules(*_TOP)
    found = [
      trespass
      for module, path in known.items()
      for trespass in _trespasses(module, path.read_text(), known)
    ]
    self.assertEmpty(found, "\n".join(["", *found]))

  @parameterized.parameters(
    "from jaxmem.graph.liveness import live_ranges",
    "from jaxmem.graph import _hidden",
    "import jaxmem.graph.liveness",
    "def f():\n  from jaxmem.graph.liveness import live_ranges",
    "if TYPE_CHECKING:\n  from jaxmem_hlo.module.hlo_module import Module",
  )
  def test_finds_imports_that_reach_past_a_package(self, source):
    known = source_tree.modules(*_TOP)
    self.assertLen([*_trespasses("jaxmem.order.planner", source, known)], 1)

  @parameterized.parameters(
    "from jaxmem.graph import live_ranges",
    "from jaxmem import graph, units",
    "from jaxmem.units import format_bytes",
    "from jaxmem.order.search import search",
    "from jaxmem.experimental import memgraph",
    "from numpy.linalg import norm",
  )
  def test_takes_what_is_offered(self, source):
    known = source_tree.modules(*_TOP)
    self.assertEmpty([*_trespasses("jaxmem.order.planner", source, known)])

  def test_what_is_listed_is_there_and_sorted(self):
    known = source_tree.modules("jaxmem", "jaxmem_hlo")
    for module, path in known.items():
      if not source_tree.is_package(path):
        continue
      source = path.read_text()
      have = {name for _, _, name in source_tree.imports(source)}
      names = source_tree.public_names(source)
      self.assertContainsSubset(names - {"__version__"}, have, module)


class ContractsTest(absltest.TestCase):
  """`make lint-imports` on a copy of the sources."""

  def setUp(self):
    super().setUp()
    self._folder = pathlib.Path(
      self.enterContext(tempfile.TemporaryDirectory())
    )
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("jaxmem", "hlo"):
      shutil.copytree(
        source_tree.ROOT / name, self._folder / name, ignore=ignored
      )
    shutil.copy(source_tree.ROOT / "pyproject.toml", self._folder)

  def _append(self, file: str, source: str) -> None:
    with (self._folder / file).open("a") as stream:
      stream.write(f"\n\n{source}\n")

  def _lint(self) -> subprocess.CompletedProcess[str]:
    program = pathlib.Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
      [program, "--no-cache"],
      cwd=self._folder,
      env={"PYTHONPATH": ".:hlo", "PATH": ""},
      capture_output=True,
      text=True,
    )

  def test_all_contracts_are_kept(self):
    done = self._lint()
    self.assertEqual(done.returncode, 0, done.stdout)

  def test_an_import_of_an_upper_package_breaks_one(self):
    self._append(
      "jaxmem/graph/liveness.py",
      "def _late():\n  from jaxmem import batch\n\n  return batch",
    )
    done = self._lint()
    self.assertNotEqual(done.returncode, 0)
    self.assertIn(
      "jaxmem.graph is not allowed to import jaxmem.batch", done.stdout
    )
    self.assertIn("jaxmem.graph.liveness -> jaxmem.batch", done.stdout)

  def test_a_circle_of_two_files_breaks_one(self):
    self._append(
      "jaxmem/graph/graph.py",
      "def _late():\n  from jaxmem.graph import liveness\n\n  return liveness",
    )
    done = self._lint()
    self.assertNotEqual(done.returncode, 0)
    self.assertIn("No cycles are allowed in jaxmem.graph.", done.stdout)


if __name__ == "__main__":
  absltest.main()
