"""`jaxmem.jit` with `Options(keep_arena=True)`: arenas stay between calls.

A jitted function compiles for itself, where nobody can put another executable
in its place. So each signature is compiled ahead of time here, and its arena
kept (`jaxmem.runtime.kept_arena.keep`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax.core import Tracer

from jaxmem.compiler import jax_doors, programs
from jaxmem.runtime import kept_arena


class ArenaKeepingJit:
  """A jitted function whose temporaries stay allocated between calls on CPUs.

  Has the attributes of the jitted function. Where it cannot be used, because it
  is traced, or compiled for another device, the jitted function is called.

  Args:
    jitted: From `jax.jit`, without static arguments.
  """

  def __init__(self, jitted: Any):
    functools.update_wrapper(self, jitted)
    self._jitted = jitted
    self._compiled: dict[Hashable, Callable[..., Any]] = {}
    # With attributes of its own of these names it is a `jax.stages.Wrapped`,
    # which can be exported. What they lead to keeps no arena.
    self.trace, self.lower = jitted.trace, jitted.lower

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Calls the function."""
    key = _signature(args, kwargs)
    if key is None or jax.config.jax_disable_jit:
      return self._jitted(*args, **kwargs)
    function = self._compiled.get(key)
    if function is None:
      # No lock is held, as a function may call itself, or wait for a thread
      # that calls it, while it is traced. jax compiles each program once.
      compiled = self._compile(args, kwargs)
      function = self._compiled.setdefault(key, compiled)
    return function(*args, **kwargs)

  def release(self) -> None:
    """Frees all arenas that no call is using; the next calls take new ones."""
    for function in list(self._compiled.values()):
      if isinstance(function, kept_arena.KeptArena):
        function.release()

  def clear_cache(self) -> None:
    """Forgets all that was compiled, as that of a jitted function does."""
    self._compiled.clear()
    self._jitted.clear_cache()

  def __get__(self, instance: Any, owner: Any = None) -> Any:
    """Binds it as a method."""
    return self if instance is None else functools.partial(self, instance)

  def __getattr__(self, name: str) -> Any:
    if name == "__wrapped__":
      # It is being copied, and has no attributes of its own yet.
      raise AttributeError(name)
    return getattr(self.__wrapped__, name)

  def _compile(
    self, args: tuple[Any, ...], kwargs: dict[str, Any]
  ) -> Callable[..., Any]:
    traced = self._jitted.trace(*args, **kwargs)
    if traced.jaxpr.effects:
      # It writes into references of the user's, or talks to the host.
      return self._jitted
    lowered = traced.lower()
    compiled = lowered.compile()
    shardings = (compiled.input_shardings, compiled.output_shardings)
    devices = {d for s in jax.tree.leaves(shardings) for d in s.device_set}
    memory = compiled.memory_analysis()
    has_temporaries = memory is None or memory.temp_size_in_bytes > 0
    if has_temporaries and {d.platform for d in devices} == {"cpu"}:
      data = programs.cached_bytes(lowered)
      return kept_arena.keep(compiled, data=data)
    return self._jitted


def _signature(
  args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Hashable | None:
  """Returns what the function is compiled for.

  None where the jitted function is to be called: while something is traced,
  where results are checked for NaNs, and for what is no plain array.
  """
  leaves, tree = jax.tree.flatten((args, kwargs))
  is_checked = jax.config.jax_debug_nans or jax.config.jax_debug_infs
  if is_checked or jax_doors.is_tracing():
    return None
  if not all(map(_is_plain, leaves)):
    return None
  settings = jax_doors.trace_context()
  try:
    return (tree, settings, *map(_kind, leaves))
  except TypeError:
    # No array: jax says so.
    return None


def _is_plain(leaf: Any) -> bool:
  """Whether a compiled function takes the leaf as it was compiled."""
  if isinstance(leaf, Tracer):
    return False
  if not isinstance(leaf, jax.Array):
    return True
  form: Any = getattr(leaf, "format", None)
  order = getattr(getattr(form, "layout", None), "major_to_minor", None)
  return order is None or tuple(order) == tuple(range(leaf.ndim))


def _kind(leaf: Any) -> Hashable:
  sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
  return jax.typeof(leaf), sharding
