"""The demo from its first line to its exit code."""

from __future__ import annotations

import pathlib
import sys
import tempfile
import textwrap
import time

import jax

from jaxmem.demo import cases, planning, running
from jaxmem.version import __version__

_NUM_STEPS = 3
# Of the step that must fit, and of the one that tests plan instead.
_LIMIT, _TINY_LIMIT = "640MiB", "1MiB"


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
  planning.show_plans(
    {"cpu": planned}
    if quick
    else {"cpu": planned, "h200": cases.small_cases()[1:]}
  )
  picture = _show_limit(quick)
  if not quick:
    _say(
      "\n3. A step over eight H200s that are not here, its parameters divided"
      " among them, as XLA schedules it and as planned; figures are those of"
      " one of them. Times are estimates, with the same rates for both."
    )
    planning.show_sharded("h200")
  _say(
    f"\n{3 if quick else 4}. Train steps on this CPU, {_NUM_STEPS} of each."
    " Every row is a process of its own, and the two take turns. Process peak"
    " is the most memory the system ever gave it; growth is how much of that"
    " came with the steps, after compilation."
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
  if picture is not None:
    print(f"A picture of the plan in part 2, for any browser: {picture}")
  return 0 if are_equal else 1


def _show_limit(quick: bool) -> pathlib.Path | None:
  """Plans a step under a limit; returns where its picture is."""
  _say(
    "\n2. A limit for the whole step: arguments, outputs and temporaries. What"
    " does not fit is computed again, or waits in the host's memory. Time is"
    " what the planned step takes more than XLA's own, by estimate."
  )
  if quick:
    plan = planning.show_limit(cases.tiny_cases()[0], "cpu", _TINY_LIMIT)
  else:
    plan = planning.show_limit(cases.limited_case(), "h200", _LIMIT)
  if plan is None:
    return None
  folder = pathlib.Path(tempfile.mkdtemp(prefix="jaxmem-demo-"))
  plan.save_html(folder / "plan.html")
  return folder / "plan.html"


def _say(text: str) -> None:
  print(textwrap.fill(text, 79, replace_whitespace=False), flush=True)
