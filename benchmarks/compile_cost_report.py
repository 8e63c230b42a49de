"""What `benchmarks.compile_cost_benchmark` measured, as a section."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from benchmarks.page import Row, table

_TEXT = """\
## Compile time

`JAXMEM_CACHE_DIR="" python -m benchmarks.compile_cost_benchmark
--output=benchmarks/results/compile_cost.jsonl`

`--size=full --batch=1 --rounds=2` and `--targets=h200 --rounds=2` for the rows
that say so. Steps of the zoo, small versions at batch 4 and some at full size,
traced, lowered and compiled by turns, each step in a process of its own: under
`jaxmem.enable(min_bytes=0)`, where every compile is planned, and by `jax.jit`.
Seconds are medians, of CPU time and of wall time; *ratio* is the median over
the pairs. *plan* is the planner's own wall time, as the records of
`jaxmem.enable` tell it; nothing is remembered from an earlier start. Nothing
else ran on the two cores.

A program with branches that gets another plan is compiled a second time, as XLA
wants it: bytes of branches that write in place are not always predicted right.
None of these steps has any.
"""

# Least and most instructions of a program, half-open.
_SIZES = ((0, 500), (500, 1_000), (1_000, 2_000), (2_000, 10**9))


def section(rows: Sequence[Row]) -> str:
  """Returns the section of docs/results.md; empty if there are no rows."""
  if not rows:
    return ""
  # Of what was measured again, the last row counts.
  latest = {(row["model"], row["size"], row["target"]): row for row in rows}
  ordered = sorted(latest.values(), key=_size_of)
  summary = ("target", "instructions", "steps", "CPU time", "worst")
  summary += ("wall time", "worst", "plan, s", "worst")
  titles = (
    "model",
    "size",
    "target",
    "instructions",
    "jax.jit, s",
    "CPU s",
    "ratio",
  )
  titles += ("jax.jit, wall s", "wall s", "ratio", "plan, s", "pairs", "date")
  return "\n".join(
    [
      _TEXT,
      table(summary, _summary_cells(ordered)),
      table(titles, map(_cells, ordered)),
    ]
  )


def _size_of(row: Row) -> tuple[str, int]:
  return row["target"], row["num_instructions"]


def _summary_cells(rows: Sequence[Row]) -> Iterator[list[str]]:
  """Yields the cells of each range of sizes, and of all, for each target."""
  for target in dict.fromkeys(row["target"] for row in rows):
    ours = [row for row in rows if row["target"] == target]
    for least, most in _SIZES:
      here = [r for r in ours if least <= r["num_instructions"] < most]
      numbers = [row["num_instructions"] for row in here]
      if here:
        yield _summary(target, f"{min(numbers):,} to {max(numbers):,}", here)
    yield _summary(target, "all", ours)


def _summary(target: str, sizes: str, rows: Sequence[Row]) -> list[str]:
  return [
    target,
    sizes,
    str(len(rows)),
    *_median_and_worst(ratio(row, "cpu_s") for row in rows),
    *_median_and_worst(ratio(row, "wall_s") for row in rows),
    *_median_and_worst(_median(row, "planning_s") for row in rows),
  ]


def ratio(row: Row, what: str) -> float:
  """Returns the median over pairs of compiles, ours by jax.jit's.

  Args:
    row: Of a step.
    what: "cpu_s" or "wall_s".
  """
  pairs = zip(row[what], row[f"jit_{what}"], strict=True)
  return float(np.median([own / plain for own, plain in pairs]))


def _median_and_worst(values: Iterable[float]) -> tuple[str, str]:
  found = [*values]
  return f"{np.median(found):.2f}", f"{max(found):.2f}"


def _median(row: Row, name: str) -> float:
  return float(np.median(row[name]))


def _cells(row: Row) -> list[str]:
  return [
    row["model"],
    row["size"],
    row["target"],
    f"{row['num_instructions']:,}",
    f"{_median(row, 'jit_cpu_s'):.2f}",
    f"{_median(row, 'cpu_s'):.2f}",
    f"{ratio(row, 'cpu_s'):.2f}",
    f"{_median(row, 'jit_wall_s'):.2f}",
    f"{_median(row, 'wall_s'):.2f}",
    f"{ratio(row, 'wall_s'):.2f}",
    f"{_median(row, 'planning_s'):.2f}",
    str(len(row["cpu_s"])),
    row["date"],
  ]
