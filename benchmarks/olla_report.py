"""Writes the tables and plots of docs/olla.md from the benchmarks' rows.

python -m benchmarks.olla_report
"""

import json
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import app

_ROOT = pathlib.Path(__file__).parent.parent
_DOCS = _ROOT / "docs"
_MB = 1e6
# Of a plot, in pixels.
_BAR, _GAP, _HEIGHT, _MARGIN, _LABELS = 9, 12, 220, 44, 70
_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")

_Row = dict[str, Any]


def _rows(name: str) -> list[_Row]:
  path = _ROOT / "benchmarks" / "results" / name
  lines = path.read_text(encoding="utf-8").splitlines()
  return [json.loads(line) for line in lines]


def _percent(value: float, digits: int = 1) -> str:
  return f"{100 * value:.{digits}f}"


def order_saving(row: _Row) -> float:
  return 1 - row["peak_bytes"] / row["program_peak_bytes"]


def both_saving(row: _Row) -> float:
  return 1 - row["height_bytes"] / row["program_reserved_bytes"]


def planned_fragmentation(row: _Row) -> float:
  return 1 - row["peak_bytes"] / row["height_bytes"]


def _table(titles: Sequence[str], cells: Iterable[Sequence[object]]) -> str:
  lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
  lines += ["| " + " | ".join(map(str, row)) + " |" for row in cells]
  return "\n".join(lines) + "\n"


def summary_table(rows: Sequence[_Row]) -> str:
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
  return _table(titles, cells)


def must_hold_table(rows: Sequence[_Row]) -> str:
  """What is claimed of graphs of some thousand nodes."""
  large = [r for r in rows if "summary" not in r and r["num_nodes"] >= 1500]
  gaps = [r["peak_bytes"] / r["lower_bound_bytes"] - 1 for r in large]
  lost = [planned_fragmentation(r) for r in large]
  nodes = [r["num_nodes"] for r in large]
  median = _median([r["order_s"] for r in large])
  address = _median([r["address_s"] for r in large])
  return _table(
    (f"{len(large)} graphs of {min(nodes)} to {max(nodes)} nodes", ""),
    [
      ("order within 1 % of the bound", f"{sum(g <= 0.01 for g in gaps)}"),
      ("largest distance, %", _percent(max(gaps), 2)),
      ("order, median s", f"{median:.2f}"),
      ("addresses, median s", f"{address:.2f}"),
      ("fragmentation, median %", _percent(_median(lost), 3)),
      ("without any", f"{sum(x == 0 for x in lost)}"),
      (
        "below 0.1 %, where the authors' script stops",
        sum(x < 1e-3 for x in lost),
      ),
      ("below 1 %", f"{sum(x < 0.01 for x in lost)}"),
      ("largest, %", _percent(max(lost), 2)),
    ],
  )


def _median(values: Sequence[float]) -> float:
  ordered = sorted(values)
  middle = len(ordered) // 2
  return (ordered[middle] + ordered[~middle]) / 2


def model_table(rows: Sequence[_Row], variant: str) -> str:
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
  return _table(titles, cells)


def time_table(rows: Sequence[_Row]) -> str:
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
  return _table(titles, cells)


_METHODS = ("search", "probing", "done", "boolean", "interval")


def exact_table(rows: Sequence[_Row]) -> str:
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
  return _table(("graphs", "contracted", "", *_METHODS), cells)


def exact_only_table(rows: Sequence[_Row]) -> str:
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
  return _table(("graph", "contracted", "gap %", *_METHODS[1:]), cells)


def _verdict(answer: _Row | None, search: _Row) -> str:
  if answer is None:
    return ""
  better = search["peak_bytes"] - answer["peak_bytes"]
  words = ["proven" if answer["is_proven"] else "open"]
  if better > 0:
    words.append(f"{better} B less")
  if "deterministic" in answer:
    words.append(f"{answer['deterministic']:.2f}")
  return ", ".join([*words, f"{answer['cpu_s']:.2f} s"])


