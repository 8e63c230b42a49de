"""Writes the tables and plots of docs/allocators.md from the benchmark's rows.

python -m benchmarks.memcost_report
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from absl import app

from benchmarks import page, svg_plot
from jaxmem.experimental.allocators import memcost

_NOTE = "mxnet in-place + sharing"
# Column of the table -> strategy.
_COLUMNS = {
  "in-place": "mxnet in-place",
  "sharing": "mxnet sharing",
  "both": _NOTE,
  "ancestors": f"{_NOTE}, ancestors",
  "paths": f"{_NOTE}, paths",
  "coloring": "mxnet coloring, in-place",
  "NNC": "nnc, in-place",
  "auto-growth": "paddle auto-growth, in-place",
  "PyTorch": "pytorch caching",
  "jaxmem": "jaxmem placement, in-place",
}
_PLOTTED = {
  "MXNet in-place": "mxnet in-place",
  "MXNet both": _NOTE,
  "NNC": "nnc, in-place",
  "auto-growth": "paddle auto-growth, in-place",
  "PyTorch": "pytorch caching",
  "jaxmem": "jaxmem placement, in-place",
}
_PASSES = {"training": "whole", "forward": "forward"}
_BATCH = 32


def share(row: page.Row, strategy: str) -> float | None:
  """What a strategy holds, of what is held without any sharing.

  Returns:
    The share; None if the device's memory does not suffice.
  """
  reserved = row["reserved_bytes"]
  if reserved[strategy] is None:
    return None
  return reserved[strategy] / reserved[memcost.BASELINE]


def _percent(part: float | None) -> str:
  return "-" if part is None else f"{100 * part:.0f}%"


def cost_table(rows: Sequence[page.Row]) -> str:
  """All strategies, a line per model and pass."""
  cells = [
    (
      f"{row['model']}, {row['batch']}",
      row["granularity"],
      _PASSES[row["which"]],
      f"{row['reserved_bytes'][memcost.BASELINE] / 1e9:.2f}",
      *(_percent(share(row, name)) for name in _COLUMNS.values()),
    )
    for row in rows
  ]
  titles = ("model, batch", "operators", "pass", "none, GB", *_COLUMNS)
  return page.table(titles, cells)


def half_table(rows: Sequence[page.Row]) -> str:
  """The note's claim: what is left of the memory, over all models."""
  cells = []
  groups = dict.fromkeys(
    (r["granularity"], r["which"], r["batch"]) for r in rows
  )
  for granularity, which, batch in sorted(groups):
    here = [
      row
      for row in rows
      if (row["granularity"], row["which"], row["batch"])
      == (granularity, which, batch)
    ]
    left = _shares(here, _NOTE)
    cells.append(
      (
        f"{granularity}, {_PASSES[which]}, batch {batch}",
        len(here),
        *(_percent(x) for x in _spread(left)),
        sum(x < 0.5 for x in left),
        *(
          _percent(statistics.median(_shares(here, name)))
          for name in (
            "mxnet in-place",
            f"{_NOTE}, ancestors",
            "jaxmem placement, in-place",
          )
        ),
      )
    )
  titles = (
    "operators, pass",
    "models",
    "least left",
    "median",
    "most",
    "below half",
    "in-place alone",
    "ancestors",
    "jaxmem",
  )
  return page.table(titles, cells)


def time_table(rows: Sequence[page.Row]) -> str:
  """What a table costs where each equation is an operator, both passes."""
  seconds: dict[str, float] = {}
  operators: dict[str, int] = {}
  for row in rows:
    if (row["granularity"], row["batch"]) == ("fine", _BATCH):
      model = row["model"]
      seconds[model] = seconds.get(model, 0) + row["cpu_s"]
      operators[model] = max(operators.get(model, 0), row["num_nodes"])
  return page.table(
    ("model", "operators", "CPU s"),
    (
      (model, f"{operators[model]:,}", f"{seconds[model]:.1f}")
      for model in sorted(seconds, key=operators.__getitem__)
    ),
  )


def _shares(rows: Sequence[page.Row], strategy: str) -> list[float]:
  """The shares of a strategy, of the rows that the device suffices for."""
  return [x for x in (share(row, strategy) for row in rows) if x is not None]


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
  return min(values), statistics.median(values), max(values)


def plot(rows: Sequence[page.Row], which: str, title: str) -> str:
  """The models at the larger batch, with an operator for each layer."""
  here = [
    row
    for row in rows
    if (row["granularity"], row["which"], row["batch"])
    == ("coarse", which, _BATCH)
  ]
  marks = [svg_plot.Mark(50, "half")] if which == "training" else []
  return svg_plot.bars(
    title,
    [row["model"] for row in here],
    [
      (name, [100 * (share(row, strategy) or 0) for row in here])
      for name, strategy in _PLOTTED.items()
    ],
    marks=marks,
  )


def main(argv: list[str]) -> None:
  """Writes the page's tables, and the plots beside it."""
  del argv
  rows = sorted(
    page.read_rows("memcost.jsonl"),
    key=lambda r: (r["granularity"], -r["batch"], r["model"], r["which"] < "g"),
  )
  page.fill(
    "allocators.md",
    {
      "half": half_table(rows),
      "memcost": cost_table(rows),
      "time": time_table(rows),
    },
    {
      "memcost-training.svg": plot(
        rows, "training", "Memory left of a whole step, of that without sharing"
      ),
      "memcost-forward.svg": plot(
        rows, "forward", "Forward only: memory left, of that without sharing"
      ),
    },
  )


if __name__ == "__main__":
  app.run(main)
