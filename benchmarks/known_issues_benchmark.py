"""What becomes of memory problems that people reported, by the bytes.

    python -m benchmarks.known_issues_benchmark \
      --output=benchmarks/results/known_issues.jsonl

Each program is compiled by jax.jit, as planned, and under a limit that leaves
half of XLA's temporaries; bytes are XLA's figures. On the CPU all of them run,
and results are compared bit by bit. `python -m benchmarks.known_issues_report`
fills docs/known-issues.md.
"""

from __future__ import annotations

from absl import app, flags

from benchmarks.known_issues import KNOWN_STEPS, measure
from benchmarks.row_output import emit_row, versions

_STEPS = flags.DEFINE_list("steps", [*KNOWN_STEPS], "Which programs.")
_OUTPUT = flags.DEFINE_string("output", None, "File to append the rows to.")


def main(argv: list[str]) -> None:
  """Prints a row for each program and target."""
  del argv
  for name in _STEPS.value:
    for row in measure(KNOWN_STEPS[name]):
      made = versions("jax", "jaxlib", "jaxmem")
      emit_row({"step": name, **row, "versions": made}, _OUTPUT.value)


if __name__ == "__main__":
  app.run(main)
