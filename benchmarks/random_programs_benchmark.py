"""Checks jaxmem on programs made at random.

Each program is compiled by jax.jit and by jaxmem.jit, planned twice, compiled
under a limit, and run each time; docs/random-programs.md says what has to hold.
Some are planned in a second process, too. A row for each batch of seeds counts
the checks; what fails is made small and listed. Any failure makes the exit
status 1.

    python -m benchmarks.random_programs_benchmark --first=0 --count=1000 \
      --output=benchmarks/results/random_programs.jsonl

With --devices=8 they are programs over eight devices of the CPU, others than
those that the same seeds make for one. With --target=h200 they are planned for
that device, and the checks that need one to run on are left out.
"""

import collections
import datetime
import json
import os
import subprocess
import sys
import time
import warnings
from typing import Any

import jax
from absl import app, flags

from benchmarks import random_programs
from benchmarks.row_output import emit_row, versions

_FIRST = flags.DEFINE_integer("first", 0, "The first seed; goes on from there.")
_COUNT = flags.DEFINE_integer("count", 100, "How many seeds.")
_BATCH = flags.DEFINE_integer("batch", 20, "Seeds of a row.")
_AGAIN = flags.DEFINE_integer(
  "again",
  10,
  "Every so many seeds one is planned in a second process; 0: none.",
)
_TRIES = flags.DEFINE_integer(
  "tries", 100, "Programs to try to make one small."
)
_DEVICES = flags.DEFINE_integer(
  "devices", 1, "How many devices the programs run on: 1, or an even number."
)
_PLANS = flags.DEFINE_integer(
  "plans",
  1,
  "Every so many seeds `jaxmem.plan` is asked as well, which compiles the"
  " program twice more; 0: never.",
)
_MOST_OPERATIONS = flags.DEFINE_integer(
  "most_operations",
  random_programs.MOST_OPERATIONS,
  "Of a program, and of each body in it; 2 at the least.",
)
_TARGET = flags.DEFINE_string(
  "target",
  None,
  "A device that is described, such as h200: programs are planned for it, and"
  " do not run.",
)
_DIGESTS = flags.DEFINE_list(
  "digests", [], "Only prints the digests of these seeds' plans."
)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def _generate(seed: int) -> random_programs.Program:
  return random_programs.generate(seed, _DEVICES.value, _MOST_OPERATIONS.value)


def _is_by_plan(seed: int) -> bool:
  return bool(_PLANS.value) and seed % _PLANS.value == 0


def measure(seeds: range) -> dict[str, Any]:
  """Returns the row of some seeds."""
  start_s, wall_s = time.process_time(), time.perf_counter()
  counts: collections.Counter[str] = collections.Counter()
  failures: dict[int, dict[str, str]] = {}
  for seed in seeds:
    outcome = random_programs.check(
      _generate(seed), by_plan=_is_by_plan(seed), target=_TARGET.value
    )
    counts += outcome.counts
    if outcome.failures:
      failures[seed] = outcome.failures
      _report(seed, outcome.failures)
  again = [s for s in seeds if _AGAIN.value and s % _AGAIN.value == 0]
  counts["other_process"] += len(again)
  for seed in _differing(again):
    failures.setdefault(seed, {})["other_process"] = "another plan"
  # Functions that will not be called again.
  jax.clear_caches()
  return {
    "first": seeds.start,
    "count": len(seeds),
    "devices": _DEVICES.value,
    "target": _TARGET.value,
    "most_operations": _MOST_OPERATIONS.value,
    "plans": _PLANS.value,
    "counts": dict(sorted(counts.items())),
    "failures": failures,
    "cpu_s": round(time.process_time() - start_s, 1),
    "wall_s": round(time.perf_counter() - wall_s, 1),
    "date": datetime.date.today().isoformat(),
    "versions": versions("jax", "jaxlib", "jaxmem", "python"),
  }


def _report(seed: int, failures: dict[str, str]) -> None:
  """Prints what is left of a failing program, for each failure."""
  for name, why in failures.items():
    print(f"seed {seed}: {name}: {why}", file=sys.stderr)
    small = random_programs.minimise(
      _generate(seed),
      lambda part, name=name: random_programs.fails(
        part, name, by_plan=_is_by_plan(seed), target=_TARGET.value
      ),
      _TRIES.value,
    )
    print(small, file=sys.stderr, flush=True)


def _differing(seeds: list[int]) -> list[int]:
  """Returns the seeds whose plans are others in a process of its own."""
  if not seeds:
    return []
  program = [sys.executable, "-m", "benchmarks.random_programs_benchmark"]
  done = subprocess.run(
    [
      *program,
      f"--devices={_DEVICES.value}",
      f"--most_operations={_MOST_OPERATIONS.value}",
      f"--digests={','.join(map(str, seeds))}",
      *([f"--target={_TARGET.value}"] if _TARGET.value else ()),
    ],
    # Sets are in another order there.
    env={**os.environ, "PYTHONHASHSEED": "1"},
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  found = json.loads(done.stdout)
  return [
    seed
    for seed, digest in zip(seeds, found, strict=True)
    if digest != _digest(seed)
  ]


def _digest(seed: int) -> str:
  return random_programs.digest(_generate(seed), _TARGET.value)


def main(argv: list[str]) -> None:
  """Prints the rows of all seeds, or the digests of some."""
  del argv
  # jax says of donated arguments whether it had a use for them.
  warnings.filterwarnings("ignore", message=".*donated buffers.*")
  if _DEVICES.value > 1:
    jax.config.update("jax_num_cpu_devices", _DEVICES.value)
  if _DIGESTS.value:
    print(json.dumps([_digest(int(s)) for s in _DIGESTS.value]))
    return
  # Plans are to be made, not remembered.
  os.environ["JAXMEM_CACHE_DIR"] = ""
  jax.config.update("jax_enable_compilation_cache", False)
  num_failed = 0
  end = _FIRST.value + _COUNT.value
  for first in range(_FIRST.value, end, _BATCH.value):
    row = measure(range(first, min(first + _BATCH.value, end)))
    emit_row(row, _OUTPUT.value)
    num_failed += len(row["failures"])
  print(f"{_COUNT.value} programs, {num_failed} with failures")
  sys.exit(num_failed > 0)


if __name__ == "__main__":
  app.run(main)
