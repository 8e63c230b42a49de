"""Writes the tables and plots of docs/olla.md from the benchmarks' rows.

python -m benchmarks.olla_report
"""

import statistics
from collections.abc import Callable, Sequence

from absl import app

from benchmarks import page, svg_plot

_MB = 1e6


def _percent(value: float, digits: int = 1) -> str:
  return f"{100 * value:.{digits}f}"


def order_saving(row: page.Row) -> float:
  return 1 - row["peak_bytes"] / row["program_peak_bytes"]


def both_saving(row: page.Row) -> float:
  return 1 - row["height_bytes"] / row["program_reserved_bytes"]


def planned_fragmentation(row: page.Row) -> float:
  return 1 - row["peak_bytes"] / row["height_bytes"]


def summary_table(rows: Sequence[page.Row]) -> str:
  """The paper's averages beside ours."""
  found = {(r["set"], r["batch"]): r for r in rows if "summary" in r}
  paper = {
    ("order_saving", 1): "22.5",
    ("order_saving", 32): "10.1",
    ("caching_fragmentation", 1): "7.9",
    ("caching_fragmentation", 32): "26.1",
    ("both_saving", 1): "30.4",
    ("both_saving", 32): "36.1",
  }
  names = {
    "order_saving": "order saves, % (fig. 7)",
    "caching_fragmentation": "caching allocator fragments, % (fig. 8)",
    "both_saving": "order and addresses save, % (fig. 13)",
  }
  cells = [
    [
      name,
      batch,
      paper[key, batch],
      _percent(found["authors", batch][key]),
      _percent(found["published", batch][key]),
    ]
    for key, name in names.items()
    for batch in (1, 32)
  ]
  more = {
    "median_order_s": "order, median s (fig. 9)",
    "max_order_s": "order, worst s (fig. 9, 10)",
    "median_address_s": "addresses, median s (fig. 11)",
    "max_address_s": "addresses, worst s (fig. 11, 12)",
  }
  said = {"max_order_s": "5.2; EfficientNet 120 and 300"}
  cells += [
    [
      name,
      batch,
      said.get(key, ""),
      f"{found['authors', batch][key]:.2f}",
      f"{found['published', batch][key]:.2f}",
    ]
    for key, name in more.items()
    for batch in (1, 32)
  ]
  titles = ("average of eleven", "batch", "paper", "authors", "published")
  return page.table(titles, cells)


def must_hold_table(rows: Sequence[page.Row]) -> str:
  """What is claimed of graphs of some thousand nodes."""
  large = [r for r in rows if "summary" not in r and r["num_nodes"] >= 1500]
  gaps = [r["peak_bytes"] / r["lower_bound_bytes"] - 1 for r in large]
  lost = [planned_fragmentation(r) for r in large]
  nodes = [r["num_nodes"] for r in large]
  median = statistics.median([r["order_s"] for r in large])
  address = statistics.median([r["address_s"] for r in large])
  return page.table(
    (f"{len(large)} graphs of {min(nodes)} to {max(nodes)} nodes", ""),
    [
      ("order within 1 % of the bound", f"{sum(g <= 0.01 for g in gaps)}"),
      ("largest distance, %", _percent(max(gaps), 2)),
      ("order, median s", f"{median:.2f}"),
      ("addresses, median s", f"{address:.2f}"),
      ("fragmentation, median %", _percent(statistics.median(lost), 3)),
      ("without any", f"{sum(x == 0 for x in lost)}"),
      (
        "below 0.1 %, where the authors' script stops",
        sum(x < 1e-3 for x in lost),
      ),
      ("below 1 %", f"{sum(x < 0.01 for x in lost)}"),
      ("largest, %", _percent(max(lost), 2)),
    ],
  )


def model_table(rows: Sequence[page.Row], variant: str) -> str:
  """A row for each model and batch size."""
  titles = (
    "model",
    "batch",
    "nodes",
    "weights MB",
    "program MB",
    "order MB",
    "saved %",
    "gap %",
    "s",
    "PyTorch MB",
    "fragments %",
    "arena MB",
    "fragments %",
    "s",
    "both %",
  )
  cells = [
    (
      r["model"],
      r["batch"],
      r["num_nodes"],
      f"{r['weight_bytes'] / _MB:.1f}",
      f"{r['program_peak_bytes'] / _MB:.1f}",
      f"{r['peak_bytes'] / _MB:.1f}",
      _percent(order_saving(r)),
      _percent(r["peak_bytes"] / r["lower_bound_bytes"] - 1, 2),
      f"{r['order_s']:.1f}",
      f"{r['program_reserved_bytes'] / _MB:.1f}",
      _percent(r["program_fragmentation"]),
      f"{r['height_bytes'] / _MB:.1f}",
      _percent(planned_fragmentation(r), 2),
      f"{r['address_s']:.1f}",
      _percent(both_saving(r)),
    )
    for r in rows
    if "summary" not in r and r["set"] == variant
  ]
  return page.table(titles, cells)


def time_table(rows: Sequence[page.Row]) -> str:
  """Figure 14: what an allocator costs at run time."""
  cells = []
  for r in rows:
    if "summary" in r or r["set"] != "authors" or r["batch"] != 32:
      continue
    calls = r["program_num_calls"]
    saved = r["program_caching_s"] - r["program_arena_s"]
    cells.append(
      (
        r["model"],
        calls,
        f"{1e6 * r['program_caching_s'] / calls:.2f}",
        f"{1e6 * r['program_arena_s'] / calls:.2f}",
        f"{(r['order_s'] + r['address_s']) / saved:,.0f}",
      )
    )
  titles = ("model", "calls", "caching us", "planned us", "steps to earn plan")
  return page.table(titles, cells)


