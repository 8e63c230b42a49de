"""Sharded steps run in processes of eight devices, with and without planning.

Jax fixes the number of devices when it starts, hence the processes: `run`
starts them and returns what they found. This file is also the program that they
run; it prints its rows as JSON.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from absl.testing import absltest

NUM_DEVICES = 8
_NUM_CALLS = 3
_OPCODE = re.compile(
  r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|while)"
  r"(?:-start)?\("
)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(\S+) = ", re.MULTILINE)


def run(
  names: Sequence[str],
  size: str,
  *,
  shares: Sequence[float] = (0.8, 0.9),
  num_processes: int = 1,
  timeout_s: float,
) -> list[list[dict[str, Any]]]:
  """Runs steps over eight devices; returns the rows that each process prints.

  Args:
    names: Of `sharded_steps.STEPS`.
    size: The name of a `sharded_steps.Size`.
    shares: Of what XLA's own program takes, tried as limits in turn, until a
      plan fits.
    num_processes: Between how many the devices are divided.
    timeout_s: Of real time; then all processes are ended.

  Returns:
    For each process what `_compare` returns for each step.

  Raises:
    AssertionError: If a process fails, or does not end in time.
  """
  with socket.create_server(("localhost", 0)) as server:
    address = f"localhost:{server.getsockname()[1]}"
  words = {
    "names": list(names),
    "size": size,
    "shares": list(shares),
    "num_processes": num_processes,
    "address": address,
  }
  with contextlib.ExitStack() as stack:
    started = [
      stack.enter_context(_started({**words, "process": process}))
      for process in range(num_processes)
    ]
    _wait([process for process, _ in started], timeout_s)
    texts = [_ended(process, output) for process, output in started]
  if any(process.returncode for process, _ in started):
    raise AssertionError(
      f"A process failed, or {names} took more than {timeout_s} s:\n"
      + "\n".join(texts)
    )
  return [json.loads(text.splitlines()[-1]) for text in texts]


@contextlib.contextmanager
def _started(
  words: dict[str, Any],
) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
  """Starts a process; yields it, and the file that it writes to."""
  count = NUM_DEVICES // words["num_processes"]
  environment = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "JAXMEM_CACHE_DIR": "",
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
  }
  program = str(pathlib.Path(__file__).resolve())
  # A file takes whatever is written, also while nobody reads it.
  with tempfile.TemporaryFile("w+") as output:
    process = subprocess.Popen(
      [sys.executable, program, json.dumps(words)],
      env=environment,
      stdout=output,
      stderr=subprocess.STDOUT,
    )
    try:
      yield process, output
    finally:
      process.kill()
      process.wait()


def _wait(processes: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
  """Waits until all have ended, one has failed, or the time is up."""
  deadline = time.monotonic() + timeout_s
  while time.monotonic() < deadline:
    codes = [process.poll() for process in processes]
    if None not in codes or any(codes):
      return
    time.sleep(0.05)


def _ended(process: subprocess.Popen[bytes], output: IO[str]) -> str:
  """Ends a process that still runs; returns what it wrote."""
  process.kill()
  process.wait()
  output.seek(0)
  return output.read()


def check(test: absltest.TestCase, row: dict[str, Any]) -> None:
  """Asserts that a step is the same planned, and takes no more than it may.

  Args:
    test: What asserts.
    row: What `_compare` returned.
  """
  test.assertEmpty(row["warnings"])
  test.assertIn("limited", row, "No plan fits any of the limits.")
  own, planned, limited = (row[k] for k in ("own", "planned", "limited"))
  test.assertContainsSubset(row["needed"], own["opcodes"])
  test.assertTrue(own["is_learning"])
  for each in (planned, limited, row["unplanned"]):
    test.assertTrue(each["is_equal"])
    test.assertLessEqual(each["temp_bytes"], own["temp_bytes"])
    test.assertLessEqual(each["total_bytes"], own["total_bytes"])
  test.assertEqual(planned["opcodes"], own["opcodes"])
  test.assertLess(row["limit_bytes"], own["total_bytes"])
  test.assertLessEqual(limited["total_bytes"], row["limit_bytes"])


def _total_bytes(memory: Any) -> int:
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    + memory.temp_size_in_bytes
    - memory.alias_size_in_bytes
  )


class _Comparison:
  """A step as jax.jit runs it, with which planned ones are compared."""

  def __init__(self, case: Any):
    import jax

    self._case = case
    self._own_outputs: Any = None
    self.own = self.measure(jax.jit)

  def measure(self, jit: Callable[..., Any], **kwargs: Any) -> dict[str, Any]:
    """Compiles and runs the step; says what it takes and whether it is equal.

    Args:
      jit: `jax.jit` or `jaxmem.jit`; the first call is the one compared with.
      **kwargs: Passed to it.
    """
    jitted = jit(self._case.function, donate_argnums=0, **kwargs)
    compiled = jitted.lower(self._case.state, self._case.batch).compile()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    outputs = self._outputs(jitted)
    if self._own_outputs is None:
      self._own_outputs = outputs
    schedule = "\n".join(_INSTRUCTION.findall(text))
    return {
      "temp_bytes": memory.temp_size_in_bytes,
      "total_bytes": _total_bytes(memory),
      "opcodes": collections.Counter(_OPCODE.findall(text)),
      "is_equal": outputs == self._own_outputs,
      "schedule": hashlib.sha256(schedule.encode()).hexdigest(),
      "is_learning": outputs[0] != outputs[-1],
    }

  def _outputs(self, jitted: Callable[..., Any]) -> list[Any]:
    """Calls the step, each time with the last state; returns all bytes."""
    import jax
    import numpy as np

    def shards(x: jax.Array) -> Any:
      found = [np.asarray(shard.data) for shard in x.addressable_shards]
      return [(x.dtype, data.shape, data.tobytes()) for data in found]

    # It is given the state to keep.
    state = jax.tree.map(lambda x: x.copy(), self._case.state)
    seen = []
    for _ in range(_NUM_CALLS):
      state, loss = jitted(state, self._case.batch)
      assert np.isfinite(loss.addressable_data(0))
      seen.append(jax.tree.map(shards, (state, loss)))
    return seen


def _compare(name: str, size: str, shares: Sequence[float]) -> dict[str, Any]:
  """Runs a step by jax.jit, and by jaxmem.jit with a limit and without.

  Returns:
    Under "own", "planned", "limited" and "unplanned", where no order saves
    enough, what `_Comparison.measure` returns; "limit_bytes", and "warnings".
  """
  import jax
  import sharded_steps

  import jaxmem

  options = jaxmem.Options(min_gain=0.0, verify=True)
  case = sharded_steps.STEPS[name](jax.devices(), getattr(sharded_steps, size))
  row: dict[str, Any] = {"name": name, "needed": sorted(case.opcodes)}
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    comparison = _Comparison(case)
    row["own"] = comparison.own
    row["planned"] = comparison.measure(jaxmem.jit, options=options)
    row["unplanned"] = comparison.measure(
      jaxmem.jit, options=jaxmem.Options(min_gain=0.99)
    )
    for share in shares:
      limit_bytes = int(share * comparison.own["total_bytes"])
      try:
        row["limited"] = comparison.measure(
          jaxmem.jit, options=options, memory_limit=limit_bytes
        )
      except jaxmem.InfeasibleError:
        continue
      row["limit_bytes"] = limit_bytes
      break
  row["warnings"] = [str(warning.message) for warning in caught]
  return row


def _main(words: dict[str, Any]) -> None:
  import jax

  if words["num_processes"] > 1:
    jax.distributed.initialize(
      words["address"], words["num_processes"], words["process"]
    )
  assert jax.device_count() == NUM_DEVICES
  rows = [
    _compare(name, words["size"], words["shares"]) for name in words["names"]
  ]
  print(json.dumps(rows), flush=True)


if __name__ == "__main__":
  _main(json.loads(sys.argv[1]))
