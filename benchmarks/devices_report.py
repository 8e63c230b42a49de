"""Fills docs/devices.md from the rows of the benchmark.

python -m benchmarks.devices_report
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from absl import app

from benchmarks import page

_TITLES = (
  "",
  "temporaries MB",
  "of XLA's without hiding",
  "step ms",
  "communication ms",
  "exposed ms",
  "asynchronous",
  "synchronous",
  "planning s",
  "XLA's compile s",
)


def main(argv: list[str]) -> None:
  """Fills the page."""
  del argv
  rows = page.read_rows("devices.jsonl")
  page.fill("devices.md", {"devices": text_of(rows)}, {})


def text_of(rows: Sequence[page.Row]) -> str:
  """Returns a table for each step and number of hosts.

  Args:
    rows: Of the benchmark; of each step all, XLA's without hiding first.
  """
  parts: list[str] = []
  for group in _groups(rows):
    first = group[0]
    hosts = first["hosts"]
    on = f"{hosts} hosts of 8" if hosts > 1 else "8"
    parts.append(f"**{first['step']}**, on {on} H200s\n")
    parts.append(page.table(_TITLES, (_cells(row, first) for row in group)))
  return "\n".join(parts)


def _groups(rows: Sequence[page.Row]) -> Iterator[list[page.Row]]:
  """The last rows of each step, in the order in which steps were measured."""
  found: dict[tuple[str, int], list[page.Row]] = {}
  for row in rows:
    key = row["step"], row["hosts"]
    if row["way"] == "XLA, nothing hidden":
      found[key] = []
    found[key].append(row)
  yield from found.values()


def _cells(row: page.Row, first: page.Row) -> list[str]:
  if "error" in row:
    words = f"{row['error']}: {row['smallest_bytes'] / 1e6:.0f}"
    if "lower_bound_bytes" in row:
      words += f", none below {row['lower_bound_bytes'] / 1e6:.0f}"
    return [row["way"], words, *[""] * 8]
  cells = [
    row["way"],
    f"{row['temp_bytes'] / 1e6:.0f}",
    f"{row['temp_bytes'] / first['temp_bytes']:.3f}",
  ]
  if "step_s" in row:
    cells += [
      f"{1e3 * row[name]:.2f}"
      for name in ("step_s", "collective_s", "exposed_s")
    ]
    cells += [str(row["num_asynchronous"]), str(row["num_synchronous"])]
  else:
    cells += [""] * 5
  for name in ("planning_s", "compile_s"):
    cells.append(f"{row[name]:.1f}" if name in row else "")
  return cells


if __name__ == "__main__":
  app.run(main)