_METHODS = ("search", "probing", "done", "boolean", "interval")


def exact_table(rows: Sequence[page.Row]) -> str:
  """How many graphs each method proves, by size."""
  cells = []
  for source in dict.fromkeys(r["source"] for r in rows):
    here = [r for r in rows if r["source"] == source]
    for low, high in ((0, 30), (30, 60), (60, 100), (100, 200), (200, 10**9)):
      within = [r for r in here if low <= r["num_contracted"] < high]
      if not within:
        continue
      size = f"{low} to {high - 1}" if high < 10**9 else f"from {low}"
      row = [source, size, len(within)]
      for method in _METHODS:
        tried = [r[method] for r in within if method in r]
        proven = sum(t["is_proven"] for t in tried)
        seconds = sum(t["cpu_s"] for t in tried)
        row.append(f"{proven}/{len(tried)}, {seconds:.1f} s" if tried else "")
      cells.append(row)
  return page.table(("graphs", "contracted", "", *_METHODS), cells)


def exact_only_table(rows: Sequence[page.Row]) -> str:
  """The graphs of which the search alone did not prove its order optimal."""
  cells = []
  for r in rows:
    if r["search"]["is_proven"]:
      continue
    search = r["search"]
    name = f"{r['source']} {r['model']} {r['depth']}"
    gap = search["peak_bytes"] / search["lower_bound_bytes"] - 1
    row = [name, r["num_contracted"], _percent(gap, 2)]
    for method in _METHODS[1:]:
      row.append(_verdict(r.get(method), search))
    cells.append(row)
  return page.table(("graph", "contracted", "gap %", *_METHODS[1:]), cells)


def _verdict(answer: page.Row | None, search: page.Row) -> str:
  if answer is None:
    return ""
  better = search["peak_bytes"] - answer["peak_bytes"]
  words = ["proven" if answer["is_proven"] else "open"]
  if better > 0:
    words.append(f"{better} B less")
  if "deterministic" in answer:
    words.append(f"{answer['deterministic']:.2f}")
  return ", ".join([*words, f"{answer['cpu_s']:.2f} s"])


def plot(
  rows: Sequence[page.Row],
  title: str,
  values: Sequence[tuple[str, str, int, Callable[[page.Row], float]]],
) -> str:
  """Groups of bars, in per cent, a group per model.

  Args:
    rows: Of all models, with a row for each set and batch that is asked for.
    title: Above the plot.
    values: Per series its name, set and batch, and the fraction to draw.
  """
  models = list(dict.fromkeys(r["model"] for r in rows if "model" in r))
  found = {(r["set"], r["model"], r["batch"]): r for r in rows if "model" in r}
  series = [
    (name, [100 * value(found[variant, m, batch]) for m in models])
    for name, variant, batch, value in values
  ]
  return svg_plot.bars(title, models, series)


def pool_table(rows: Sequence[page.Row]) -> str:
  """What stays outside of a pool, greedily and with CP-SAT."""
  titles = [
    "buffers of",
    "number",
    "pool, % of live",
    "greedy leaves, %",
    "CP-SAT leaves, %",
    "bound, %",
    "less, %",
    "s",
  ]
  cells = [
    [
      f"{r['model']} {r['depth']}",
      r["num_buffers"],
      _percent(r["part"], 0),
      _percent(r["greedy_bytes"] / r["total_bytes"]),
      _percent(r["outside_bytes"] / r["total_bytes"]),
      _percent(r["bound_bytes"] / r["total_bytes"]),
      _percent(1 - r["outside_bytes"] / max(r["greedy_bytes"], 1)),
      f"{r['cpu_s']:.1f}",
    ]
    for r in rows
  ]
  return page.table(titles, cells)


def main(argv: list[str]) -> None:
  """Writes the page's tables, and the plots beside it."""
  del argv
  rows, exact = page.read_rows("olla.jsonl"), page.read_rows("exact.jsonl")
  tables = {
    "summary": summary_table(rows),
    "must hold": must_hold_table(rows),
    "authors": model_table(rows, "authors"),
    "published": model_table(rows, "published"),
    "time": time_table(rows),
    "exact": exact_table(exact),
    "exact only": exact_only_table(exact),
    "pools": pool_table(page.read_rows("pools.jsonl")),
  }
  plots = {
    "olla-order.svg": plot(
      rows,
      "Peak saved by order (figure 7)",
      [
        ("batch 1", "authors", 1, order_saving),
        ("batch 32", "authors", 32, order_saving),
      ],
    ),
    "olla-fragmentation.svg": plot(
      rows,
      "Fragmentation (figure 8)",
      [
        ("caching, 1", "authors", 1, lambda r: r["program_fragmentation"]),
        ("caching, 32", "authors", 32, lambda r: r["program_fragmentation"]),
        ("planned, 1", "authors", 1, planned_fragmentation),
        ("planned, 32", "authors", 32, planned_fragmentation),
      ],
    ),
    "olla-both.svg": plot(
      rows,
      "Memory saved by order and addresses (figure 13)",
      [
        ("batch 1", "authors", 1, both_saving),
        ("batch 32", "authors", 32, both_saving),
      ],
    ),
  }
  page.fill("olla.md", tables, plots)


if __name__ == "__main__":
  app.run(main)
