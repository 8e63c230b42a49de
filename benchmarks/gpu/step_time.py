"""Step times: jax.jit, jaxmem, checkpoint policies, and byte limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import zoo
from benchmarks.gpu import models, ways
from benchmarks.gpu.case import Case, Context, Part, Row, error_text, number

_SHARES = (0.75, 0.5, 0.35)
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


def _cases(is_rehearsal: bool) -> Sequence[Case]:
  """Limits of all models first, then the policies of those with blocks."""
  found = [(name, "limits") for name in models.MODELS]
  found += [
    (name, "policies") for name, model in models.MODELS.items() if model.block
  ]
  if is_rehearsal:
    found = [("unet", "limits"), ("llama_stack", "policies")]
  return [
    Case(
      name=f"{name} {kind}",
      wave=0 if (name, kind) == found[0] else 1,
      default_s=25 if is_rehearsal else 180,
      settings={"model": name, "kind": kind},
    )
    for name, kind in found
  ]


def _run(context: Context) -> None:
  """Compiles all ways, then runs them in turns."""
  name = context.case.settings["model"]
  labels: Row = {
    "model": name,
    "batch": models.batch_of(name, is_rehearsal=context.is_rehearsal),
  }
  plain = ways.by_jax(_build(context))
  # The kernels are tuned by now: what a planned compile takes more than this
  # one is jaxmem's.
  xla_s = ways.by_jax(_build(context)).compile_s
  found = [plain]
  for way_name, compile_way in _others(context, plain):
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
  }


def _build(context: Context, policy: str | None = None) -> zoo.Step:
  name = context.case.settings["model"]
  return models.build(name, is_rehearsal=context.is_rehearsal, policy=policy)


def _others(
  context: Context, plain: ways.Way
) -> Iterator[tuple[str, Callable[[], ways.Way]]]:
  """Yields the names of the ways besides jax.jit, and how to compile them."""

  def planned(name: str, limit_bytes: int | None) -> Callable[[], ways.Way]:
    return lambda: ways.by_jaxmem(_build(context), name, limit_bytes)

  if context.case.settings["kind"] == "limits":
    yield "jaxmem", planned("jaxmem", None)
    for share in _SHARES:
      name = f"jaxmem, {share:.0%}"
      yield name, planned(name, plain.limit_at(share))
    return
  policies: Sequence[Any] = models.POLICIES
  for policy in policies[:1] if context.is_rehearsal else policies:
    yield (
      policy,
      lambda policy=policy: ways.by_jax(_build(context, policy), policy),
    )


def _cells(row: Row) -> Sequence[object] | None:
  labels = [f"{row['model']}, batch {row['batch']}", row["way"]]
  if "error" in row:
    return [*labels, row["error"], *[""] * 5]
  if row["stage"] != "timed":
    return None
  low, high = row["wall_ratio_interval"]
  return [
    *labels,
    number(row["temp_bytes"], 1e-6, 0),
    number(row["wall_s"], 1e3, 2),
    number(row["wall_ratio"], 1, 3),
    f"{low:.3f} to {high:.3f}",
    number(row["xla_compile_s"]),
    number(row["planning_s"]),
  ]


PART = Part(
  name="time",
  question=(
    "How long does a step take under `jax.jit`, `jaxmem.jit` without a limit"
    " and with 75, 50 and 35 % of the temporaries, and `jax.checkpoint`'s"
    " policies, and how long does planning take beside XLA's compile?"
  ),
  cases=_cases,
  run=_run,
  titles=_TITLES,
  cells=_cells,
)
