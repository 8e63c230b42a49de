"""Which XLA compiles: the one in the installed jaxlib."""

from __future__ import annotations

import functools
import importlib.metadata


@functools.cache
def is_at_least(major: int, minor: int) -> bool:
  """Returns whether jaxlib is of a version or a later one.

  Without a jaxlib, what its latest version does counts.
  """
  try:
    version = importlib.metadata.version("jaxlib")
  except importlib.metadata.PackageNotFoundError:
    return True
  return tuple(map(int, version.split(".")[:2])) >= (major, minor)
