"""Writes docs/results.md from the rows that the benchmarks printed.

python -m benchmarks.report
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app

from benchmarks import compile_cost_report, scaling_report
from benchmarks.page import DOCS, read_rows, table

_MB = 1e6

_HEADER = """\
# Results

Written by `python -m benchmarks.report` from the rows in `benchmarks/results/`;
each table names the command that makes its rows.
"""

_ORDER = """\
## Temporary bytes

`python -m benchmarks.order_benchmark --output=benchmarks/results/order.jsonl`

XLA's own temporaries against the plan's, both as `memory_analysis` reports
them after a compile (MB = 10^6 bytes), everything donated. The bound holds for
every order of the planned program; *proven* means that the search found an
order whose live bytes meet it within 0.01 %, in the model where empty argument
and output slots are free. *Model* is how far the assignment model was from
XLA, in bytes, for XLA's own order and for the plan.
"""

_NOTES = """\
What falls short, and why:

- ViT-B/16, batch 1, CPU: XLA's own plan is small here already; by the bound
  no order saves more than a third.
- H200, batch 1, convolutions: the gap to the bound is wide, because the bound
  lets temporaries fill empty argument slots like water, where XLA puts one at
  a time into each, at its start.
- LLaMA's LoRA step at batch 32 does not fit an H200: XLA recomputes after
  jaxmem's turn, so that neither prediction nor bound is of the program that
  would run. It is the one row where the model is off.
- U-Net, CPU: the best order found lies 6.8 % above the bound; more effort
  finds neither a better order nor a better bound.
