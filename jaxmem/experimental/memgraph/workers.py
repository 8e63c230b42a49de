"""Threads that run one job at a time and report when it has completed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class WorkerLostError(RuntimeError):
  """A worker thread ended in the middle of a run."""


class Completion(NamedTuple):
  """What became of a job.

  Attributes:
    job: Its number; None if the worker itself is gone.
    result: What it returned.
    error: What it raised, if it did.
  """

  job: int | None
  result: Any = None
  error: BaseException | None = None


class Workers:
  """Threads that take jobs from one queue and put completions into another.

  Nobody polls: both sides sleep until there is something in their queue.

  Args:
    num_workers: How many threads.
    run: Runs a job, given its number.

  Raises:
    WorkerLostError: If the system gives no thread; those that have started are
      ended.
  """

  def __init__(self, num_workers: int, run: Callable[[int], Any]):
    self._run = run
    self._jobs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    self._completions: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    self._threads: list[threading.Thread] = []
    try:
      for i in range(num_workers):
        thread = threading.Thread(
          target=self._work, name=f"memgraph-{i}", daemon=True
        )
        thread.start()
        self._threads.append(thread)
    except RuntimeError as error:
      self.close()
      raise WorkerLostError(
        f"Worker thread {len(self._threads) + 1} of {num_workers} did not"
        f" start: {error}. Use fewer slots, or end other threads."
      ) from error

  def submit(self, job: int) -> None:
    """Queues a job."""
    self._jobs.put(job)

  def wait(self) -> list[Completion]:
    """Returns what has completed, once there is something.

    Raises:
      WorkerLostError: If a worker has ended.
    """
    found = [self._completions.get()]
    while not self._completions.empty():
      found.append(self._completions.get())
    for completion in found:
      if completion.job is None:
        raise WorkerLostError(
          f"A worker thread ended during the run: {completion.error!r}. The"
          " run was given up; start it again."
        ) from completion.error
    return found

  def close(self) -> list[Completion]:
    """Drops jobs that have not begun, and waits for those that have.

    Returns:
      What has completed since the last `wait`.
    """
    while not self._jobs.empty():
      try:
        self._jobs.get_nowait()
      except queue.Empty:
        break
    for _ in self._threads:
      self._jobs.put(None)
    for thread in self._threads:
      thread.join()
    left = []
    while not self._completions.empty():
      left.append(self._completions.get())
    return left

  def _work(self) -> None:
    # Whatever ends the loop but a regular stop is reported: the event loop
    # must not wait for a thread that is gone.
    lost: BaseException | None = RuntimeError("the thread was ended")
    try:
      while True:
        job = self._jobs.get()
        if job is None:
          lost = None
          return
        try:
          result = self._run(job)
        except Exception as error:
          self._completions.put(Completion(job, error=error))
        else:
          self._completions.put(Completion(job, result))
          # The frame must not keep the arrays while the thread sleeps.
          del result
    except BaseException as error:
      lost = error
    finally:
      if lost is not None:
        self._completions.put(Completion(None, error=lost))
