"""A limit that jaxmem takes from the device: `memory_limit="auto"`."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu import models, ways
from benchmarks.gpu.case import Context, Part, Row, cases, error_text, megabytes

_NUM_STEPS = 3
_TITLES = ("step", "program MB", "allowed MB", "runs")


def _run(context: Context) -> None:
  """Compiles under the limit, and runs."""
  name = context.case.name
  step = models.build(name, is_rehearsal=context.is_rehearsal)
  row: Row = {"model": name}
  try:
    way = ways.by_jaxmem(step, "jaxmem, auto", "auto")
  except ways.FAILURES as error:
    context.emit(row | {"is_supported": True, "error": error_text(error)})
    return
  except ValueError as error:
    row |= {"is_supported": False, "error": f"not supported: {error}"}
    context.emit(row)
    return
  allowed_bytes = ways.allowed_bytes()
  row |= {"is_supported": True, **way.row(), "allowed_bytes": allowed_bytes}
  row |= ways.reasons(allowed_bytes is None, ways.NO_STATISTICS)
  try:
    ways.run_steps(way, _NUM_STEPS)
    context.emit(row | {"runs": True})
  except ways.FAILURES as error:
    context.emit(row | {"runs": False, "error": error_text(error)})


def _cells(row: Row) -> Sequence[object]:
  if "way" not in row:
    return [row["model"], "", "", row["error"]]
  return [
    row["model"],
    megabytes(row["total_bytes"]),
    megabytes(row["allowed_bytes"]),
    "yes" if row["runs"] else f"no: {row['error']}",
  ]


PART = Part(
  name="auto",
  question=(
    'Does a step run under `memory_limit="auto"`, and in how much memory?'
  ),
  cases=cases(["gpt2_small"], 25, rehearsed=["llama_stack"], rehearsed_s=10),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
