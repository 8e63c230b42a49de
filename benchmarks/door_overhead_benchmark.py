"""What jaxmem costs where it plans nothing: calls, small compiles, memory.

    python -m benchmarks.door_overhead_benchmark \\
      --output=benchmarks/results/door_overhead.jsonl

Three cases, each a row of ratios, jaxmem's to jax's own, of wall time and of
CPU time. CPU time says more on a machine that others use too.

*   call: an almost empty step of `jaxmem.jit` against one of `jax.jit`, in
    chunks of calls that alternate. As a control two more of `jax.jit` take
    part: what differs between these is noise.
*   keep_arena: the same with `Options(keep_arena=True)`, of a step that has
    temporaries. Python finds the arena here, so this call costs more.
*   process: whole processes that compile many small functions, in turns, under
    `jaxmem.enable()` and without jaxmem; and their peak resident memory.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jaxmem
from benchmarks.paired import Runner, cpu_seconds, ratios, run_round
from benchmarks.row_output import emit_row, versions

_CASES = flags.DEFINE_list(
  "cases", ["call", "keep_arena", "process"], "What is measured."
)
_CALLS = flags.DEFINE_integer("calls", 100_000, "Calls of each function.")
_CHUNK = flags.DEFINE_integer("chunk", 200, "Calls until the other's turn.")
_COMPILES = flags.DEFINE_integer("compiles", 1_000, "Compiles of a process.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 7, "Processes of each kind.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")

_PROCESS = pathlib.Path(__file__).with_name("door_overhead_process.py")
_KINDS = ("plain", "enabled")


def measure_call() -> dict[str, Any]:
  """Compares calls of a step that does almost nothing."""

  def step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x + 1, y

  return _compare_calls(step, jaxmem.jit(step), jnp.zeros(()))


def measure_keep_arena() -> dict[str, Any]:
  """Compares calls of a small step whose arena is kept."""

  def step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    # The square that is summed up is larger than the results.
    return (jnp.sin(jnp.outer(x, x)) @ jnp.outer(x, x)).sum(0), y

  kept = jaxmem.jit(step, options=jaxmem.Options(keep_arena=True))
  return _compare_calls(step, kept, jnp.ones(8))


def _compare_calls(
  step: Callable[..., Any], planned: Callable[..., Any], x: jax.Array
) -> dict[str, Any]:
  """Calls a step in chunks that alternate, as jax and as jaxmem compile it."""

  def chunk(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
      for _ in range(_CHUNK.value):
        x, y = function(x, y)
      return x, y

    return run

  others = [jax.jit(lambda x, y, i=i: step(x, y)) for i in range(2)]
  # Rounds go forward and backward, so that the two at the ends run twice in a
  # row: they are compared, and so are the two in the middle.
  functions = (planned, *others, jax.jit(step))
  runners = [Runner(chunk(function), (x, x)) for function in functions]
  # The first chunk compiles.
  for i in range(1 + _CALLS.value // _CHUNK.value):
    run_round(runners, i)
  ours, one, other, theirs = (runner.taken(1) for runner in runners)
  return {
    "calls": len(ours) * _CHUNK.value,
    "xla_call_cpu_s": float(np.median(cpu_seconds(theirs))) / _CHUNK.value,
    "call_cpu_s": float(np.median(cpu_seconds(ours))) / _CHUNK.value,
    "wall": ratios(ours[:, 0], theirs[:, 0]),
    "cpu": ratios(cpu_seconds(ours), cpu_seconds(theirs)),
    "control_wall": ratios(one[:, 0], other[:, 0]),
    "control_cpu": ratios(cpu_seconds(one), cpu_seconds(other)),
  }


def measure_process() -> dict[str, Any]:
  """Compares whole processes of many small compiles."""
  found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _KINDS}
  for i in range(_REPETITIONS.value):
    for kind in _KINDS if i % 2 else reversed(_KINDS):
      found[kind].append(_run_process(kind))
  plain, enabled = (found[kind] for kind in _KINDS)

  def values(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])

  def compared(name: str) -> dict[str, Any]:
    return ratios(values(enabled, name), values(plain, name))

  def median(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.median(values(rows, name)))

  return {
    "compiles": _COMPILES.value,
    "repetitions": _REPETITIONS.value,
    "xla_process_s": median(plain, "process_s"),
    "xla_process_cpu_s": [*values(plain, "process_cpu_s")],
    "process_cpu_s": [*values(enabled, "process_cpu_s")],
    "enable_cpu_s": median(enabled, "enable_cpu_s"),
    "process_wall": compared("process_s"),
    "process_cpu": compared("process_cpu_s"),
    "compiles_wall": compared("compiles_s"),
    "compiles_cpu": compared("compiles_cpu_s"),
    "xla_peak_bytes": median(plain, "peak_bytes"),
    "peak_bytes": median(enabled, "peak_bytes"),
    "xla_loaded": plain[0]["loaded"],
    "loaded": enabled[0]["loaded"],
  }


def _run_process(kind: str) -> dict[str, Any]:
  """Runs one process; the figures of the whole include its start and end."""
  command = [sys.executable, str(_PROCESS), kind, str(_COMPILES.value)]
  start = time.perf_counter()
  process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
  assert process.stdout is not None
  with process.stdout:
    text = process.stdout.read()
  _, status, used = os.wait4(process.pid, 0)
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode:
    raise RuntimeError(f"{' '.join(command)} exited with {process.returncode}.")
  return {
    **json.loads(text),
    "process_s": time.perf_counter() - start,
    "process_cpu_s": used.ru_utime + used.ru_stime,
  }


_MEASURES = {
  "call": measure_call,
  "keep_arena": measure_keep_arena,
  "process": measure_process,
}


def main(argv: list[str]) -> None:
  """Measures the cases."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  for case in _CASES.value:
    row = {"case": case, **_MEASURES[case](), "versions": versions("jax")}
    emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
