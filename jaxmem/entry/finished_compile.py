"""A compile that was over when its program had been lowered."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax

from jaxmem.compiler import HeldCompile, jax_doors
from jaxmem.entry.one_compile import Asked, Compile


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedCompile:
  """A compile that was over when its program had been lowered.

  Attributes:
    compiling: What XLA was given.
    compile_: What it was asked, and answered.
    seconds: Wall seconds from the schedule to the end.
  """

  compiling: jax_doors.Compiling
  compile_: Compile
  seconds: float
  _executable: Any
  _cache_key: str | None
  _compile_s: float

  @classmethod
  def of(cls, held: HeldCompile | None, asked: Asked) -> FinishedCompile | None:
    """Finishes a compile that waits at its schedule.

    Args:
      held: The compile, of what `Lowering.lower` returned; None if none waits.
      asked: What is asked of it.

    Returns:
      None if jax has to get the program itself: from its persistent cache, with
      a profile, and where XLA failed, which is then dealt with.
    """
    compiling = held.compiling if held is not None else None
    if held is None or compiling is None or compiling.is_profiled:
      return None
    key = compiling.cache.key(asked.tag)
    if key is not None and compiling.cache.has(key):
      return None
    compile_ = Compile(asked, compiling.name, None)
    executable, start = None, time.perf_counter()
    try:
      executable = jax_doors.executable(held.finish(compile_.answer))
    except jax.errors.JaxRuntimeError:
      if compile_.error is None:
        return None
    return cls(
      compiling=compiling,
      compile_=compile_,
      seconds=time.perf_counter() - start,
      _executable=executable,
      _cache_key=key,
      _compile_s=held.seconds,
    )

  def executable(self) -> Any:
    """Returns XLA's executable, loaded; jax's persistent cache keeps it, too.

    Raises:
      Exception: Why the program was not to be compiled.
    """
    if self.compile_.error is not None:
      raise self.compile_.error
    if self._cache_key is not None:
      cache = self.compiling.cache
      cache.put(self._cache_key, self._executable, self._compile_s)
    return self._executable
