"""What is done when jax has been imported, whoever imports it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, then: Callable[[], None]) -> None:
  """Calls a function once a module is imported; at once if it is.

  Args:
    name: Of a module. A package it is in is imported by then.
    then: Called before the import statement ends.
  """
  if name in sys.modules:
    then()
  else:
    sys.meta_path.insert(0, _Finder(name, then))


class _Finder(importlib.abc.MetaPathFinder):
  """Finds one module as others do, with another loader."""

  def __init__(self, name: str, then: Callable[[], None]):
    self._name = name
    self._then = then

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None = None,
  ) -> ModuleSpec | None:
    """See `importlib.abc.MetaPathFinder`."""
    if fullname != self._name or self not in sys.meta_path:
      return None
    sys.meta_path.remove(self)
    spec = importlib.util.find_spec(fullname)
    if spec is not None and spec.loader is not None:
      spec.loader = _Loader(spec.loader, self._then)
    return spec


class _Loader(importlib.abc.Loader):
  """Loads as another loader does, and calls a function afterwards."""

  def __init__(self, loader: Any, then: Callable[[], None]):
    self._loader = loader
    self._then = then

  def create_module(self, spec: ModuleSpec) -> ModuleType | None:
    """See `importlib.abc.Loader`."""
    return self._loader.create_module(spec)

  def exec_module(self, module: ModuleType) -> None:
    """See `importlib.abc.Loader`."""
    spec = module.__spec__
    assert spec is not None
    spec.loader = module.__loader__ = self._loader
    self._loader.exec_module(module)
    self._then()
