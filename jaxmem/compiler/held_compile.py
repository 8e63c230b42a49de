"""A compile that waits at its schedule until somebody says how it goes on."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

from jaxmem_hlo import compiler_hook

from jaxmem.compiler import jax_doors, thread_settings
from jaxmem.compiler.compiling import Compiling
from jaxmem.compiler.handling import handling


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
  """What XLA showed of a program.

  Attributes:
    data: The scheduled module, serialized.
    platform: "cpu" or "cuda".
  """

  data: bytes
  platform: str


class HeldCompile:
  """A compile in a thread of its own, which waits once XLA has the schedule.

  It runs under jax's settings of the thread that makes it. Whoever starts it
  must `finish` it or `give_up`, as it waits for ever.

  Args:
    compile_: Compiles a program with compiler options.
    as_scheduled: See `handling`.

  Attributes:
    seconds: What the compile took, once it is over; waiting does not count.
  """

  def __init__(
    self,
    compile_: Callable[[Mapping[str, Any]], Any],
    *,
    as_scheduled: bool = False,
  ):
    self.seconds = 0.0
    self._compile = compile_
    self._as_scheduled = as_scheduled
    self._compiling: Compiling | None = None
    self._shown: futures.Future[Shown] = futures.Future()
    self._handler: futures.Future[compiler_hook.Handler] = futures.Future()
    self._result: futures.Future[Any] = futures.Future()
    self._settings = thread_settings.of_this_thread()
    self._thread = threading.Thread(
      target=contextvars.copy_context().run, args=(self._run,)
    )

  def start(self) -> None:
    """Begins to compile.

    Where no thread can begin, as when the main thread has ended, it compiles up
    to the schedule in this one, and does not wait there.
    """
    try:
      self._thread.start()
    except RuntimeError:
      self.give_up()
      self._run()

  @property
  def is_open(self) -> bool:
    """Whether it may still be finished."""
    return not self._handler.done()

  @property
  def compiling(self) -> Compiling | None:
    """What XLA was given; None until it is."""
    return self._compiling

  def shown(self) -> Shown:
    """Waits for the schedule.

    Raises:
      Exception: What the compile raised, if XLA does not get so far.
    """
    return self._shown.result()

  def finish(self, handler: compiler_hook.Handler) -> Any:
    """Goes on with a handler's answer, and waits for the end of the compile.

    Args:
      handler: Answers XLA, in the thread of the compile.

    Returns:
      What the compile returns.

    Raises:
      Exception: What it raised.
    """
    self._handler.set_result(handler)
    return self._result.result()

  def give_up(self) -> None:
    """Lets XLA go no further than to the schedule, if it is not finished."""
    if self.is_open:
      self._handler.set_result(_refuse)

  def join(self) -> None:
    """Waits until the compile is over."""
    if self._thread.is_alive():
      self._thread.join()

  def _run(self) -> None:
    thread_settings.apply(self._settings)
    start = time.perf_counter()
    try:
      with (
        handling(self._hold, as_scheduled=self._as_scheduled) as options,
        jax_doors.compiles_seen(self._see),
      ):
        result = self._compile(options)
      self.seconds += time.perf_counter() - start
      self._result.set_result(result)
      error: BaseException = RuntimeError("XLA showed no schedule.")
    except BaseException as raised:
      error = raised
      self._result.set_exception(error)
    if not self._shown.done():
      self._shown.set_exception(error)

  def _see(self, compiling: Compiling) -> None:
    self._compiling = compiling

  def _hold(self, data: bytes, platform: str) -> bytes | None:
    if not self._shown.done():
      self._shown.set_result(Shown(data=data, platform=platform))
    start = time.perf_counter()
    handler = self._handler.result()
    self.seconds -= time.perf_counter() - start
    return handler(data, platform)


def _refuse(data: bytes, platform: str) -> bytes | None:
  del data, platform
  raise compiler_hook.CompileRefusedError("Only the schedule was wanted.")
