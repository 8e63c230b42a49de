"""The demo from its first line to its exit code."""

from __future__ import annotations

import sys
import textwrap
import time

import jax

from jaxmem.demo import cases, planning, running
from jaxmem.version import __version__

_NUM_STEPS = 5


def run(*, quick: bool = False) -> int:
  """Runs the demo.

  Args:
    quick: Use tiny models and only this machine's CPU.

  Returns:
    The exit code: 0 if all outputs were equal, 1 if not or if a run failed.
  """
  start = time.perf_counter()
  planned = cases.tiny_cases() if quick else cases.full_cases()
  which = "tiny" if quick else "small"
  print(f"jaxmem {__version__}, jax {jax.__version__}\n")
  _say(
    "1. Plans of train steps, nothing is run. XLA temp is what XLA reports for"
    " jax.jit, planned what it reports for jaxmem.jit; no order of the same"
    " program takes less than the bound. Each takes two compiles."
  )
  planning.show_plans(planned, ["cpu"] if quick else ["cpu", "h200"])
  _say(
    f"\n2. Train steps on this CPU, {_NUM_STEPS} of each. Every row is a"
    " process of its own, and the two take turns. Process peak is the most"
    " memory the system ever gave it; growth is how much of that came with the"
    " steps, after compilation."
  )
  are_equal = False
  try:
    if quick:
      are_equal = running.show_runs(which, planned, _NUM_STEPS)
    else:
      are_equal = running.show_runs(which, cases.small_cases(), _NUM_STEPS)
  except RuntimeError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  seconds = time.perf_counter() - start
  verdict = (
    "All outputs are equal, bit by bit."
    if are_equal
    else ("OUTPUTS DIFFER. Please report this with the lines above.")
  )
  print(f"\n{verdict} {seconds:.0f} s in total.")
  return 0 if are_equal else 1


def _say(text: str) -> None:
  print(textwrap.fill(text, 79, replace_whitespace=False), flush=True)
