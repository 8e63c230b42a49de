"""What XLA copies in loops, before and after `loops.remove_copies`.

Compiles each loop both ways, for this CPU and for devices that are not here,
and counts in what XLA made. On the device that is here both also run: outputs
are compared bit by bit, and CPU seconds (elsewhere, seconds) taken in turns.

    python -m benchmarks.loops_benchmark --output=benchmarks/results/loops.jsonl
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks.loop_cases import CASES, Case
from benchmarks.row_output import emit_row, versions
from jaxmem.experimental import loops

_CASES = flags.DEFINE_list("cases", [], "Loops; all if empty.")
_TARGETS = flags.DEFINE_list("targets", ["", "h200"], "Empty: what is here.")
_SIZE = flags.DEFINE_integer("size", 512, "Of the square arrays.", 8)
_ROUNDS = flags.DEFINE_integer("rounds", 64, "Of each loop.", 8)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs; 0 for none.", 0)
_OUTPUT = flags.DEFINE_string("output", None, "File to append rows to.")


def measure(name: str, target: str) -> dict[str, Any]:
  """Measures one loop and returns its row."""
  case = CASES[name](_SIZE.value, _ROUNDS.value)
  plan = loops.remove_copies(
    case.function, *case.args, target=target or None, unknown_rounds=case.rounds
  )
  row: dict[str, Any] = {
    "case": name,
    "target": target or jax.default_backend(),
    "size": _SIZE.value,
    "rounds": case.rounds,
    "is_changed": plan.is_changed,
    "rounds_per_body": [change.rounds for change in plan.changes],
    "num_ordered": sum(change.num_ordered for change in plan.changes),
  }
  for key, found in (("before", plan.before), ("after", plan.after)):
    row |= {
      f"num_copies_{key}": len(found.copies),
      f"copied_bytes_per_round_{key}": found.copied_bytes / case.rounds,
      f"moved_bytes_per_round_{key}": found.moved_bytes / case.rounds,
      f"temp_bytes_{key}": found.temp_bytes,
    }
  if not target:
    row |= _run(case, plan.function)
  return row | {"versions": versions("jax", "jaxmem")}


def _run(case: Case, function: Callable[..., Any]) -> dict[str, Any]:
  both = [jax.jit(case.function), jax.jit(function)]
  results = [
    [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(f(*case.args))]
    for f in both
  ]
  # Threads of the CPU's own client count; for other devices, wall time does.
  is_cpu = jax.default_backend() == "cpu"
  clock = time.process_time if is_cpu else time.perf_counter
  seconds: list[list[float]] = [[], []]
  for _ in range(_REPEATS.value):
    for each, taken in zip(both, seconds, strict=True):
      start = clock()
      jax.block_until_ready(each(*case.args))
      taken.append(clock() - start)
  row: dict[str, Any] = {"is_bit_equal": results[0] == results[1]}
  if _REPEATS.value:
    before, after = map(statistics.median, seconds)
    row |= {
      "seconds_before": round(before, 6),
      "seconds_after": round(after, 6),
    }
  return row


def main(argv: list[str]) -> None:
  """Measures all cases."""
  del argv
  jax.config.update("jax_enable_compilation_cache", False)
  for name in _CASES.value or CASES:
    # absl reads an empty list where one empty name was meant.
    for target in _TARGETS.value or [""]:
      emit_row(measure(name, target), _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
