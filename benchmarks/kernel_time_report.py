"""Writes "Kernels on a CPU" in docs/budget.md from the benchmark's rows.

python -m benchmarks.kernel_time_report
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence

from absl import app

from benchmarks import page
from jaxmem import cost

_KINDS = {
  "products": "products and convolutions",
  "small products": "small ones",
  "looped": "convolutions in plain loops",
  "strided": "read across rows",
  "transcendental": "transcendental functions",
  "other": "others",
}
_DEVICE = cost.device_for("cpu")
_TITLES = ("kernels", "steps", "run", "measured s", "estimated s", "ratio")


def main(argv: list[str]) -> None:
  """Fills the page."""
  del argv
  rows = page.read_rows("kernel_time.jsonl")
  page.fill("budget.md", {"kernels": text_of(rows)}, {})


def text_of(rows: Sequence[page.Row]) -> str:
  """Returns a table by kind, and how far estimates of whole steps are off.

  Args:
    rows: Of the benchmark, one for each step.
  """
  groups = {
    "zoo": [r for r in rows if not r["held_out"]],
    "held out": [r for r in rows if r["held_out"]],
  }
  cells = [
    _cells(title, name, [r["kinds"][kind] for r in own if kind in r["kinds"]])
    for kind, title in _KINDS.items()
    for name, own in groups.items()
  ]
  parts = [page.table(_TITLES, filter(None, cells))]
  for name, own in groups.items():
    if own:
      parts.append(_off(name, own))
  return "\n".join(parts)


def _cells(
  title: str, name: str, kinds: Sequence[page.Row]
) -> list[object] | None:
  if not kinds:
    return None
  run, measured, estimated = (
    sum(kind[key] for kind in kinds)
    for key in ("kernels", "measured_s", "estimated_s")
  )
  ratio = f"{estimated / measured:.2f}"
  return [title, name, round(run), f"{measured:.2f}", f"{estimated:.2f}", ratio]


def _off(name: str, rows: Sequence[page.Row]) -> str:
  """Returns sentences: how far estimates of whole steps are off."""
  ratios = {r["step"]: r["estimated_s"] / r["measured_s"] for r in rows}
  least, most = (f(ratios, key=ratios.__getitem__) for f in (min, max))
  text = (
    f"Steps, {name}: {statistics.median(ratios.values()):.2f} by the median of"
    f" {len(ratios)}, from {ratios[least]:.2f} (`{least}`) to"
    f" {ratios[most]:.2f} (`{most}`)."
  )
  mapped = [r for r in rows if _DEVICE.mapping_s(r["temp_bytes"])]
  if mapped:
    rates = [1e9 * r["mapping_s"] / r["temp_bytes"] for r in mapped]
    text += (
      " Mapping temporaries anew takes"
      f" {statistics.median(rates):.2f} ns a byte by the median of"
      f" {len(mapped)}, from {min(rates):.2f} to {max(rates):.2f}."
    )
  return textwrap.fill(text, 85) + "\n"


if __name__ == "__main__":
  app.run(main)
