"""Steps to plan, named on the command line: pkg.module:factory."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_JAXMEM_KEYWORDS = ("target", "memory_limit", "options")


class UsageError(Exception):
  """What the user asked for cannot be done; the message is one line."""


class StepFailedError(Exception):
  """The factory or the step raised an error, which is this one's cause."""


class FactoryStep(NamedTuple):
  """What a factory returned."""

  function: Callable[..., Any]
  args: tuple[Any, ...]
  jit_kwargs: dict[str, Any]


def load(path: str, *given: Any) -> FactoryStep:
  """Imports a factory, calls it and checks what it returns.

  Args:
    path: "pkg.module:factory".
    *given: What it is called with.

  Raises:
    UsageError: If there is no such factory, or it returns something else.
    StepFailedError: If its module or the factory itself raises an error.
  """
  module_name, _, name = path.partition(":")
  is_module = all(part.isidentifier() for part in module_name.split("."))
  if not is_module or not name:
    raise UsageError(
      f"expected pkg.module:factory, got {path!r}; for example"
      " my_project.train:make_step"
    )
  # `python -m` can import from the working directory, the script cannot.
  if "" not in sys.path and os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())
  try:
    with _must_return(module_name):
      found: Any = importlib.import_module(module_name)
  except UsageError:
    raise
  except ImportError as error:
    raise UsageError(
      f"cannot import {module_name}: {error}; modules are looked for as in"
      f" python -c 'import {module_name}'"
    ) from error
  except Exception as error:
    raise StepFailedError from error
  for part in name.split("."):
    if not hasattr(found, part):
      raise UsageError(f"{module_name} has no attribute {name!r}")
    found = getattr(found, part)
  if not callable(found):
    raise UsageError(f"{path} must be a function, got {found!r}")
  try:
    with _must_return(path):
      returned = found(*given)
  except UsageError:
    raise
  except Exception as error:
    raise StepFailedError from error
  return _checked(path, returned)


@contextlib.contextmanager
def _must_return(name: str) -> Iterator[None]:
  """Runs the user's code, whose exit code must not be taken for jaxmem's."""
  try:
    yield
  except SystemExit as done:
    raise UsageError(
      f"{name} ended the process with {done.code!r}, so that there is no step"
      " to plan; leave what is not to run when it is imported to"
      " if __name__ == '__main__'"
    ) from done


def _checked(path: str, returned: Any) -> FactoryStep:
  expected = "it must return (step, args) or (step, args, jit_kwargs)"
  if not isinstance(returned, tuple) or len(returned) not in (2, 3):
    raise UsageError(f"{path}: {expected}, got {_brief(returned)}")
  function, args, *rest = returned
  jit_kwargs = rest[0] if rest else {}
  if not callable(function):
    raise UsageError(
      f"{path}: {expected} with a callable step, got {_brief(function)}"
    )
  if hasattr(function, "lower") and jit_kwargs:
    raise UsageError(
      f"{path}: the step is already jitted, and has its own keywords; return"
      " (step, args)"
    )
  if not isinstance(args, tuple | list):
    raise UsageError(
      f"{path}: {expected} with a tuple of args, got {_brief(args)}"
    )
  if not isinstance(jit_kwargs, Mapping):
    raise UsageError(
      f"{path}: {expected} with a dict of jit_kwargs, got {_brief(jit_kwargs)}"
    )
  _check_keywords(path, jit_kwargs)
  return FactoryStep(function, tuple(args), dict(jit_kwargs))


def _check_keywords(path: str, jit_kwargs: Mapping[str, Any]) -> None:
  import jax

  known = inspect.signature(jax.jit).parameters.keys() - {"fun"}
  for key in jit_kwargs:
    if key in _JAXMEM_KEYWORDS or key not in known:
      raise UsageError(f"{path}: jax.jit takes no keyword {key!r}")


def _brief(value: Any) -> str:
  if isinstance(value, tuple):
    return f"a tuple of {len(value)}"
  return f"a value of type {type(value).__name__}"
