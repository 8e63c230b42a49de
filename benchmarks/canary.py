"""Says in one line which of jax's internals moved in the jax that is here.

    python -m benchmarks.canary

Exits with 1 if any did. What is looked for is what jaxmem uses: the functions
that it replaces, with their parameters (`compiler.jax_doors.what_moved`), every
name of jax's private modules and of jaxlib's that its sources mention, and what
its functions expect of jaxprs, lowered programs, XLA's hook and XLA's buffer
assignment, each tried on a small step.
"""

import ast
import functools
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version

_ROOT = pathlib.Path(__file__).parents[1]
_SOURCES = (_ROOT / "jaxmem", _ROOT / "hlo" / "jaxmem_hlo")
# What jax does not promise to keep, though its documentation may list it.
_PRIVATE = ("jax._src", "jaxlib", "jax.extend")


def moved() -> list[str]:
  """Returns a sentence for each internal that moved; empty if none did."""
  found = list(_missing_names())
  for probe in _PROBES:
    try:
      found += probe()
    except Exception as error:  # Whatever a later jax makes of it.
      name = probe.__name__.strip("_").replace("_", " ")
      found.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
  return found


def _missing_names() -> Iterator[str]:
  """Yields the names that jaxmem's sources use, and jax has not any more."""
  for module, name in sorted(used_names()):
    try:
      holder = importlib.import_module(module)
      if hasattr(holder, name) or importlib.util.find_spec(f"{module}.{name}"):
        continue
    except ImportError:
      pass
    yield f"{module}.{name} is gone."


@functools.cache
def used_names() -> frozenset[tuple[str, str]]:
  """Returns pairs of a private module and a name of it that jaxmem uses."""
  found: set[tuple[str, str]] = set()
  for folder in _SOURCES:
    for path in folder.rglob("*.py"):
      tree = ast.parse(path.read_text(encoding="utf-8"))
      # The name that a file gives to a module -> the module.
      modules: dict[str, str] = {}
      for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_private(node.module):
          for each in node.names:
            found.add((node.module or "", each.name))
            modules[each.asname or each.name] = f"{node.module}.{each.name}"
      for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
          module = modules.get(node.value.id, "")
          if module and _is_module(module):
            found.add((module, node.attr))
  return frozenset(found)


def _is_private(module: str | None) -> bool:
  return any(f"{module}.".startswith(f"{each}.") for each in _PRIVATE)


@functools.cache
def _is_module(name: str) -> bool:
  try:
    importlib.import_module(name)
  except ImportError:
    return False
  return True


# Probes: each returns what it found, or raises what a caller would see.


def _step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
  def layer(hidden: Any, kernel: Any) -> Any:
    return jnp.sin(hidden @ kernel), jnp.sum(hidden)

  def loss(weights: jax.Array) -> jax.Array:
    hidden, sums = jax.lax.scan(layer, x, weights)
    return jnp.mean(hidden**2) + jnp.mean(sums)

  value, gradient = jax.value_and_grad(loss)(weights)
  return weights - 0.1 * gradient, value


def _arguments() -> tuple[jax.Array, jax.Array]:
  return jnp.ones((4, 16, 16)), jnp.ones((64, 16))


def _replaced_functions() -> list[str]:
  from jaxmem.compiler import jax_doors

  return jax_doors.what_moved()


def _jaxprs() -> list[str]:
  from jaxmem.jaxpr import internals

  internals.scan_trees(1, 1, 1, 1)
  internals.barrier_primitive()
  traced = jax.jit(_step).trace(*_arguments())
  jaxpr: Any = traced.jaxpr
  internals.with_jaxpr(traced, jaxpr).lower()
  scans = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
  moved = []
  if [internals.scan_counts(e) for e in scans] != [(0, 1)] * 2:
    moved.append("scans say otherwise what they carry.")
  if [internals.is_transposed(e) for e in scans] != [False, True]:
    moved.append("name stacks say otherwise what is transposed.")
  if internals.argument_names(jaxpr) != ["weights", "x"]:
    moved.append("jaxprs say otherwise what arguments are called.")
  return moved


def _lowered_programs() -> list[str]:
  from jaxmem.compiler import jax_doors, programs

  jax_doors.install()
  first, second = (jax.jit(_step).lower(*_arguments()) for _ in range(2))
  programs.cached_bytes(first)
  digests = [
    programs.program_digest(each._lowering) for each in (first, second)
  ]
  return ["programs hash otherwise each time."] if len({*digests}) > 1 else []


def _hook_and_assignment() -> list[str]:
  from jaxmem_hlo.assignment import AssignmentModel
  from jaxmem_hlo.module import Module

  from jaxmem.compiler import handling

  shown: list[bytes] = []

  def handler(data: bytes, platform: str) -> None:
    del platform
    shown.append(data)

  with handling(handler) as options:
    lowered = jax.jit(_step).lower(*_arguments())
    compiled = lowered.compile(compiler_options=dict(options))
  if len(shown) != 1:
    return [f"XLA showed {len(shown)} scheduled modules of one step."]
  predicted = AssignmentModel(Module.from_bytes(shown[0]), "cpu").assign()
  memory = compiled.memory_analysis()
  assert memory is not None
  if predicted.temp_bytes != memory.temp_size_in_bytes:
    return [
      f"XLA assigns {memory.temp_size_in_bytes} bytes, predicted were"
      f" {predicted.temp_bytes}."
    ]
  return []


def _limits() -> list[str]:
  import jaxmem
  from jaxmem.entry import PLANNED

  jaxmem.jit(_step, memory_limit="1GiB")(*_arguments())
  why_not = PLANNED.records.all()[-1].why_not
  kept = ("", "XLA's own order is kept")
  return [] if why_not in kept else [f"a step is not planned: {why_not}."]


_PROBES: tuple[Callable[[], list[str]], ...] = (
  _replaced_functions,
  _jaxprs,
  _lowered_programs,
  _hook_and_assignment,
  _limits,
)


def main() -> int:
  """Prints the line; returns the exit code."""
  here = f"jax {jax.__version__}, jaxlib {jaxlib.version.__version__}"
  found = moved()
  if not found:
    print(f"{here}: nothing that jaxmem uses has moved.")
    return 0
  print(f"{here}: {len(found)} moved: {' '.join(found)}")
  return 1


if __name__ == "__main__":
  sys.exit(main())
