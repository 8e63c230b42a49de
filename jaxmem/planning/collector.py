"""Python's cyclic garbage collector, paused while modules are planned."""

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_pauses: set[object] = set()
_was_enabled = False


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
  """Pauses the collector; several threads can ask for it at once.

  Planning allocates many small objects and drops few; each full collection
  would visit them all, and everything that jax holds. The collector is one for
  the whole process: the first who pauses it remembers whether it ran, and the
  last who is done puts that back.
  """
  pause = object()
  try:
    _begin(pause)
    yield
  finally:
    try:
      _end(pause)
    except BaseException:  # Such as Ctrl-C: nothing must stay behind.
      _end(pause)
      raise


def _begin(pause: object) -> None:
  global _was_enabled
  with _lock:
    if not _pauses:
      _was_enabled = gc.isenabled()
    _pauses.add(pause)
    gc.disable()


def _end(pause: object) -> None:
  with _lock:
    _pauses.discard(pause)
    if not _pauses and _was_enabled:
      gc.enable()
