"""Runs the BUILD files as Python, and looks for what they name and leave out.

Starlark is close enough to Python that what these files use of it runs: rules
and `glob` are functions here that write down what they are called with.
"""

import ast
import os
import pathlib
import re

from absl.testing import absltest, parameterized

_ROOT = next(
  folder
  for folder in pathlib.Path(__file__).resolve().parents
  if (folder / "MODULE.bazel").exists()
)
_SOURCES = ("jaxmem", "hlo", "benchmarks", "tests")
# Not of any rule, but of the file itself.
_DIRECTIVES = ("package", "licenses", "exports_files")


def _is_package(folder):
  return (folder / "BUILD").exists() or (folder / "BUILD.bazel").exists()


def _files(package):
  """Returns the files that a package may glob, as paths relative to it.

  Folders that have a BUILD file are packages of their own; those whose name
  begins with a dot, and caches, are nothing that a clone holds.
  """
  files = []
  for folder, subfolders, names in os.walk(package):
    here = pathlib.Path(folder)
    subfolders[:] = [
      name
      for name in subfolders
      if not name.startswith((".", "bazel-"))
      and name not in ("__pycache__", "node_modules", "build", "dist")
      and not _is_package(here / name)
    ]
    files += [(here / name).relative_to(package).as_posix() for name in names]
  return sorted(files)


def _matches(pattern, file):
  """Whether a Bazel glob pattern matches: `**` is any number of folders."""
  expression = ""
  for segment in pattern.split("/"):
    if segment == "**":
      expression += r"(?:[^/]+/)*"
    else:
      expression += re.escape(segment).replace(r"\*", "[^/]*") + "/"
  if pattern.endswith("**"):
    expression += r"[^/]+/"
  return re.fullmatch(expression, file + "/") is not None


class _BuildFile:
  """What a BUILD file declares: its targets, and the patterns it globs."""

  def __init__(self, package, text):
    self.package = package
    self.targets = {}  # From the name to the rule and its arguments.
    self.patterns = {}  # From a glob pattern to the files that it matches.
    self.files = _files(package)
    tree = ast.parse(text)
    names = dict.fromkeys(_DIRECTIVES, lambda *args, **kwargs: None)
    names |= {"glob": self._glob, "load": lambda *args: None}
    names |= {rule: self._rule(rule) for rule in _loaded(tree)}
    exec(compile(tree, str(package / "BUILD"), "exec"), names)

  def _glob(self, include, exclude=(), allow_empty=False):
    del allow_empty  # Whether a pattern may match nothing is the tests' word.
    chosen = set()
    for pattern in include:
      found = [f for f in self.files if _matches(pattern, f)]
      self.patterns[pattern] = found
      chosen |= set(found)
    return sorted(
      f for f in chosen if not any(_matches(pattern, f) for pattern in exclude)
    )

  def _rule(self, rule):
    def declare(name, **attributes):
      if name in self.targets:
        raise ValueError(f"{self.package}/BUILD has two targets {name!r}.")
      self.targets[name] = (rule, attributes)

    return declare

  def sources(self):
    """Returns the Python files of all targets, as paths relative to here."""
    attributes = [attributes for _, attributes in self.targets.values()]
    return {source for each in attributes for source in each.get("srcs", ())}


def _loaded(tree):
  """Returns the names that the load statements of a file bring in."""
  names = []
  for statement in tree.body:
    match statement:
      case ast.Expr(ast.Call(func=ast.Name("load"), args=[_, *loaded])):
        names += [ast.literal_eval(name) for name in loaded]
  return names


def _split(label, package):
  """Returns the repository, the package and the target that a label names."""
  repository, slashes, path = label.rpartition("//")
  there, _, target = path.rpartition(":")
  return repository, there if slashes else package, target


def _packages():
  folders = [_ROOT, *(folder for folder in _ROOT.iterdir() if folder.is_dir())]
  return {
    "" if folder == _ROOT else folder.name: _BuildFile(
      folder, (folder / "BUILD").read_text(encoding="utf-8")
    )
    for folder in folders
    if (folder / "BUILD").exists()
  }


def _locked():
  """Returns the packages of requirements_lock.txt, as Bazel spells them."""
  text = (_ROOT / "requirements_lock.txt").read_text(encoding="utf-8")
  names = re.findall(r"^([\w.-]+)==", text, re.MULTILINE)
  return {re.sub(r"[-_.]+", "_", name).lower() for name in names}


class BuildFilesTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.packages = _packages()

  def test_every_pattern_matches_a_file(self):
    for package, build in self.packages.items():
      for pattern, found in build.patterns.items():
        self.assertNotEmpty(found, f"glob of {pattern!r} in {package}/BUILD")

  def test_targets_name_files_that_exist(self):
    for package, build in self.packages.items():
      for name, (_, attributes) in build.targets.items():
        named = [*attributes.get("srcs", ()), *attributes.get("data", ())]
        named += [attributes["main"]] if "main" in attributes else []
        for file in named:
          self.assertIn(file, build.files, f"//{package}:{name}")

  def test_programs_have_one_file_that_is_run(self):
    for package, build in self.packages.items():
      for name, (rule, attributes) in build.targets.items():
        if rule in ("py_binary", "py_test"):
          main = attributes.get("main", f"{name}.py")
          self.assertIn(main, attributes["srcs"], f"//{package}:{name}")

  def test_dependencies_exist(self):
    locked = _locked()
    for package, build in self.packages.items():
      for name, (_, attributes) in build.targets.items():
        for label in attributes.get("deps", ()):
          with self.subTest(target=f"//{package}:{name}", dependency=label):
            repository, there, target = _split(label, package)
            if repository == "@pypi":
              self.assertIn(target, locked)
            else:
              self.assertIn(target, self.packages[there].targets)

  def test_no_python_file_is_left_out(self):
    covered = {
      (build.package / source).relative_to(_ROOT).as_posix()
      for build in self.packages.values()
      for source in build.sources()
    }
    files = {
      file.relative_to(_ROOT).as_posix()
      for folder in _SOURCES
      for file in (_ROOT / folder).rglob("*.py")
    }
    self.assertEmpty(files - covered)

  def test_every_test_is_a_target(self):
    for file in (_ROOT / "tests").rglob("*_test.py"):
      name = file.relative_to(_ROOT / "tests").with_suffix("").as_posix()
      self.assertEqual(self.packages["tests"].targets[name][0], "py_test")


class MatchesTest(parameterized.TestCase):
  @parameterized.parameters(
    ("*.py", "a.py", True),
    ("*.py", "a/b.py", False),
    ("**/*.py", "a.py", True),
    ("**/*.py", "a/b/c.py", True),
    ("a/**/*.py", "a/b.py", True),
    ("a/**/*.py", "b/a/b.py", False),
    ("a/**", "a/b/c.txt", True),
    ("a/**", "a", False),
    ("**/*_test.py", "a/b_test.py", True),
    ("**/*_test.py", "a/b_tests.py", False),
  )
  def test_as_in_bazel(self, pattern, file, expected):
    self.assertEqual(_matches(pattern, file), expected)


if __name__ == "__main__":
  absltest.main()
