"""The compiler hook: XLA shows us every scheduled module and runs our answer.

While something is planned, one callback per platform is registered; it looks a
handler up by an attribute of the module and answers None, "keep your plan", for
every module that has none. JAX's persistent compilation cache tells programs
with different attributes apart.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator

Handler = Callable[[bytes, str], bytes | None]

# The frontend attribute of a module whose value is a tag, and how an entry of
# the map that holds it begins: field 1, the name; field 2, the tag, of at most
# 127 characters.
ATTRIBUTE = "jaxmem"
_ENTRY = b"\x0a\x06jaxmem\x12"

_lock = threading.Lock()
_handlers: dict[str, Handler] = {}
_platforms: set[str] = set()
_users: set[object] = set()
_warned = False


class CompileRefusedError(RuntimeError):
  """A handler raises this to make the user's compile fail.

  XLA turns it into a JaxRuntimeError that carries its text.
  """


class PlanningWarning(RuntimeWarning):
  """A module was left to XLA's own plan because planning it failed."""


def add_handler(tag: str, handler: Handler) -> None:
  """Sets what to do with modules that carry a tag.

  Args:
    tag: The value of the attribute: at most 127 letters and digits.
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


def is_installed() -> bool:
  """Whether XLA shows modules to the hook at this moment."""
  return bool(_users)


@contextlib.contextmanager
def installed() -> Iterator[None]:
  """Has XLA show modules to the hook while something is compiled.

  Only that long, as XLA serializes every module for it, whoever compiles.
  Initialises jax's backends.
  """
  user = object()
  try:
    with _lock:
      _users.add(user)
      if not _platforms:
        _register()
    yield
  finally:
    try:
      _leave(user)
    except BaseException:  # Such as Ctrl-C: nothing must stay behind.
      _leave(user)
      raise


def _leave(user: object) -> None:
  with _lock:
    _users.discard(user)
    if not _users:
      _clear()


@contextlib.contextmanager
def taken_out() -> Iterator[None]:
  """Lets a module compile that cannot be serialized, whoever uses the hook.

  What others compile meanwhile waits where it would begin, or is not planned.
  """
  with _lock:
    if _users:
      _clear()
    try:
      yield
    finally:
      if _users:
        _register()


def interruptible[**P, T](run: Callable[P, T]) -> Callable[P, T]:
  """Lets Ctrl-C be what it is, also where XLA has made an error of it.

  While XLA compiles, Python hears of the signal when XLA calls the hook, before
  anything there could catch it. Of what is raised XLA keeps the text alone.

  Args:
    run: Compiles something.
  """

  @functools.wraps(run)
  def interruptible_run(*args: P.args, **kwargs: P.kwargs) -> T:
    try:
      return run(*args, **kwargs)
    except RuntimeError as error:  # As JaxRuntimeError is.
      last_line = str(error).rstrip().rpartition("\n")[2]
      if last_line.startswith("KeyboardInterrupt"):
        raise KeyboardInterrupt from None
      raise

  return interruptible_run


def _register() -> None:
  from jax.extend import xla

  for platform in ("cpu", "cuda"):
    # First, so that it is cleared whenever an interrupt comes.
    _platforms.add(platform)
    try:
      xla.register_hlo_module_transformation(
        _callback(platform),
        name=f"jaxmem_{platform}",
        stage=xla.PipelineStage.POST_SCHEDULER,
        platforms=[platform],
      )
    except Exception:  # No plugin for this platform, so far.
      _platforms.discard(platform)
      if platform == "cpu":
        raise


def _clear() -> None:
  from jax.extend import xla

  for platform in [*_platforms]:
    xla.clear_hlo_module_transformation(
      f"jaxmem_{platform}",
      stage=xla.PipelineStage.POST_SCHEDULER,
      platforms=[platform],
    )
    _platforms.discard(platform)


@functools.cache
def _callback(platform: str) -> Callable[[bytes], bytes | None]:
  """Returns what XLA calls, the same at each time.

  XLA may be in it, for another thread, while it is cleared: then nothing else
  would keep it alive.
  """

  def transform(data: bytes) -> bytes | None:
    handler = _handlers.get(_tag(data))
    if handler is None:
      return None
    try:
      return handler(data, platform)
    except CompileRefusedError:
      raise
    except Exception as error:  # A raise here would break the user's compile.
      _warn_once(error)
      return None

  return transform


def _tag(data: bytes) -> str:
  """Reads the tag of a serialized HloModuleProto; empty if it has none."""
  at = data.find(_ENTRY)
  start = at + len(_ENTRY) + 1
  if at < 0 or start > len(data):
    return ""
  return data[start : start + data[start - 1]].decode("ascii", "replace")


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
