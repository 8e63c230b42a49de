"""One line of progress on a terminal; silence anywhere else."""

import sys
import time


class Progress:
  """Shows what is being done, on stderr, where a person may be watching."""

  def __init__(self) -> None:
    self._enabled = sys.stderr.isatty()
    self._start = time.perf_counter()

  def show(self, what: str) -> None:
    """Replaces the line by a new one."""
    if self._enabled:
      elapsed_s = time.perf_counter() - self._start
      sys.stderr.write(f"\r\x1b[K[{elapsed_s:5.1f} s] {what} ...")
      sys.stderr.flush()

  def close(self) -> None:
    """Clears the line."""
    if self._enabled:
      sys.stderr.write("\r\x1b[K")
      sys.stderr.flush()
