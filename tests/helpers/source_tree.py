"""The sources of the clone, and what they import: found by ast, not by running.

Imports within functions, and those for type checking alone, count like others.
"""

import ast
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

ROOT = next(
  folder
  for folder in pathlib.Path(__file__).resolve().parents
  if (folder / "MODULE.bazel").exists()
)
# The folder that holds each package.
_HOLDERS = {"jaxmem": ROOT, "jaxmem_hlo": ROOT / "hlo", "benchmarks": ROOT}


class Import(NamedTuple):
  """One imported name.

  Attributes:
    line: Where it is imported, from 1.
    module: What it is imported from; what is imported itself if name is None.
    name: The name that is imported from there.
  """

  line: int
  module: str
  name: str | None


def modules(*packages: str) -> dict[str, pathlib.Path]:
  """Returns the modules of packages, generated ones left out: name -> file."""
  found = {}
  for package in packages:
    holder = _HOLDERS[package]
    for path in sorted((holder / package).rglob("*.py")):
      parts = path.relative_to(holder).with_suffix("").parts
      if not path.stem.endswith("_pb2"):
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
  return found


def is_package(path: pathlib.Path) -> bool:
  """Whether a module's file makes its folder a package."""
  return path.name == "__init__.py"


def imports(source: str) -> Iterator[Import]:
  """Yields all imports of a module.

  Raises:
    ValueError: If one is relative; the house has none.
  """
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield Import(node.lineno, alias.name, None)
    elif isinstance(node, ast.ImportFrom):
      if node.level or node.module is None:
        raise ValueError(f"line {node.lineno} imports relatively")
      for alias in node.names:
        yield Import(node.lineno, node.module, alias.name)


def public_names(source: str) -> frozenset[str]:
  """Returns what a module's `__all__` lists; nothing if it has none."""
  for node in ast.parse(source).body:
    if isinstance(node, ast.Assign) and any(
      isinstance(target, ast.Name) and target.id == "__all__"
      for target in node.targets
    ):
      return frozenset(ast.literal_eval(node.value))
  return frozenset()


def reachable(
  starts: Iterable[str],
  known: Mapping[str, pathlib.Path],
  ignored: Iterable[str],
) -> set[str]:
  """Returns the modules that some modules import, directly or not.

  Args:
    starts: Where to begin.
    known: All modules that count, by name.
    ignored: Packages into which imports are not followed.
  """
  ignored = tuple(ignored)
  found: set[str] = set()
  todo = list(starts)
  while todo:
    module = todo.pop()
    if module in found or module not in known:
      continue
    if any(f"{module}.".startswith(f"{each}.") for each in ignored):
      continue
    found.add(module)
    # What is imported from a package runs the package first.
    todo.append(module.rpartition(".")[0])
    for each in imports(known[module].read_text()):
      todo += [each.module, f"{each.module}.{each.name}"]
  return found
