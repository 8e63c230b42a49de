"""What a process keeps that compiles, and calls, for a long time.

    python -m benchmarks.long_run_benchmark \\
      --output=benchmarks/results/long_run.jsonl

Each row is of a process of its own: steps that differ in a constant and are
compiled one after the other, or calls of one step. `jax` is `jax.jit` alone,
`jit` is `jaxmem.jit`, `limit` the same under a memory limit, `refused` under
one that cannot be kept, so that nothing is called, and `enable` is `jax.jit`
under `jaxmem.enable(min_bytes=0)`.

jax keeps each program that it compiled until its caches are cleared, and its
own tables of what was traced grow all the same. So `jax.clear_caches()` is
called after every compile, in all processes alike, and what is compared is the
growth of jaxmem's processes with that of jax's own.

Resident memory is that of the process, after garbage was collected and free
memory was given back (`malloc_trim`): once when a fifth is done, once at the
end. Threads are those of the process, handlers what XLA's hook would call, and
policies and programs what jaxmem keeps of them.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from benchmarks.row_output import emit_row, versions

_COMPILES = flags.DEFINE_integer("compiles", 500, "Compiles of a process.")
_CALLS = flags.DEFINE_integer("calls", 1_000_000, "Calls of a process.")
_KINDS = flags.DEFINE_list(
  "kinds",
  ["jax", "jit", "limit", "refused", "enable"],
  "What compiles and calls.",
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")
_RUN = flags.DEFINE_string("run", None, "What this process is to do itself.")

_STATUS = pathlib.Path("/proc/self/status")
_WARM_UP_SHARE = 0.2
_LIMITS = {"limit": "1GiB", "refused": 1}


def _status(name: str) -> int:
  for line in _STATUS.read_text(encoding="ascii").splitlines():
    if line.startswith(f"{name}:"):
      return int(line.split()[1])
  raise RuntimeError(f"{_STATUS} has no {name}; run this on Linux.")


def _kept(kind: str) -> dict[str, int]:
  """Returns what the process holds: memory, threads, and jaxmem's objects."""
  gc.collect()
  ctypes.CDLL("libc.so.6").malloc_trim(0)
  found = {
    "resident_bytes": 1024 * _status("VmRSS"),
    "threads": _status("Threads"),
    "objects": len(gc.get_objects()),
  }
  if kind == "jax":
    return found
  from jaxmem_hlo import compiler_hook

  from jaxmem.entry import PLANNED

  # What it keeps to itself is what is counted here.
  module = importlib.import_module("jaxmem.entry.planned_compiles")
  compiles = module.COMPILES
  return found | {
    "handlers": len(compiler_hook._handlers),
    "hooks": len(compiler_hook._platforms),
    "policies": len(PLANNED._by_tag),
    "programs": len(compiles._picked) + len(compiles._asked),
    "under_way": len(compiles._compiles),
    "records": len(PLANNED.records.all()),
  }


def _jitting(kind: str) -> Callable[..., Any]:
  """Returns what compiles steps, and enables jaxmem if that is asked."""
  import jax

  if kind == "jax":
    return jax.jit
  import jaxmem

  if kind == "enable":
    jaxmem.enable(min_bytes=0)
    return jax.jit
  limit = _LIMITS.get(kind)
  return lambda step: jaxmem.jit(step, memory_limit=limit)


def _refusing(kind: str) -> contextlib.AbstractContextManager[Any]:
  """Lets a step be refused under the limit that is there to be refused."""
  if kind != "refused":
    return contextlib.nullcontext()
  import jaxmem

  return contextlib.suppress(jaxmem.InfeasibleError)


def _step(x: Any, y: Any) -> Any:
  """Large temporaries that XLA:CPU makes all at once, and need not."""
  import jax.numpy as jnp

  total = jnp.float32(0)
  for i in range(4):
    total += jnp.sum(jnp.sin((x + i) @ y) @ x.T)
  return total


def _compile(kind: str, count: int) -> dict[str, Any]:
  """Compiles steps that differ in a constant, each once."""
  import jax
  import jax.numpy as jnp

  jitting = _jitting(kind)
  x = jnp.ones((24, 24))
  warm = max(1, int(_WARM_UP_SHARE * count))
  start: dict[str, int] = {}
  for i in range(count):
    if i == warm:
      start = _kept(kind)
    step = jitting(lambda x, y, i=i: _step(x, y) * float(i))
    with _refusing(kind):
      step(x, x).block_until_ready()
    jax.clear_caches()
  return {"warm_up": warm, "start": start, "end": _kept(kind)}


def _call(kind: str, count: int) -> dict[str, Any]:
  """Calls one small step."""
  import jax.numpy as jnp

  step = _jitting(kind)(lambda x: (jnp.sin(x) + 1.0) / 2.0)
  x = jnp.ones((8,))
  warm = max(1, int(_WARM_UP_SHARE * count))
  start: dict[str, int] = {}
  for i in range(count):
    if i == warm:
      start = _kept(kind)
    x = step(x)
  x.block_until_ready()
  return {"warm_up": warm, "start": start, "end": _kept(kind)}


_CASES = {"compile": _compile, "call": _call}


def _measure(case: str, kind: str, count: int) -> dict[str, Any]:
  """Runs one case in a process of its own."""
  command = [
    *(sys.executable, "-m", "benchmarks.long_run_benchmark"),
    f"--run={case},{kind},{count}",
  ]
  # Files of plans would be read and written otherwise.
  environment = {**os.environ, "JAXMEM_CACHE_DIR": ""}
  start = time.perf_counter()
  done = subprocess.run(
    command, env=environment, stdout=subprocess.PIPE, text=True, check=True
  )
  seconds = time.perf_counter() - start
  row = json.loads(done.stdout.splitlines()[-1])
  grown = row["end"]["resident_bytes"] - row["start"]["resident_bytes"]
  return {
    "case": case,
    "kind": kind,
    "count": count,
    "grown_bytes": grown,
    "growth": grown / row["start"]["resident_bytes"],
    **row,
    "seconds": round(seconds, 1),
    **versions("jax", "jaxlib", "jaxmem", "python"),
  }


def main(argv: Sequence[str]) -> None:
  """Runs every case for every kind, or what one process is to do."""
  del argv
  if _RUN.value is not None:
    case, kind, count = _RUN.value.split(",")
    print(json.dumps(_CASES[case](kind, int(count))))
    return
  counts = {"compile": _COMPILES.value, "call": _CALLS.value}
  for case, count in counts.items():
    own = None
    for kind in _KINDS.value:
      if (case, kind) == ("call", "refused"):
        continue
      row = _measure(case, kind, count)
      if kind == "jax":
        own = row["growth"]
      elif own is not None:
        row["growth_beyond_jax"] = row["growth"] - own
      emit_row(row, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
