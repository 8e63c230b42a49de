"""Runs of other projects' test files, with and without jaxmem."""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any

from benchmarks.row_output import versions

_PLUGIN = ("-p", "benchmarks.conformance_plugin")
# Where jaxmem stands between a program and its results: how jax traces, lowers,
# compiles, differentiates, caches, shards and exports.
JAX_FILES = tuple(
  f"tests/{name}_test.py"
  for name in """
  aot api checkify compilation_cache custom_root debug_nans export jet
  lax_autodiff lax_control_flow lax_scipy linalg memories multi_device
  mutable_array nn ode pjit pmap random scipy_optimize shard_map state
  """.split()
)

Outcomes = dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runs:
  """Runs of test files, each in a process of its own.

  Attributes:
    checkout: The directory to run in.
    project: Whose tests they are: the name of what is installed.
    is_installed: Whether the tests are those of an installed package, which
      has no settings of pytest's. Those of a folder above it are not its own.
    select: Which tests of a file, as pytest's -k takes it; all if empty.
    environment: What the tests' own variables say, such as how many cases
      are drawn.
    timeout_s: Seconds after which a run is stopped.
  """

  checkout: pathlib.Path
  project: str = "jax"
  is_installed: bool = False
  select: str = ""
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  timeout_s: float = 3600.0

  def run(
    self, file: str, *, is_planned: bool
  ) -> tuple[Outcomes, list[dict[str, Any]], str]:
    """Runs a test file.

    Args:
      file: Relative to the checkout; a folder stands for all of its files.
      is_planned: Whether jaxmem plans each compile.

    Returns:
      How each test ended: "passed", "skipped" or "failed". What became of each
      compile. And why the process did not end by itself, or "".
    """
    with tempfile.TemporaryDirectory() as directory:
      report = pathlib.Path(directory, "report.xml")
      records = pathlib.Path(directory, "records.json")
      arguments = [sys.executable, "-m", "pytest", "-q", file]
      arguments += ["-p", "no:cacheprovider", f"--junitxml={report}"]
      arguments += ["-c", os.devnull] if self.is_installed else []
      arguments += ["-k", self.select] if self.select else []
      arguments += _PLUGIN if is_planned else ()
      fault = self._ran(arguments, records)
      outcomes = _outcomes(report) if report.exists() else {}
      made = json.loads(records.read_text()) if records.exists() else []
    return outcomes, made, fault

  def _ran(self, arguments: list[str], records: pathlib.Path) -> str:
    """Runs a process; returns why it did not end by itself, or ""."""
    environment = {**os.environ, **self.environment}
    environment["CONFORMANCE_RECORDS"] = str(records)
    # The path of this process, so that the plugin is found from there too.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
      done = subprocess.run(
        arguments,
        cwd=self.checkout,
        env=environment,
        capture_output=True,
        timeout=self.timeout_s,
        check=False,
      )
    except subprocess.TimeoutExpired:
      return f"stopped after {self.timeout_s:.0f} s"
    known = (0, 1, 5)  # All passed, some failed, or there are none.
    return "" if done.returncode in known else f"exit code {done.returncode}"

  def measure(self, file: str) -> dict[str, Any]:
    """Returns the row of a test file."""
    starts = [time.perf_counter()]
    plain, _, plain_fault = self.run(file, is_planned=False)
    starts.append(time.perf_counter())
    planned, records, fault = self.run(file, is_planned=True)
    starts.append(time.perf_counter())
    return {
      "project": self.project,
      "project_version": importlib.metadata.version(self.project),
      "file": file,
      "select": self.select,
      "environment": dict(self.environment),
      "num_tests": len(plain),
      "num_passed_jit": _num_passed(plain),
      "num_passed": _num_passed(planned),
      "differences": differences(plain, planned),
      "faults": [each for each in (plain_fault, fault) if each],
      "num_planned": len(records),
      "num_changed": sum(not record["why_not"] for record in records),
      "jit_s": round(starts[1] - starts[0], 1),
      "planned_s": round(starts[2] - starts[1], 1),
      "date": datetime.date.today().isoformat(),
      "versions": versions("jax", "jaxlib", "jaxmem", "python"),
    }


def _outcomes(report: pathlib.Path) -> Outcomes:
  """Reads how each test ended."""
  found: Outcomes = {}
  for case in ElementTree.parse(report).iter("testcase"):
    name = f"{case.get('classname')}.{case.get('name')}"
    tags = {child.tag for child in case}
    if tags & {"failure", "error"}:
      found[name] = "failed"
    else:
      found[name] = "skipped" if "skipped" in tags else "passed"
  return found


def differences(plain: Outcomes, planned: Outcomes) -> dict[str, str]:
  """Returns the tests that end otherwise: "passed, failed"."""
  missing = "did not run"
  pairs = {
    name: (plain.get(name, missing), planned.get(name, missing))
    for name in sorted(plain.keys() | planned.keys())
  }
  return {
    name: ", ".join(pair) for name, pair in pairs.items() if len({*pair}) > 1
  }


def _num_passed(outcomes: Outcomes) -> int:
  return sum(outcome == "passed" for outcome in outcomes.values())
