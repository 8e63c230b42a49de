"""What jax's persistent cache has of a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax._src import compilation_cache as _compilation_cache
from jax._src import compiler as _compiler


@dataclasses.dataclass(frozen=True, slots=True)
class PersistentCache:
  """The entries of a program, one for each tag.

  Attributes:
    backend: The client of XLA that compiles the program.
    devices: That it is to run on: an array of jax's devices.
    options: That XLA compiles it with.
    name: Of the program.
    module: Returns it with a tag; None stands for none.
  """

  backend: Any
  devices: Any
  options: Any
  name: str
  module: Callable[[str | None], Any]

  def key(self, tag: str | None) -> str | None:
    """Returns the key of an entry, whether it is there or not.

    Args:
      tag: What the hook knows the module by; None for XLA's own plan.

    Returns:
      None if no cache is in use, or jax has no key for the program.
    """
    if not _compilation_cache.is_cache_used(self.backend):
      return None
    return _compiler._get_cache_key(
      self.options, self.backend, self.module(tag), self.devices
    )

  def has(self, key: str) -> bool:
    """Whether an entry is there."""
    return _compiler._is_executable_in_cache(self.backend, key)

  def put(self, key: str, executable: Any, seconds: float) -> None:
    """Keeps an executable, if jax would keep one that took as long to compile.

    Args:
      key: Of the entry.
      executable: XLA's, loaded.
      seconds: That it took to compile.
    """
    _compiler._cache_write(key, seconds, self.name, self.backend, executable)
