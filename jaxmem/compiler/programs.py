"""Programs that were lowered: their hashes, and what jax's cache has of them.

Like `jax_doors`, it relies on how jax holds them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax._src import compilation_cache as _compilation_cache
from jaxlib.mlir import passmanager as _passmanager

from jaxmem.compiler import jax_doors

# Backend and key in jax's persistent cache, by module and compiler option.
_cache_keys: weakref.WeakKeyDictionary[Any, dict[str, tuple[Any, str]]] = (
  weakref.WeakKeyDictionary()
)


def program_digest(lowered: Any) -> str:
  """Returns a hash of what was lowered, the same in every process.

  Lines and files of the source are left out; names of functions, shardings and
  donation are not.
  """
  module = jax_doors.program(lowered)
  digest = hashlib.sha256()
  with module.context:
    copy = module.operation.clone(ip=False)
    passes = _passmanager.PassManager.parse("builtin.module(strip-debuginfo)")
    passes.run(copy.operation)
    copy.operation.write_bytecode(_Hashed(digest.update))
  return digest.hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class _Hashed:
  """A file of which only the hash is wanted."""

  write: Callable[[bytes], None]


def remember(compiling: jax_doors.Compiling, tag: str | None) -> None:
  """Remembers where jax's persistent cache has a program; see `cached_bytes`.

  Args:
    compiling: The compile.
    tag: What the program that is to run was compiled with.
  """
  key = compiling.cache.key(tag)
  if key is not None:
    of_option = _cache_keys.setdefault(compiling.module, {})
    of_option[compiling.option] = compiling.cache.backend, key


def cached_bytes(lowered: jax.stages.Lowered) -> bytes | None:
  """Returns the executable of a program as jax's persistent cache has it.

  An executable that was loaded from there has lost its machine code when it is
  serialized again.

  Args:
    lowered: From a jitted function; it has been compiled, and remembered by
      `remember`.

  Returns:
    None if the cache does not have it, or not any more.
  """
  lowering: Any = lowered._lowering
  option = dict(lowering._compiler_options_kvs).get(jax_doors.OPTION)
  of_option = _cache_keys.get(jax_doors.program(lowering), {})
  if option not in of_option:
    return None
  backend, key = of_option[option]
  try:
    cache = _compilation_cache._get_cache(backend)
    entry = None if cache is None else cache.get(key)
    if entry is None:
      return None
    data = _compilation_cache.decompress_executable(entry)
    return _compilation_cache.extract_executable_and_time(data)[0]
  except Exception:
    return None  # It is damaged, or cannot be read: jax warns of that itself.
