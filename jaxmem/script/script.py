"""`python -m jaxmem run`: a script as it is, with its steps planned."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType


class Script:
  """A script or module, and the arguments that it is to see.

  Args:
    words: As on Python's command line: `script.py ARGS...` or
      `-m package.module ARGS...`.

  Raises:
    ValueError: If there is no such script or module.
  """

  def __init__(self, words: Sequence[str]):
    self._is_module = bool(words) and words[0] == "-m"
    rest = list(words[1:] if self._is_module else words)
    if not rest:
      raise ValueError("run needs a script, or -m and a module.")
    self._name, self._args = rest[0], rest[1:]
    if not self._is_module and not pathlib.Path(self._name).is_file():
      raise ValueError(f"there is no script {self._name!r}.")

  def run(self) -> BaseException | None:
    """Runs it as `__main__`, as Python itself would.

    Returns:
      What ended it, SystemExit among it, with a traceback that begins in the
      script; None if it ran to its end.

    Raises:
      ValueError: If there is no such module.
    """
    sys.argv = [self._name, *self._args]
    sys.path[0] = self._folder()
    try:
      if self._is_module:
        runpy.run_module(self._name, run_name="__main__", alter_sys=True)
      else:
        runpy.run_path(self._name, run_name="__main__")
    except BaseException as error:
      own = _of_the_script(error.__traceback__)
      if self._is_module and own is None and isinstance(error, ImportError):
        raise ValueError(f"{error}.") from None
      return error.with_traceback(own)
    return None

  def _folder(self) -> str:
    if self._is_module:
      return os.getcwd()
    return str(pathlib.Path(self._name).resolve().parent)


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
  """Leaves out the frames of jaxmem and of Python's machinery that come first.

  None is left where nothing of the script ran, as after a syntax error.
  """
  ours = (__file__, runpy.__file__, importlib.util.__file__)
  while traceback is not None:
    file = traceback.tb_frame.f_code.co_filename
    if file not in ours and not file.startswith("<frozen "):
      break
    traceback = traceback.tb_next
  return traceback