- Planning: wall time, while other programs took part of both cores; see
  [below](#planning-time-by-size).
- Step times were measured on a shared machine; the interval says what a single
  ratio is worth.
"""

_PROVE = """\
## Proofs on request

`python -m benchmarks.order_benchmark --effort=prove
--output=benchmarks/results/prove.jsonl`, for rows that the default effort
left open when these were measured:
"""

_TIME = """\
## Step time

`python -m benchmarks.step_time_benchmark
--output=benchmarks/results/step_time.jsonl`

Steps under `jaxmem.jit`, the same with its [arena
kept](placement.md#keeping-the-arena-jaxmemruntimekept_arenakeep) from step to
step, and `jax.jit` by turns in one process, on two CPU cores: small versions of
the models at batch 4 (`--steps=60`), and all but LLaMA, whose steps do not fit
side by side in 24 GB, at full size (`--size=full --batch=1`, 9 to 17 rounds).
All of these were measured twice, as other programs had run beside some of them;
the second measurement counts. *ratio* is the median over rounds of a step's
time divided by that of jax.jit's step beside it, with its 95 % confidence
interval; *fast* is the ratio of the 20th percentiles, since disturbances only
ever add time; *surely slower* counts intervals above 1.
"""

_WAYS = {"jit": "`jaxmem.jit`", "kept": "arena kept"}


def _order_cells(row: dict[str, Any]) -> list[str]:
  before, after = row["xla_temp_bytes"], row["temp_bytes"]
  bound = row["lower_bound_bytes"]
  return [
    row["model"],
    str(row["batch"]),
    row["target"],
    f"{before / _MB:.1f}",
    f"{after / _MB:.1f}",
    f"{100 * (after / before - 1):+.1f} %",
    f"{bound / _MB:.1f}",
    f"{100 * (after / max(bound, 1) - 1):.1f} %",
    "yes" if row["is_order_proved"] else "no",
    row["status"],
    f"{row['baseline_model_error_bytes']} / {row['model_error_bytes']}",
    f"{row['planning_s']:.2f}",
  ]


def _order_section(rows: Sequence[dict[str, Any]]) -> str:
  failed = [row for row in rows if "error" in row]
  rows = [row for row in rows if "error" not in row]
  if not rows:
    return ""
  exact = [
    not row["baseline_model_error_bytes"] and not row["model_error_bytes"]
    for row in rows
  ]
  proved = [row["is_order_proved"] for row in rows]
  worse = [row["temp_bytes"] > row["xla_temp_bytes"] for row in rows]
  planning_s = [row["planning_s"] for row in rows]
  facts = (
    f"{len(rows)} rows; larger than XLA's: {sum(worse)}; order proven optimal:"
    f" {100 * np.mean(proved):.0f} %; model exact for both orders:"
    f" {100 * np.mean(exact):.0f} %; planning: median"
    f" {np.median(planning_s):.2f} s, worst {max(planning_s):.2f} s.\n"
  )
  for row in failed:
    facts += (
      f"\nXLA cannot compile {row['model']} batch {row['batch']} for"
      f" {row['target']} without the device: {row['error'][:80]}...\n"
    )
  titles = (
    "model",
    "batch",
    "target",
    "XLA MB",
    "plan MB",
    "change",
    "bound MB",
    "gap",
    "proven",
    "status",
    "model",
    "s",
  )
  return "\n".join(
    (_ORDER, facts, table(titles, (_order_cells(row) for row in rows)))
  )


def _prove_section(rows: Sequence[dict[str, Any]]) -> str:
  if not rows:
    return ""
  cells = [
    [
      row["model"],
      str(row["batch"]),
      row["target"],
      "yes" if row["is_order_proved"] else "no",
      f"{row['planning_s']:.1f}",
    ]
    for row in rows
  ]
  titles = ("model", "batch", "target", "proven", "s")
  return f"{_PROVE}\n{table(titles, cells)}"


def _time_cells(row: dict[str, Any]) -> list[str]:
  return [
    row["model"],
    f"{row['size']}, batch {row['batch']}",
    f"{row['xla_temp_bytes'] / _MB:.1f}",
    f"{row['temp_bytes'] / _MB:.1f}",
    f"{1e3 * row['xla_step_s']:.1f}",
    *_ratio_cells(row["jit"]),
    *_ratio_cells(row["kept"]),
    "yes" if row["is_bit_equal"] else "no",
  ]


def _ratio_cells(ratios: dict[str, Any]) -> list[str]:
  return [
    f"{ratios['median_of_ratios']:.3f}",
    "{:.3f} to {:.3f}".format(*ratios["median_of_ratios_interval"]),
    f"{ratios['ratio_of_fast']:.3f}",
  ]


def _summary_cells(
  size: str, way: str, rows: Sequence[dict[str, Any]]
) -> list[str]:
  ratios = [row[way]["median_of_ratios"] for row in rows]
  fast = [row[way]["ratio_of_fast"] for row in rows]
  intervals = [row[way]["median_of_ratios_interval"] for row in rows]
  columns = (np.median(ratios), _geometric_mean(ratios), max(ratios))
  columns += (np.median(fast), _geometric_mean(fast), max(fast))
  return [
    f"{size}, {len(rows)} models",
    _WAYS[way],
    *(f"{ratio:.3f}" for ratio in columns),
    str(sum(low > 1 for low, _ in intervals)),
  ]


def _geometric_mean(ratios: Sequence[float]) -> float:
  return float(np.exp(np.mean(np.log(ratios))))


def _time_section(rows: Sequence[dict[str, Any]]) -> str:
  if not rows:
    return ""
  summary = [
    _summary_cells(size, way, [row for row in rows if row["size"] == size])
    for size in dict.fromkeys(row["size"] for row in rows)
    for way in _WAYS
  ]
  facts = ("median", "geometric mean", "largest")
  summary_titles = (
    "size",
    "",
    *facts,
    *(f"fast: {fact}" for fact in facts),
    "surely slower",
  )
  ratio = ("ratio", "interval", "fast")
  titles = (
    "model",
    "size",
    "XLA MB",
    "plan MB",
    "XLA ms",
    *ratio,
    *(f"kept: {title}" for title in ratio),
    "bit-equal",
  )
  cells = (_time_cells(row) for row in rows)
  return "\n".join(
    (_TIME, table(summary_titles, summary), table(titles, cells))
  )


def main(argv: list[str]) -> None:
  """Writes the page."""
  del argv
  scaling = read_rows("scaling.jsonl")
  sections = [
    _HEADER,
    _order_section(read_rows("order.jsonl")),
    _NOTES,
    _prove_section(read_rows("prove.jsonl")),
    scaling_report.section(scaling),
    compile_cost_report.section(read_rows("compile_cost.jsonl")),
    _time_section(read_rows("step_time.jsonl")),
  ]
  text = "\n".join(s for s in sections if s)
  (DOCS / "results.md").write_text(text, encoding="utf-8")
  plot = scaling_report.plot(scaling)
  (DOCS / scaling_report.PLOT).write_text(plot, encoding="utf-8")
  plot = scaling_report.edits_plot(scaling)
  (DOCS / scaling_report.EDITS_PLOT).write_text(plot, encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
