"""What autotuning changes in a step's temporaries."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu import models, ways
from benchmarks.gpu.case import Context, Part, Row, cases, megabytes

_TITLES = (
  "step",
  "not tuned MB",
  "tuned MB",
  "change",
  "compile s",
  "tuned compile s",
)


def _run(context: Context) -> None:
  """Compiles a step without and with autotuning."""
  name = context.case.name
  row: Row = {"model": name}
  for label, options in (("untuned", ways.UNTUNED), ("tuned", None)):
    step = models.build(name, is_rehearsal=context.is_rehearsal)
    way = ways.by_jax(step, options=options)
    row |= {
      f"{label}_temp_bytes": way.memory.temp_size_in_bytes,
      f"{label}_compile_s": round(way.compile_s, 3),
    }
  context.emit(row)


def _cells(row: Row) -> Sequence[object]:
  before, after = row["untuned_temp_bytes"], row["tuned_temp_bytes"]
  return [
    row["model"],
    megabytes(before),
    megabytes(after),
    f"{100 * (after / before - 1):+.2f} %",
    f"{row['untuned_compile_s']:.1f}",
    f"{row['tuned_compile_s']:.1f}",
  ]


PART = Part(
  name="autotune",
  question=(
    "Plans for a described card are compiled without autotuning: by how much"
    " do the temporaries differ with it?"
  ),
  cases=cases(
    ["resnet50", "gpt2_small", "unet"],
    30,
    rehearsed=["unet"],
    rehearsed_s=12,
    waves=(0, 1, 2),
  ),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
