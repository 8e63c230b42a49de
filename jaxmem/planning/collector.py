"""Python's cyclic garbage collector, paused while modules are planned."""

import contextlib
import gc
import threading


class _Pause(contextlib.ContextDecorator):
  """A pause of the collector that several threads can ask for at once.

  Planning allocates many small objects and drops few; each full collection
  would visit them all, and everything that jax holds. The collector is one for
  the whole process: the first who pauses it remembers whether it ran, and the
  last who is done puts that back.
  """

  def __init__(self):
    self._lock = threading.Lock()
    self._num_pauses = 0
    self._was_enabled = False

  def __enter__(self) -> None:
    with self._lock:
      if not self._num_pauses:
        self._was_enabled = gc.isenabled()
        gc.disable()
      self._num_pauses += 1

  def __exit__(self, *unused: object) -> None:
    with self._lock:
      self._num_pauses -= 1
      if not self._num_pauses and self._was_enabled:
        gc.enable()


paused_collector = _Pause()
