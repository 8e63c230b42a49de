"""Which compiles of a process are planned, and what they are planned for."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable

from jaxmem.entry.memory import MemoryLimit
from jaxmem.options import Options
from jaxmem.version import __version__

# A pattern that is found in a function's name, or a predicate of the name.
Only = str | re.Pattern[str] | Callable[[str], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """What is asked for compiles.

  Attributes:
    options: Planning options.
    limit: Most bytes of a whole program; None for no limit.
    only: Which functions are planned; None for all.
    min_bytes: Programs of fewer bytes are left to XLA.
  """

  options: Options
  limit: MemoryLimit | None = None
  only: Only | None = None
  min_bytes: int = 0

  @functools.cached_property
  def tag(self) -> str:
    """A short name of all that a plan depends on, the same in each process."""
    limit = None if self.limit is None else self.limit.written
    text = f"{__version__}|{self.options!r}|{limit!r}|{self.min_bytes}"
    return "p" + hashlib.sha256(text.encode()).hexdigest()[:12]

  def wants(self, function: str) -> bool:
    """Whether a function of this name is planned."""
    if self.only is None:
      return True
    if callable(self.only):
      return bool(self.only(function))
    return re.search(self.only, function) is not None