def bars(
  title: str,
  labels: Sequence[str],
  series: Sequence[tuple[str, Sequence[float]]],
) -> str:
  """Draws groups of bars, in per cent, as SVG."""
  most = max(10.0, *(v for _, values in series for v in values))
  group = _BAR * len(series) + _GAP
  width = _MARGIN + group * len(labels) + _GAP
  scale = _HEIGHT / most
  base = _HEIGHT + 40
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"'
    f' height="{base + _LABELS}" font-family="sans-serif" font-size="10">',
    '<rect width="100%" height="100%" fill="white"/>',
    f'<text x="{_MARGIN}" y="14" font-size="12">{title}</text>',
  ]
  for number, (name, _) in enumerate(series):
    x = _MARGIN + 110 * number
    parts.append(
      f'<rect x="{x}" y="20" width="8" height="8" fill="{_COLORS[number]}"/>'
      f'<text x="{x + 12}" y="28">{name}</text>'
    )
  for tick in range(0, int(most) + 1, 10):
    y = base - tick * scale
    parts.append(
      f'<line x1="{_MARGIN}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"'
      f' stroke="#ddd"/><text x="{_MARGIN - 6}" y="{y + 3:.1f}"'
      f' text-anchor="end">{tick} %</text>'
    )
  for index, label in enumerate(labels):
    left = _MARGIN + _GAP / 2 + group * index
    for number, (_, values) in enumerate(series):
      height = max(values[index], 0) * scale
      parts.append(
        f'<rect x="{left + _BAR * number:.1f}" y="{base - height:.1f}"'
        f' width="{_BAR - 1}" height="{height:.1f}" fill="{_COLORS[number]}"/>'
      )
    x = left + _BAR * len(series) / 2
    parts.append(
      f'<text x="{x:.1f}" y="{base + 10}" text-anchor="end"'
      f' transform="rotate(-45 {x:.1f} {base + 10})">{label}</text>'
    )
  return "\n".join([*parts, "</svg>", ""])


def _plot(
  rows: Sequence[_Row],
  title: str,
  values: Sequence[tuple[str, str, int, Callable[[_Row], float]]],
) -> str:
  models = list(dict.fromkeys(r["model"] for r in rows if "model" in r))
  found = {(r["set"], r["model"], r["batch"]): r for r in rows if "model" in r}
  series = [
    (name, [100 * value(found[variant, m, batch]) for m in models])
    for name, variant, batch, value in values
  ]
  return bars(title, models, series)


def pool_table(rows: Sequence[_Row]) -> str:
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
  return _table(titles, cells)


def main(argv: list[str]) -> None:
  """Writes the page's tables, and the plots beside it."""
  del argv
  rows, exact = _rows("olla.jsonl"), _rows("exact.jsonl")
  tables = {
    "summary": summary_table(rows),
    "must hold": must_hold_table(rows),
    "authors": model_table(rows, "authors"),
    "published": model_table(rows, "published"),
    "time": time_table(rows),
    "exact": exact_table(exact),
    "exact only": exact_only_table(exact),
    "pools": pool_table(_rows("pools.jsonl")),
  }
  page = _DOCS / "olla.md"
  text = page.read_text(encoding="utf-8")
  for name, table in tables.items():
    pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end -->)"
    text, count = re.subn(
      pattern, lambda m, t=table: m[1] + t + m[2], text, flags=re.DOTALL
    )
    if count != 1:
      raise ValueError(f"docs/olla.md must have one place for {name!r}.")
  page.write_text(text, encoding="utf-8")
  plots = {
    "olla-order.svg": _plot(
      rows,
      "Peak saved by order (figure 7)",
      [
        ("batch 1", "authors", 1, order_saving),
        ("batch 32", "authors", 32, order_saving),
      ],
    ),
    "olla-fragmentation.svg": _plot(
      rows,
      "Fragmentation (figure 8)",
      [
        ("caching, 1", "authors", 1, lambda r: r["program_fragmentation"]),
        ("caching, 32", "authors", 32, lambda r: r["program_fragmentation"]),
        ("planned, 1", "authors", 1, planned_fragmentation),
        ("planned, 32", "authors", 32, planned_fragmentation),
      ],
    ),
    "olla-both.svg": _plot(
      rows,
      "Memory saved by order and addresses (figure 13)",
      [
        ("batch 1", "authors", 1, both_saving),
        ("batch 32", "authors", 32, both_saving),
      ],
    ),
  }
  for name, plot in plots.items():
    (_DOCS / name).write_text(plot, encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
