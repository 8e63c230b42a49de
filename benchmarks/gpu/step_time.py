"""Step times: jax.jit, jaxmem, checkpoint policies, and byte limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks import policies, zoo
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

_SHARES = (0.75, 0.5, 0.35)
_POLICIES = [f"{name} policies" for name in models.MODELS]
# What hand-written policies cost stands beside what limits do.
_CASES = [
  f"{name} {kind}" for name in models.MODELS for kind in ("limits", "policies")
]
Build = Callable[..., zoo.Step]
# What a way is called, and how to compile it.
Other = tuple[str, Callable[[], ways.Way]]
_TITLES = (
  "step",
  "way",
  "temporaries MB",
  "step ms",
  "of jax.jit's",
  "interval",
  "XLA's compile s",
  "planning s",
)


def _run(context: Context) -> None:
  """Compiles all ways, then runs them in turns."""
  name, kind = context.case.name.split()
  labels: Row = {
    "model": name,
    "batch": models.batch_of(name, is_rehearsal=context.is_rehearsal),
  }

  def build(policy: str | None = None) -> zoo.Step:
    return models.build(name, is_rehearsal=context.is_rehearsal, policy=policy)

  plain = ways.by_jax(build())
  # The kernels are tuned by now: what a planned compile takes more than this
  # one is jaxmem's.
  xla_s = ways.by_jax(build()).compile_s
  found = [plain]
  others = _limits(build, plain) if kind == "limits" else _policies(build)
  for way_name, compile_way in others:
    try:
      way = compile_way()
    except ways.FAILURES as error:
      context.emit(
        {**labels, "way": way_name, "stage": "compiled"}
        | {"error": error_text(error)}
      )
      continue
    context.emit(
      {**labels, "stage": "compiled", **way.row(), **_compile(way, xla_s)}
    )
    allowed_bytes = ways.allowed_bytes()
    if allowed_bytes is None or way.total_bytes <= allowed_bytes:
      found.append(way)
    else:
      why = f"not run: {way.total_bytes} bytes, allowed are {allowed_bytes}"
      context.emit({**labels, "way": way_name, "stage": "timed", "error": why})
  rows = ways.take_turns(found, is_rehearsal=context.is_rehearsal)
  for way, times in zip(found, rows, strict=True):
    context.emit(
      {**labels, "stage": "timed", **way.row(), **_compile(way, xla_s), **times}
    )


def _compile(way: ways.Way, xla_s: float) -> Row:
  """Returns which seconds of a compile are XLA's, and which jaxmem's.

  Args:
    way: What was compiled.
    xla_s: Seconds of a compile under `jax.jit`, its kernels tuned before.
  """
  is_planned = way.name.startswith("jaxmem")
  return {
    "xla_compile_s": round(xla_s if is_planned else way.compile_s, 3),
    # Planning, and compiles up to the schedule while versions are compared.
    "planning_s": round(way.compile_s - xla_s, 3) if is_planned else 0.0,
    "is_remembered": way.is_remembered,
  }


def _limits(build: Build, plain: ways.Way) -> Iterator[Other]:
  """Yields jaxmem, and jaxmem with shares of jax.jit's temporaries."""

  def planned(name: str, limit_bytes: int | None) -> Other:
    return name, lambda: ways.by_jaxmem(build(), name, limit_bytes)

  yield planned("jaxmem", None)
  for share in _SHARES:
    yield planned(f"jaxmem, {share:.0%}", plain.limit_at(share))


def _policies(build: Build) -> Iterator[Other]:
  """Yields `jax.checkpoint` around the blocks, with each policy."""
  for policy in policies.POLICIES:
    yield policy, lambda policy=policy: ways.by_jax(build(policy), policy)


def _cells(row: Row) -> Sequence[object] | None:
  labels = [f"{row['model']}, batch {row['batch']}", row["way"]]
  if "error" in row:
    return [*labels, row["error"], *[""] * 5]
  if row["stage"] != "timed":
    return None
  low, high = row["wall_ratio_interval"]
  return [
    *labels,
    megabytes(row["temp_bytes"]),
    number(row["wall_s"], 1e3, 2),
    number(row["wall_ratio"], 1, 3),
    f"{low:.3f} to {high:.3f}",
    number(row["xla_compile_s"]),
    number(row["planning_s"]) + " (remembered)" * row["is_remembered"],
  ]


PART = Part(
  name="time",
  question=(
    "How long does a step take under `jax.jit`, `jaxmem.jit` without a limit"
    " and with 75, 50 and 35 % of the temporaries, and `jax.checkpoint`'s"
    " policies, and how long does planning take beside XLA's compile?"
  ),
  cases=cases(
    _CASES,
    180,
    # Planning takes most of a rehearsal's time: one model under limits will do.
    rehearsed=["unet limits", *_POLICIES],
    rehearsed_s=25,
    waves=(0, 0, 1),
  ),
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
