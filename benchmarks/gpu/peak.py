"""Bytes the allocator saw in use against bytes that were predicted."""

from __future__ import annotations

import time
from collections.abc import Sequence

import jaxmem
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

_NUM_STEPS = 3
_SHARE = 0.75
_TITLES = (
  "step",
  "way",
  "predicted MB",
  "XLA MB",
  "peak in use MB",
  "peak / predicted",
  "step ms",
  "estimated ms",
)


def _run(context: Context) -> None:
  """Runs the way of the fewest bytes first: a process's peak only grows.

  All are compiled before any runs, for autotuning takes memory as well; what
  that took is the floor below which no peak shows.
  """
  name = context.case.name

  def build() -> zoo.Step:
    return models.build(name, is_rehearsal=context.is_rehearsal)

  plain = ways.by_jax(build())
  limits = {"jaxmem": None, f"jaxmem, {_SHARE:.0%}": plain.limit_at(_SHARE)}
  found: list[tuple[ways.Way, Row]] = []
  for way_name, limit_bytes in limits.items():
    try:
      way, plan = _planned(build(), way_name, limit_bytes)
    except ways.FAILURES as error:
      context.emit({"model": name, "way": way_name, "error": error_text(error)})
      continue
    found.append((way, _predicted(plan, plan.predicted_temp_bytes)))
    if limit_bytes is None:
      found.append((plain, _predicted(plan, plan.baseline_predicted_bytes)))
  for way, predicted in sorted(found, key=lambda f: f[0].total_bytes):
    context.emit({"model": name, **predicted, **_measured(way)})


def _planned(
  step: zoo.Step, name: str, limit_bytes: int | None
) -> tuple[ways.Way, jaxmem.Plan]:
  """Returns a planned step, ready to run, and its plan."""
  plan = jaxmem.plan(
    step.function, *step.args, memory_limit=limit_bytes, **step.jit_kwargs
  )
  return ways.by_jaxmem(step, name, limit_bytes), plan


def _predicted(plan: jaxmem.Plan, temp_bytes: int) -> Row:
  """Returns what was said before anything ran.

  Args:
    plan: The plan.
    temp_bytes: Temporaries by jaxmem's model of XLA's assignment.
  """
  fixed_bytes = plan.total_bytes - plan.temp_bytes
  budget = plan.budget
  return {
    "predicted_bytes": fixed_bytes + temp_bytes,
    "planning_s": round(plan.planning_s, 3),
    # Only plans under a limit estimate the time of their schedule.
    "estimated_s": budget and budget.schedule_s,
    "estimated_written_s": budget and budget.written_s,
  }


def _measured(way: ways.Way) -> Row:
  """Runs a few steps, and returns what the allocator counted."""
  ways.release()
  args = zoo.concrete(way.step)
  floor_bytes = ways.statistics().get("peak_bytes_in_use")
  args = ways.run_steps(way, _NUM_STEPS, args)
  peak_bytes = ways.statistics().get("peak_bytes_in_use")
  start_s = time.perf_counter()
  ways.run_steps(way, _NUM_STEPS, args)
  is_peak = None
  if floor_bytes is not None and peak_bytes is not None:
    # Otherwise the run took at most what was taken before it.
    is_peak = peak_bytes > floor_bytes
  return {
    **way.row(),
    "step_s": (time.perf_counter() - start_s) / _NUM_STEPS,
    "floor_bytes": floor_bytes,
    "peak_bytes": peak_bytes,
    "is_peak_of_run": is_peak,
    **ways.reasons(is_peak is None, ways.NO_STATISTICS),
  }


def _cells(row: Row) -> Sequence[object]:
  if "error" in row:
    return [row["model"], row["way"], row["error"], *[""] * 5]
  peak, predicted = row["peak_bytes"], row["predicted_bytes"]
  at_most = "at most " if row["is_peak_of_run"] is False else ""
  return [
    row["model"],
    row["way"],
    megabytes(predicted),
    megabytes(row["total_bytes"]),
    at_most + megabytes(peak),
    at_most + number(peak, 1 / predicted, 4),
    number(row["step_s"], 1e3),
    number(row["estimated_s"], 1e3),
  ]


PART = Part(
  name="peak",
  question=(
    "Is the allocator's `peak_bytes_in_use` what was predicted, and what XLA's"
    " `memory_analysis` says?"
  ),
  cases=cases(list(models.MODELS), 120, rehearsed=["unet"], rehearsed_s=20),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
