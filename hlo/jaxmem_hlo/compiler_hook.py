"""The compiler hook: XLA shows us every scheduled module and runs our answer.

One callback per platform is registered, once per process; it looks a handler
up by the mark in the module's name and answers None, "keep your plan", for
every module that has none. A module is named after the jitted function, so a
marked function name marks a module, and JAX's persistent compilation cache
tells marked from unmarked programs by the same name.
"""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable

Handler = Callable[[bytes, str], bytes | None]

_MARK = re.compile(rb"__jaxmem_([0-9a-z]+)$")
_lock = threading.Lock()
_handlers: dict[str, Handler] = {}
_installed: set[str] = set()
_warned = False


class CompileRefusedError(RuntimeError):
  """A handler raises this to make the user's compile fail.

  XLA turns it into a JaxRuntimeError that carries its text.
  """


class PlanningWarning(RuntimeWarning):
  """A module was left to XLA's own plan because planning it failed."""


def mark(name: str, tag: str) -> str:
  """Returns a function name whose modules the handler of a tag will see.

  Args:
    name: The function's own name.
    tag: Lower-case letters and digits.
  """
  return f"{name}__jaxmem_{tag}"


def unmarked(name: str) -> str:
  """Returns a function's or module's name without its mark."""
  return name.partition("__jaxmem_")[0]


def add_handler(tag: str, handler: Handler) -> None:
  """Sets what to do with modules marked with a tag.

  Args:
    tag: The tag given to `mark`.
    handler: Takes a serialized, scheduled HloModuleProto and the platform
      ("cpu" or "cuda"); returns a changed one, or None to keep it. It may be
      called from several threads at once. Exceptions are caught, but for
      CompileRefusedError: XLA's own plan is used and a PlanningWarning is
      issued once.
  """
  with _lock:
    _handlers[tag] = handler


def remove_handler(tag: str) -> None:
  """Forgets a tag; modules marked with it keep XLA's plan."""
  with _lock:
    _handlers.pop(tag, None)


def install() -> None:
  """Registers the callback for the platforms that this process can compile for.

  Cheap after the first call. Initialises jax's backends.
  """
  from jax.extend import xla

  with _lock:
    for platform in ("cpu", "cuda"):
      if platform in _installed:
        continue
      try:
        xla.register_hlo_module_transformation(
          _callback(platform),
          name=f"jaxmem_{platform}",
          stage=xla.PipelineStage.POST_SCHEDULER,
          platforms=[platform],
        )
      except Exception:
        if platform == "cpu":
          raise
        continue  # No plugin for this platform, so far.
      _installed.add(platform)


def _callback(platform: str) -> Callable[[bytes], bytes | None]:
  def transform(data: bytes) -> bytes | None:
    try:
      found = _MARK.search(_module_name(data))
      handler = _handlers.get(found.group(1).decode()) if found else None
      return handler(data, platform) if handler else None
    except CompileRefusedError:
      raise
    except Exception as error:  # A raise here would break the user's compile.
      _warn_once(error)
      return None

  return transform


def _module_name(data: bytes) -> bytes:
  """Reads field 1 of a serialized HloModuleProto, which XLA writes first."""
  if not data or data[0] != 0x0A:
    return b""
  length = shift = 0
  for i, byte in enumerate(data[1:6], start=1):
    length |= (byte & 0x7F) << shift
    shift += 7
    if byte < 0x80:
      return data[i + 1 : i + 1 + length]
  return b""


def _warn_once(error: Exception) -> None:
  global _warned
  with _lock:
    if _warned:
      return
    _warned = True
  # Even where warnings are errors, the user's step must compile.
  with contextlib.suppress(Warning):
    warnings.warn(
      "jaxmem could not plan a module and left it to XLA's own plan:"
      f" {type(error).__name__}: {error}. Results are not affected.",
      PlanningWarning,
      stacklevel=2,
    )
