"""The second half of the demo: run steps under both compilers, in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

from jaxmem import units
from jaxmem.demo.cases import Case
from jaxmem.report import Progress

COMPILERS = ("jax.jit", "jaxmem.jit")
_ROW = "  {:<28} {:<11} {:>9} {:>12} {:>9} {:>9}  {}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
  """What one process did.

  Attributes:
    temp_bytes: Temporaries as XLA reports them.
    compiled_rss_bytes: Peak of the process's resident memory when it had
      compiled the step.
    peak_rss_bytes: The same after all steps.
    step_s: Median seconds of a step, the first left out if there are more.
    digest: Hash of the last state and of all losses.
  """

  temp_bytes: int
  compiled_rss_bytes: int
  peak_rss_bytes: int
  step_s: float
  digest: str

  @property
  def growth_bytes(self) -> int:
    """By how much the steps raised the peak of the resident memory."""
    return self.peak_rss_bytes - self.compiled_rss_bytes


class Worker:
  """A process of `jaxmem.demo.worker`; a context manager that ends it."""

  def __init__(self, which: str, index: int, compiler: str):
    environment = {
      **os.environ,
      "JAX_PLATFORMS": "cpu",
      # No GPU is used, so the plugin need not find NVIDIA's libraries.
      "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
      "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    module = "jaxmem.demo.worker"
    self._process = subprocess.Popen(
      [sys.executable, "-m", module, which, str(index), compiler],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment,
    )

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    if self._process.poll() is None:
      self._process.kill()
    for pipe in (self._process.stdin, self._process.stdout):
      with contextlib.suppress(OSError):
        pipe.close()  # pyright: ignore[reportOptionalMemberAccess]
    self._process.wait()

  def answer(self) -> dict[str, Any]:
    """Waits for the next line.

    Raises:
      RuntimeError: If the process ended instead.
    """
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      code = self._process.wait()
      raise RuntimeError(
        f"A process of the demo ended early, with exit code {code}; its"
        " messages are above. -9 means that the machine's memory ran out: try"
        " python -m jaxmem demo --quick."
      )
    return json.loads(line)

  def step(self) -> float:
    """Runs one step and returns its seconds."""
    assert self._process.stdin is not None
    self._process.stdin.write("step\n")
    self._process.stdin.flush()
    return self.answer()["seconds"]

  def finish(self) -> dict[str, Any]:
    """Ends the process and returns its last line."""
    assert self._process.stdin is not None
    self._process.stdin.close()
    last = self.answer()
    self._process.wait()
    return last


def measure(which: str, index: int, num_steps: int) -> list[Measured]:
  """Runs one case under both compilers, a step of each in turn.

  Args:
    which: "small" or "tiny".
    index: Which of these cases.
    num_steps: At least one.

  Returns:
    The figures of jax.jit, then those of jaxmem.jit.

  Raises:
    RuntimeError: If a process ended early.
  """
  with contextlib.ExitStack() as stack:
    workers = [
      stack.enter_context(Worker(which, index, compiler))
      for compiler in COMPILERS
    ]
    compiled = [worker.answer() for worker in workers]
    seconds: list[list[float]] = [[], []]
    for _ in range(num_steps):
      for worker, own in zip(workers, seconds, strict=True):
        own.append(worker.step())
    last = [worker.finish() for worker in workers]
  return [
    Measured(
      temp_bytes=first["temp_bytes"],
      compiled_rss_bytes=first["peak_rss_bytes"],
      peak_rss_bytes=end["peak_rss_bytes"],
      step_s=statistics.median(own[1:] or own),
      digest=end["digest"],
    )
    for first, end, own in zip(compiled, last, seconds, strict=True)
  ]


def show_runs(which: str, cases: Sequence[Case], num_steps: int) -> bool:
  """Measures every case and prints a table.

  Args:
    which: "small" or "tiny": where `cases` come from.
    cases: What to run.
    num_steps: Steps of each.

  Returns:
    Whether all outputs of both compilers were equal, bit by bit.

  Raises:
    RuntimeError: If a process ended early.
  """
  print(
    _ROW.format(
      "step", "", "temp", "process peak", "growth", "time/step", "outputs"
    ),
    flush=True,
  )
  are_equal = True
  for index, case in enumerate(cases):
    progress = Progress()
    progress.show(f"running {case.name}")
    try:
      measured = measure(which, index, num_steps)
    finally:
      progress.close()
    are_equal &= measured[0].digest == measured[1].digest
    print("\n".join(_rows(case, measured)), flush=True)
  return are_equal


def _rows(case: Case, measured: Sequence[Measured]) -> list[str]:
  before, after = measured
  same = "bit-equal" if before.digest == after.digest else "DIFFERENT"
  rows = [
    _ROW.format(
      "" if number else case.name,
      compiler,
      units.format_bytes(own.temp_bytes),
      units.format_bytes(own.peak_rss_bytes),
      units.format_bytes(own.growth_bytes),
      f"{own.step_s:.2f} s",
      same if number else "",
    ).rstrip()
    for number, (compiler, own) in enumerate(
      zip(COMPILERS, measured, strict=True)
    )
  ]
  ratios = _ROW.format(
    "",
    "",
    _ratio(after.temp_bytes, before.temp_bytes),
    _ratio(after.peak_rss_bytes, before.peak_rss_bytes),
    _ratio(after.growth_bytes, before.growth_bytes),
    _ratio(after.step_s, before.step_s),
    "",
  )
  return [*rows, ratios.rstrip()]


def _ratio(after: float, before: float) -> str:
  return f"{after / before:.2f}x" if before else "-"
