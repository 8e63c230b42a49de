"""Writes the tables and plots of docs/memgraph.md from the benchmark's rows.

python -m benchmarks.turnip_report
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from absl import app

from benchmarks import page, svg_plot

_NOISES = ("none", "mild", "stalls")
_OTHERS = ("fixed", "streaming")
_SCHEDULES = ("event", *_OTHERS)
# A column per other schedule and noise, for `_gains`.
_GAIN_TITLES = tuple(
  f"{other}: {noise}" if noise == _NOISES[0] else noise
  for other in _OTHERS
  for noise in _NOISES
)
# The paper's figure 14: how much faster than a fixed order, per cent, by
# server and step.
_PAPER_GAINS = {
  ("a100x8", "prefill"): 4.02,
  ("p100x4", "prefill"): 6.45,
  ("a100x8", "lora"): 13.4,
  ("p100x4", "lora"): 14.5,
}
# Section 8: seconds of a training step, by model, batch and length. Those of
# 7B are the A100 server's; for 65B the text names none.
_PAPER_SECONDS = {
  ("7b", 8, 1024): (5.6, ("a100x8",)),
  ("65b", 8, 1024): (58.5, ("a100x8", "p100x4")),
}
_GB, _MB = 1e9, 1e6


def simulated_table(rows: Sequence[page.Row]) -> str:
  """A line per simulated case."""
  cells = []
  for row in rows:
    head = (
      row["server"],
      f"{row['step']} {row['model'].upper()}",
      f"{row['batch']} x {row['length']}",
      row["memory"],
      f"{row['capacity_bytes'] / _GB:.1f}",
    )
    if "error" in row:
      cells.append((*head, row["error"]))
      continue
    cells.append(
      (
        *head,
        row["precision"],
        row["num_vertices"],
        _moved(row),
        f"{row['event_s.none']:.2f}",
        *_gains([row]),
      )
    )
  titles = (
    "server",
    "step",
    "batch x length",
    "memory",
    "GB",
    "products",
    "vertices",
    "GB off / on",
    "event s",
    *_GAIN_TITLES,
  )
  return page.table(titles, cells)


def gains_table(rows: Sequence[page.Row]) -> str:
  """The paper's average gains over the fixed order beside ours."""
  cells = []
  for (server, step), paper in _PAPER_GAINS.items():
    for memory in ("device", "40 %"):
      here = [r for r in _paired(rows, memory) if _kind(r) == (server, step)]
      cells.append(
        (
          f"{server}, {step}",
          memory,
          len(here),
          f"{paper:.1f}",
          *_gains(here),
        )
      )
  titles = (
    "server, step",
    "memory",
    "cases",
    "paper, fixed",
    *_GAIN_TITLES,
  )
  return page.table(titles, cells)


def seconds_table(rows: Sequence[page.Row]) -> str:
  """The seconds that the paper's text gives beside ours."""
  cells = []
  for row in rows:
    key = (row["model"], row["batch"], row["length"])
    seconds, servers = _PAPER_SECONDS.get(key, (0.0, ()))
    if (
      row["step"] == "lora" and row["server"] in servers and "error" not in row
    ):
      cells.append(
        (
          f"{row['model'].upper()}, {row['batch']} x {row['length']}",
          seconds,
          row["server"],
          row["memory"],
          row["precision"],
          f"{row['event_s.mild']:.2f}",
          f"{row['fixed_s.mild']:.2f}",
          f"{row['streaming_s.mild']:.2f}",
        )
      )
  titles = (
    "LoRA step",
    "paper s",
    "server",
    "memory",
    "products",
    "event s",
    "fixed s",
    "streaming s",
  )
  return page.table(titles, cells)


def run_table(rows: Sequence[page.Row]) -> str:
  """A line per step that ran on a machine."""
  cells = [
    (
      row["step"],
      *(
        f"{row[f'{name}_bytes'] / _MB:.1f}"
        for name in ("needed", "limit", "peak")
      ),
      row["num_vertices"],
      *(f"{1e3 * row[f'{name}_s']:.1f}" for name in ("plain", *_SCHEDULES)),
      f"{100 * row['gain_over_fixed']:.1f} %",
      "{:.1f} to {:.1f} %".format(
        *(100 * gain for gain in row["gain_over_fixed_interval"])
      ),
      f"{100 * row['fast_gain_over_fixed']:.1f} %",
      "yes" if row["is_bit_equal"] else "last bits differ",
    )
    for row in rows
  ]
  titles = (
    "step",
    "needs MB",
    "limit MB",
    "peak MB",
    "vertices",
    "plain",
    *_SCHEDULES,
    "gain over fixed",
    "95 % interval",
    "of the fast runs",
    "bit-equal to plain",
  )
  return page.table(titles, cells)


def sweep_table(rows: Sequence[page.Row]) -> str:
  """One step in less and less memory."""
  cells = [
    (
      f"{row['percent']} %",
      f"{row['capacity_bytes'] / _GB:.1f}",
      row["error"],
    )
    if "error" in row
    else (
      f"{row['percent']} %",
      f"{row['capacity_bytes'] / _GB:.1f}",
      _moved(row),
      *(f"{row[f'{name}_s.mild']:.2f}" for name in _SCHEDULES),
      *(f"{row[f'{name}_s.stalls']:.2f}" for name in _SCHEDULES),
    )
    for row in rows
  ]
  titles = (
    "memory",
    "GB",
    "GB off / on",
    "mild: event s",
    "fixed",
    "streaming",
    "stalls: event s",
    "fixed",
    "streaming",
  )
  return page.table(titles, cells)


