"""How much of the free memory is in one piece after some steps."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import zoo
from benchmarks.gpu import models, ways
from benchmarks.gpu.case import (
  Context,
  Part,
  Row,
  cases,
  error_text,
  megabytes,
  number,
)

_NUM_STEPS = 5
_SHARE = 0.5
_FIGURES = ("free_bytes", "largest_free_block_bytes", "fragmentation")
_TITLES = ("step", "way", "free MB", "largest piece MB", "not in it, %")


def _run(context: Context) -> None:
  """Runs all ways one after the other, and looks while the state is there."""
  name = context.case.name

  def build() -> zoo.Step:
    return models.build(name, is_rehearsal=context.is_rehearsal)

  plain = ways.by_jax(build())
  found = [plain]
  for way_name, limit_bytes in (
    ("jaxmem", None),
    (f"jaxmem, {_SHARE:.0%}", plain.limit_at(_SHARE)),
  ):
    try:
      found.append(ways.by_jaxmem(build(), way_name, limit_bytes))
    except ways.FAILURES as error:
      context.emit({"model": name, "way": way_name, "error": error_text(error)})
  for way in found:
    ways.release()
    args = ways.run_steps(way, _NUM_STEPS)
    context.emit({"model": name, **way.row(), **figures(ways.statistics())})
    del args


def figures(statistics: dict[str, int]) -> Row:
  """Returns free bytes, the largest piece, and the share outside of it.

  Args:
    statistics: Of the device's allocator; empty on a CPU.
  """
  largest = statistics.get("largest_free_block_bytes")
  limit = statistics.get("bytes_limit")
  if largest is None or limit is None:
    return ways.reasons(True, ways.NO_STATISTICS, *_FIGURES)
  free = limit - statistics["bytes_in_use"]
  share = 1 - largest / free if free else 0.0
  return dict(zip(_FIGURES, (free, largest, share), strict=True)) | {
    "pool_bytes": statistics.get("pool_bytes")
  }


def _cells(row: Row) -> Sequence[object]:
  if "error" in row:
    return [row["model"], row["way"], row["error"], "", ""]
  return [
    row["model"],
    row["way"],
    megabytes(row["free_bytes"]),
    megabytes(row["largest_free_block_bytes"]),
    number(row["fragmentation"], 100, 2),
  ]


PART = Part(
  name="fragmentation",
  question=(
    "After five steps, how much of the free memory is in the allocator's"
    " largest free block?"
  ),
  cases=cases(
    ["gpt2_small", "resnet50"], 45, rehearsed=["unet"], rehearsed_s=15
  ),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
