"""The largest batch that runs against the one `max_batch` answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import jaxmem
from benchmarks import zoo
from benchmarks.gpu import models, ways
from benchmarks.gpu.case import Context, Part, Row, cases, error_text, megabytes

_NUM_STEPS = 2
# Where the answer does not run, smaller batches are tried.
_SMALLER = (0.95, 0.9, 0.8)
# jax may use this share of the card's memory; see `ways.allowed_bytes`.
_FRACTION = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}
# Where the search begins.
_BATCH, _REHEARSED_BATCH = 64, 8
_UNIT = 8  # Batches are multiples of it.
_TITLES = ("step", "way", "batch", "predicted MB", "allowed MB", "runs")


def _run(context: Context) -> None:
  """Asks for the largest batch, and runs it and its neighbours."""
  name = context.case.name
  size = "tiny" if context.is_rehearsal else "full"

  def build(batch: int) -> zoo.Step:
    return models.MODELS[name].build(batch, size)

  def factory(batch: int) -> tuple[object, ...]:
    step = build(batch)
    return step.function, step.args, step.jit_kwargs

  allowed_bytes = ways.allowed_bytes()
  limit_bytes = allowed_bytes
  if limit_bytes is None:
    # On a CPU, what a certain batch takes stands in for the memory there is.
    limit_bytes = ways.by_jaxmem(build(_REHEARSED_BATCH)).total_bytes
  start = _REHEARSED_BATCH if context.is_rehearsal else _BATCH
  start_s = time.perf_counter()
  answer = jaxmem.max_batch(
    factory, limit=limit_bytes, start=start, multiple_of=_UNIT
  )
  labels = {
    "model": name,
    "limit_bytes": limit_bytes,
    "answer": answer.batch,
    "smallest_bytes": dict(answer.smallest_bytes),
    "search_s": round(time.perf_counter() - start_s, 1),
    **ways.reasons(allowed_bytes is None, ways.NO_STATISTICS, "allowed_bytes"),
  }
  for row in _attempts(build, answer, limit_bytes):
    context.emit(labels | row)


def _attempts(
  build: Callable[[int], zoo.Step], answer: jaxmem.BatchPlan, limit_bytes: int
) -> Iterator[Row]:
  """Runs the answer, what was said not to fit, and `jax.jit` for comparison."""

  def planned(batch: int, limit: int) -> Row:
    return _attempt(
      "jaxmem", batch, lambda: ways.by_jaxmem(build(batch), "jaxmem", limit)
    )

  row = planned(answer.batch, limit_bytes)
  yield row
  for share in _SMALLER:
    if row["runs"]:
      break
    row = planned(
      max(_UNIT, int(share * answer.batch) // _UNIT * _UNIT), limit_bytes
    )
    yield row
  larger = [b for b in answer.smallest_bytes if b > answer.batch]
  if larger:
    # At its smallest, it was said to take more than there is.
    batch = min(larger)
    yield planned(batch, answer.smallest_bytes[batch])
  yield _attempt(
    "jax.jit", answer.batch, lambda: ways.by_jax(build(answer.batch))
  )


def _attempt(name: str, batch: int, compile_way: Callable[[], ways.Way]) -> Row:
  """Returns whether a batch runs, and what it was said to take."""
  ways.release()
  row: Row = {"way": name, "batch": batch, "total_bytes": None}
  try:
    way = compile_way()
    row |= {"total_bytes": way.total_bytes, "compile_s": way.compile_s}
    ways.run_steps(way, _NUM_STEPS)
    return row | {"runs": True}
  except ways.FAILURES as error:
    return row | {"runs": False, "error": error_text(error)}


def _cells(row: Row) -> Sequence[object]:
  is_answer = row["way"] == "jaxmem" and row["batch"] == row["answer"]
  return [
    row["model"],
    row["way"],
    f"{row['batch']}{' (the answer)' if is_answer else ''}",
    megabytes(row["total_bytes"]),
    megabytes(row["limit_bytes"]),
    "yes" if row["runs"] else f"no: {row['error']}",
  ]


PART = Part(
  name="batch",
  question=(
    "Does the batch that `max_batch` answers for the memory jax may use really"
    " run, and does the next one really not?"
  ),
  cases=cases(
    ["gpt2_small", "resnet50"],
    120,
    rehearsed=["resnet50"],
    rehearsed_s=25,
    environment=_FRACTION,
  ),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
