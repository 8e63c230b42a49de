"""Runs cases one after the other, each in a process, within a time."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.gpu import store
from benchmarks.gpu.case import Case, Part

# For writing rows down and ending a process that was killed.
_RESERVE_S = 3.0
# A case may take this many times what it is expected to, and at least so long.
_PATIENCE = 2.0
_MIN_LIMIT_S = 120.0
# A CPU has other work, too, and nobody waits for it as for a card.
_MIN_REHEARSED_LIMIT_S = 600.0
# How fast a rehearsal's kernels are does not matter.
_QUICK_COMPILES = "--xla_backend_optimization_level=0"
_NUM_KEPT_LOG_BYTES = 20_000

Job = tuple[Part, Case]
MakeCommand = Callable[[Mapping[str, Any]], Sequence[str]]


def environment(
  case: Case | None,
  folder: pathlib.Path,
  *,
  is_rehearsal: bool,
  base: Mapping[str, str],
  remembers: bool = False,
) -> dict[str, str]:
  """Returns the environment of a case's process.

  Args:
    case: The case; None for what all have in common.
    folder: Of the campaign.
    is_rehearsal: Whether the process has to stay on the CPU.
    base: The environment it begins with.
    remembers: Whether plans that were made in the folder before are used.
  """
  # Otherwise rows have the seconds of planning.
  plans = str(folder / "plans") if remembers else ""
  values = {**base, "JAXMEM_CACHE_DIR": plans}
  values["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
  flags = [base.get("XLA_FLAGS", "")]
  if is_rehearsal:
    values["JAX_PLATFORMS"] = "cpu"
    flags.append(_QUICK_COMPILES)
  for name, value in (case.environment if case else {}).items():
    value = value.replace("{out}", str(folder))
    if name == "XLA_FLAGS":
      flags.append(value)
    else:
      values[name] = value
  values["XLA_FLAGS"] = " ".join(filter(None, flags))
  return values


class Campaign:
  """Runs what is left of a campaign, the most important cases first.

  Args:
    folder: Where rows, logs and other files go.
    identity: Labels of every row; see `machine.identity`.
    end_s: When to be done, on the clock of `time.monotonic`.
    again: Whether to measure again what was measured already.
    remembers: See `environment`.
    make_command: What to start, given the labels of a case's rows; by default
      the worker.
    tell: Takes a line of progress.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    identity: Mapping[str, Any],
    *,
    end_s: float,
    again: bool = False,
    remembers: bool = False,
    make_command: MakeCommand | None = None,
    tell: Callable[[str], None] = print,
  ):
    self._folder = folder
    self._identity = identity
    self._end_s = end_s
    self._again = again
    self._remembers = remembers
    self._make_command = make_command or self._worker
    self._tell = tell
    self._path = folder / store.ROWS_FILE
    (folder / "logs").mkdir(parents=True, exist_ok=True)

  def run(self, parts: Sequence[Part]) -> dict[str, int]:
    """Runs all cases that are not done yet and that the time allows.

    Returns:
      How many cases ended how.
    """
    history = self._history()
    counts: dict[str, int] = {}
    for part, case in self._jobs(parts, history):
      status = self._run(part, case)
      counts[status] = counts.get(status, 0) + 1
    return counts

  def _jobs(
    self, parts: Sequence[Part], history: store.History
  ) -> Sequence[Job]:
    """Returns the cases to run: by wave, those that failed before last."""
    jobs = [
      (part, case)
      for part in parts
      for case in part.cases(self._identity["rehearsal"])
      if self._again or history.status(part.name, case.name) != store.DONE
    ]
    return sorted(
      jobs,
      key=lambda job: (
        history.status(job[0].name, job[1].name) is not None,
        job[1].wave,
      ),
    )

  def _history(self) -> store.History:
    return store.History(store.read(self._path), self._identity)

  def _run(self, part: Part, case: Case) -> str:
    """Runs a case, or skips it; returns how it ended."""
    labels = {
      "part": part.name,
      "case": case.name,
      "started": store.now(),
      **self._identity,
    }
    recorder = store.Recorder(self._path, labels)
    left_s = self._end_s - time.monotonic() - _RESERVE_S
    estimate_s = self._estimate(part, case)
    if estimate_s > left_s:
      recorder.end(
        store.SKIPPED,
        0.0,
        why=f"{max(0.0, left_s):.0f} s were left, about {estimate_s:.0f} s are"
        " needed",
      )
      self._tell(f"{part.name}/{case.name}: skipped, no time left")
      return store.SKIPPED
    least_s = (
      _MIN_REHEARSED_LIMIT_S if self._identity["rehearsal"] else _MIN_LIMIT_S
    )
    limit_s = min(left_s, max(least_s, _PATIENCE * estimate_s))
    self._tell(f"{part.name}/{case.name}: about {estimate_s:.0f} s")
    start_s = time.monotonic()
    status, details = self._watch(part, case, labels, limit_s)
    seconds = time.monotonic() - start_s
    recorder.end(status, seconds, **details)
    why = f", {details['why']}" if "why" in details else ""
    self._tell(f"{part.name}/{case.name}: {status} in {seconds:.1f} s{why}")
    return status

  def _estimate(self, part: Part, case: Case) -> float:
    """Returns the seconds a case may take.

    What it took the last time; else its default, corrected by how wrong the
    defaults of the part's other cases were on this machine.
    """
    history = self._history()
    known_s = history.seconds(part.name, case.name)
    if known_s is not None:
      return known_s
    ratios = [
      seconds / other.default_s
      for other in part.cases(self._identity["rehearsal"])
      if (seconds := history.seconds(part.name, other.name)) is not None
    ]
    return case.default_s * (statistics.median(ratios) if ratios else 1.0)

  def _watch(
    self, part: Part, case: Case, labels: Mapping[str, Any], limit_s: float
  ) -> tuple[str, dict[str, Any]]:
    """Runs a case's process to its end, or to its limit."""
    name = re.sub(r"[^\w.-]+", "_", f"{part.name}-{case.name}")
    log = self._folder / "logs" / f"{name}.log"
    values = environment(
      case,
      self._folder,
      is_rehearsal=self._identity["rehearsal"],
      base=os.environ,
      remembers=self._remembers,
    )
    with open(log, "wb") as output:
      process = subprocess.Popen(
        self._make_command(labels),
        env=values,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # It may start others, which end with it.
        process_group=0,
      )
      try:
        code = process.wait(limit_s)
      except subprocess.TimeoutExpired:
        return store.TIMED_OUT, {"why": f"stopped after {limit_s:.0f} s"}
      finally:
        _kill_group(process)
    if code:
      return store.FAILED, {"exit_code": code, "why": _last_line(log)}
    return store.DONE, {}

  def _worker(self, labels: Mapping[str, Any]) -> Sequence[str]:
    return [
      sys.executable,
      "-m",
      "benchmarks.gpu.worker",
      f"--out={self._folder}",
      f"--labels={json.dumps(labels)}",
      f"--parent={os.getpid()}",
    ]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
  """Ends a process and all that it started."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()


def _last_line(log: pathlib.Path) -> str:
  """Returns what a process said last, without this machine's paths."""
  data = log.read_bytes()[-_NUM_KEPT_LOG_BYTES:]
  lines = [
    line.strip()
    for line in data.decode("utf-8", "replace").splitlines()
    if line.strip()
  ]
  errors = [
    line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)
  ]
  last = (errors or lines or ["it said nothing"])[-1]
  return store.without_paths(last)[:300]