def other_facts(rows: Sequence[page.Row]) -> str:
  """What the runtime adds, and a large graph."""
  found = {row["mode"]: row for row in rows}
  added, large = found["overhead"], found["scale"]
  return (
    f"- Overhead of the runtime: {added['overhead_us']:.0f} microseconds per"
    " vertex (best of five\n  runs of a chain of 2,000; median"
    f" {added['overhead_median_us']:.0f}), kernel time not counted.\n"
    f"- {large['num_vertices']:,} vertices on four devices: built in"
    f" {large['build_s']:.1f} s, proven in {large['check_s']:.1f} s,\n"
    f"  simulated in {large['simulate_s']:.1f} s of CPU time.\n"
  )


def gains_plot(rows: Sequence[page.Row], other: str) -> str:
  """Gains in short memory, by case; the paper's averages as marks."""
  least: dict[tuple[object, ...], page.Row] = {}
  for row in (*_paired(rows, "device"), *_paired(rows, "40 %")):
    least[(*_kind(row), row["model"], row["batch"], row["length"])] = row
  here = sorted(least.values(), key=_kind)
  kinds = [_kind(row) for row in here]
  marks = [
    svg_plot.Mark(
      paper,
      f"paper {paper:.1f} %",
      (kinds.index(kind), len(kinds) - kinds[::-1].index(kind)),
    )
    for kind, paper in _PAPER_GAINS.items()
    if other == "fixed" and kind in kinds
  ]
  what = {"fixed": "a fixed order", "streaming": "layer streaming"}[other]
  return svg_plot.bars(
    f"Event-driven: time gained over {what}, in the least memory",
    [
      f"{r['server'][:4]} {r['step']} {r['model'].upper()}"
      f" {r['batch']}x{r['length']}"
      for r in here
    ],
    [(noise, [_gain(r, other, noise) for r in here]) for noise in _NOISES],
    marks=marks,
  )


def sweep_plot(rows: Sequence[page.Row], noise: str) -> str:
  """Seconds over memory."""
  fits = sorted(
    (row for row in rows if "error" not in row), key=lambda r: r["percent"]
  )
  return svg_plot.lines(
    f"LoRA 7B, 8 x 1024, on four P100 (simulated; {noise})",
    "memory, % of what is needed if nothing leaves",
    [
      (name, [(r["percent"], r[f"{name}_s.{noise}"]) for r in fits])
      for name in _SCHEDULES
    ],
  )


def run_plot(rows: Sequence[page.Row]) -> str:
  """Milliseconds on this machine."""
  return svg_plot.bars(
    "Two CPU cores, 40 % of the memory: medians",
    [row["step"] for row in rows],
    [
      (name, [1e3 * row[f"{name}_s"] for row in rows])
      for name in ("plain", *_SCHEDULES)
    ],
    unit="ms",
  )


def _gain(row: page.Row, other: str, noise: str) -> float:
  """How much faster the event-driven run is than another, in per cent."""
  return 100 * row[f"gain_over_{other}.{noise}"]


def _gains(rows: Sequence[page.Row]) -> list[str]:
  """The average gains over the other schedules, as in `_GAIN_TITLES`."""
  return [
    f"{statistics.fmean(_gain(row, other, noise) for row in rows):.1f}"
    for other in _OTHERS
    for noise in _NOISES
  ]


def _moved(row: page.Row) -> str:
  """The GB that leave the device and come back."""
  return f"{row['offload_bytes'] / _GB:.1f} / {row['reload_bytes'] / _GB:.1f}"


def _kind(row: page.Row) -> tuple[str, str]:
  return row["server"], row["step"]


def _paired(rows: Sequence[page.Row], memory: str) -> list[page.Row]:
  """The cases that count in averages: each once, at its usual precision."""
  return [
    row
    for row in rows
    if row["memory"] == memory
    and "error" not in row
    and row["precision"] in ("bf16", "tf32")
  ]


def main(argv: list[str]) -> None:
  """Writes the page's tables, and the plots beside it."""
  del argv
  rows = page.read_rows("turnip.jsonl")
  simulated = [row for row in rows if row["mode"] == "simulate"]
  swept = [row for row in rows if row["mode"] == "sweep"]
  ran = [row for row in rows if row["mode"] == "run"]
  page.fill(
    "memgraph.md",
    {
      "simulated": simulated_table(simulated),
      "gains": gains_table(simulated),
      "seconds": seconds_table(simulated),
      "sweep": sweep_table(swept),
      "run": run_table(ran),
      "facts": other_facts(rows),
    },
    {
      "memgraph-fixed.svg": gains_plot(simulated, "fixed"),
      "memgraph-streaming.svg": gains_plot(simulated, "streaming"),
      "memgraph-sweep.svg": sweep_plot(swept, "stalls"),
      "memgraph-run.svg": run_plot(ran),
    },
  )


if __name__ == "__main__":
  app.run(main)
