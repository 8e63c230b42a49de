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
    extra_s: Estimated seconds that the plan adds to the step; negative if it
      hides more of what is exchanged than XLA's own schedule does.
    exposed_s: Estimated seconds in which nothing runs but collectives.
    num_recomputed: Operations that run twice; those of loops or blocks that the
      step was changed to recompute are not counted.
    num_offloaded: Values that move to the host and back.
  """

  limit_bytes: int
  total_bytes: int | None
  extra_s: float = 0.0
  exposed_s: float = 0.0
  num_recomputed: int = 0
  num_offloaded: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frontier:
  """The cheapest plans found for a range of limits. Print it, or draw it.

  Attributes:
    name: The function's name.
    target: The device planned for.
    step_s: Estimated seconds of the step without any limit; of a step over
      several devices, by XLA's own schedule.
    exposed_s: Of that schedule, while nothing runs but collectives; None if it
      exchanges nothing.
    points: By falling limit.
  """

  name: str
  target: str
  step_s: float
  exposed_s: float | None
  points: tuple[Point, ...]

  def __str__(self) -> str:
    head = f"{self.name} on {self.target}: {1e3 * self.step_s:.2f} ms a step"
    columns = f"  {'limit':>10} {'total':>10} {'extra time':>10}"
    columns += f" {'run twice':>10} {'offloaded':>10}"
    lines = [f"{head} by estimate", columns]
    if self.exposed_s is not None:
      lines[0] += f" of XLA's own schedule, {1e3 * self.exposed_s:.2f} exposed"
      lines[1] += f" {'exposed':>10}"
    for point in self.points:
      limit = units.format_bytes(point.limit_bytes)
      if point.total_bytes is None:
        lines.append(f"  {limit:>10} {'no plan':>10}")
        continue
      total = units.format_bytes(point.total_bytes)
      extra = f"{100 * point.extra_s / self.step_s:+.1f} %"
      line = f"  {limit:>10} {total:>10} {extra:>10}"
      line += f" {point.num_recomputed:>10} {point.num_offloaded:>10}"
      if self.exposed_s is not None:
        line += f" {1e3 * point.exposed_s:>7.2f} ms"
      lines.append(line)
    return "\n".join(lines)

  def to_json(self) -> str:
    """Serializes the frontier."""
    return json.dumps(dataclasses.asdict(self))

  def _repr_html_(self) -> str:
    return (
      f"<style>{_STYLE}</style><div class=jaxmem-frontier>"
      f"<p><strong>{html.escape(self.name)} on {html.escape(self.target)}"
      f"</strong></p>{_drawing(self)}<pre>{html.escape(str(self))}</pre></div>"
    )

  def save_html(self, path: str | os.PathLike[str]) -> None:
    """Writes a page that draws extra time against bytes, and exposed time.

    It opens from disk in any browser and needs no network.
    """
    with open(path, "w", encoding="utf-8") as file:
      file.write(_page(self))


# Text has the colour of the page around it, which may be light or dark.
_STYLE = (
  ".jaxmem-frontier svg{width:100%;max-width:46rem;height:auto}"
  ".jaxmem-frontier text{font:12px system-ui,sans-serif;fill:currentColor}"
  ".jaxmem-frontier pre{overflow-x:auto}"
)
_WIDTH, _HEIGHT, _MARGIN = 720, 400, 60
_STROKES = {
  "extra": 'stroke="#2563eb" stroke-width=2',
  "exposed": 'stroke="#d97706" stroke-dasharray=4',
}


def _page(frontier: Frontier) -> str:
  name = html.escape(frontier.name)
  return (
    "<!doctype html>\n<html lang=en><meta charset=utf-8>\n"
    '<meta name=viewport content="width=device-width, initial-scale=1">\n'
    f"<title>{name}: memory against time</title>\n"
    "<meta name=color-scheme content='light dark'>\n"
    "<style>body{font:15px/1.5 system-ui,sans-serif;margin:1rem auto;"
    f"max-width:46rem;padding:0 1rem}}{_STYLE}</style>\n"
    f"<h1>{name} on {html.escape(frontier.target)}</h1>\n"
    f"<div class=jaxmem-frontier>{_drawing(frontier)}\n"
    f"<pre>{html.escape(str(frontier))}</pre></div>\n</html>\n"
  )


def _drawing(frontier: Frontier) -> str:
  """Extra and exposed time in percent against bytes, as SVG."""
  found = [(p, p.total_bytes) for p in frontier.points if p.total_bytes]
  if not found:
    return "<p>No limit can be met.</p>"
  named = {"extra": [p.extra_s / frontier.step_s for p, _ in found]}
  if frontier.exposed_s is not None:
    named["exposed"] = [p.exposed_s / frontier.step_s for p, _ in found]
  shares = [share for each in named.values() for share in each]
  least, most = min(0.0, *shares), max(0.01, *shares)
  most_bytes = max(total for _, total in found)

  def place(total: int, share: float) -> tuple[float, float]:
    x = _MARGIN + (_WIDTH - 2 * _MARGIN) * total / most_bytes
    high = (share - least) / (most - least)
    return round(x, 1), round(
      _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * high, 1
    )

  lines = ""
  for name, shares in named.items():
    places = [place(t, s) for (_, t), s in zip(found, shares, strict=True)]
    line = " ".join(f"{x},{y}" for x, y in places)
    lines += f'<polyline points="{line}" fill=none {_STROKES[name]} />'
  dots = "".join(
    _dot(p, *place(t, p.extra_s / frontier.step_s), frontier.step_s)
    for p, t in found
  )
  left, bottom = place(0, least)
  right, top = place(most_bytes, most)
  return (
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img'
    f' aria-label="{" and ".join(named)} time against bytes">'
    f'<path d="M{left} {top}V{bottom}H{right}" fill=none stroke="#999"/>'
    f"{lines}{dots}"
    f"<text x={left} y={top - 10}>{' and (dashed) '.join(named)} time,"
    f" {100 * least:.1f} to {100 * most:.1f} %</text>"
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
