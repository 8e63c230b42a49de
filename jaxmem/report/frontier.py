"""Bytes against estimated time: what each byte limit would cost."""

from __future__ import annotations

import dataclasses
import html
import json
import os

from jaxmem import units


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
  """One limit.

  Attributes:
    limit_bytes: Most bytes of the whole program.
    total_bytes: Predicted bytes of the plan; None if no plan was found.
    extra_s: Estimated seconds that the plan adds to the step.
    num_recomputed: Operations that run twice.
    num_offloaded: Values that move to the host and back.
  """

  limit_bytes: int
  total_bytes: int | None
  extra_s: float = 0.0
  num_recomputed: int = 0
  num_offloaded: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frontier:
  """The cheapest plans found for a range of limits. Print it, or draw it.

  Attributes:
    name: The function's name.
    target: The device planned for.
    step_s: Estimated seconds of the step without any limit.
    points: By falling limit.
  """

  name: str
  target: str
  step_s: float
  points: tuple[Point, ...]

  def __str__(self) -> str:
    lines = [
      f"{self.name} on {self.target}: {1e3 * self.step_s:.2f} ms a step by"
      " estimate",
      f"  {'limit':>10} {'total':>10} {'extra time':>10} {'run twice':>10}"
      f" {'offloaded':>10}",
    ]
    for point in self.points:
      limit = units.format_bytes(point.limit_bytes)
      if point.total_bytes is None:
        lines.append(f"  {limit:>10} {'no plan':>10}")
        continue
      total = units.format_bytes(point.total_bytes)
      extra = f"{100 * point.extra_s / self.step_s:+.1f} %"
      lines.append(
        f"  {limit:>10} {total:>10} {extra:>10} {point.num_recomputed:>10}"
        f" {point.num_offloaded:>10}"
      )
    return "\n".join(lines)

  def to_json(self) -> str:
    """Serializes the frontier."""
    return json.dumps(dataclasses.asdict(self))

  def save_html(self, path: str | os.PathLike[str]) -> None:
    """Writes a page that draws extra time against bytes.

    It opens from disk in any browser and needs no network.
    """
    with open(path, "w", encoding="utf-8") as file:
      file.write(_page(self))


_WIDTH, _HEIGHT, _MARGIN = 720, 400, 60


def _page(frontier: Frontier) -> str:
  name = html.escape(frontier.name)
  return (
    "<!doctype html>\n<html lang=en><meta charset=utf-8>\n"
    '<meta name=viewport content="width=device-width, initial-scale=1">\n'
    f"<title>{name}: memory against time</title>\n"
    "<style>body{font:15px/1.5 system-ui,sans-serif;margin:1rem auto;"
    "max-width:46rem;padding:0 1rem}svg{width:100%;height:auto}"
    "text{font-size:12px;fill:#444}pre{overflow-x:auto}</style>\n"
    f"<h1>{name} on {html.escape(frontier.target)}</h1>\n"
    f"{_drawing(frontier)}\n<pre>{html.escape(str(frontier))}</pre>\n</html>\n"
  )


def _drawing(frontier: Frontier) -> str:
  """Extra time in percent against bytes, as SVG."""
  found = [(p, p.total_bytes) for p in frontier.points if p.total_bytes]
  if not found:
    return "<p>No limit can be met.</p>"
  most_bytes = max(total for _, total in found)
  most = max(0.01, *(p.extra_s / frontier.step_s for p, _ in found))

  def place(total: int, extra: float) -> tuple[float, float]:
    x = _MARGIN + (_WIDTH - 2 * _MARGIN) * total / most_bytes
    y = _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * extra / most
    return round(x, 1), round(y, 1)

  places = [(p, place(t, p.extra_s / frontier.step_s)) for p, t in found]
  line = " ".join(f"{x},{y}" for _, (x, y) in places)
  dots = "".join(_dot(p, x, y, frontier.step_s) for p, (x, y) in places)
  left, bottom = place(0, 0.0)
  right, top = place(most_bytes, most)
  return (
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img'
    ' aria-label="extra time against bytes">'
    f'<path d="M{left} {top}V{bottom}H{right}" fill=none stroke="#999"/>'
    f'<polyline points="{line}" fill=none stroke="#2563eb" stroke-width=2 />'
    f"{dots}"
    f"<text x={left} y={top - 10}>extra time, up to {100 * most:.1f} %</text>"
    f"<text x={right} y={bottom + 24} text-anchor=end>whole program, up to"
    f" {units.format_bytes(most_bytes)}</text></svg>"
  )


def _dot(point: Point, x: float, y: float, step_s: float) -> str:
  said = (
    f"{units.format_bytes(point.total_bytes or 0)}:"
    f" {100 * point.extra_s / step_s:+.1f} %, {point.num_recomputed} run twice"
  )
  return (
    f'<circle cx={x} cy={y} r=4 fill="#2563eb"><title>{said}</title></circle>'
  )
