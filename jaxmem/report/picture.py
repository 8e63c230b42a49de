"""A still picture of two layouts, for where no script may run: notebooks.

Address against schedule step, XLA's own plan beside jaxmem's on one scale. The
buffers that take most room are drawn one by one, what all of them take together
behind them; so the picture has the same size for any plan.
"""

from __future__ import annotations

import heapq
import html
import itertools
from collections.abc import Sequence

import numpy as np

from jaxmem import units
from jaxmem.report.layout import Layout, PlannedBuffer, live_bytes

_WIDTH, _HEIGHT, _GAP, _TOP = 440, 260, 20, 22
_MAX_DRAWN = 200
_MAX_POINTS = 160
# Buffers with so many of the drawn ones larger than them have no title.
_MAX_TITLED = 40
_MAX_CHARACTERS = 80


def layouts_svg(before: Layout, after: Layout) -> str:
  """Returns the two layouts' temporaries as an SVG element.

  Its text has the colour of the text around it; it is of no fixed width.

  Args:
    before: XLA's own plan.
    after: jaxmem's.
  """
  top_bytes = max(before.temp_bytes, after.temp_bytes, 1)
  parts = [
    _panel(title, layout, top_bytes, place * (_WIDTH + _GAP))
    for place, (title, layout) in enumerate(
      (("XLA", before), ("jaxmem", after))
    )
  ]
  width, height = 2 * _WIDTH + _GAP, _TOP + _HEIGHT + 1
  return (
    f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img"'
    ' aria-label="Temporary memory by address and step, before and after"'
    ' xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"'
    ' font-size="12">'
    f"{''.join(parts)}</svg>"
  )


def _panel(title: str, layout: Layout, top_bytes: int, left: int) -> str:
  temps = [b for b in layout.buffers if b.allocation == "temp"]
  drawn = heapq.nlargest(
    _MAX_DRAWN, temps, key=lambda b: b.size_bytes * (b.end - b.start)
  )
  size = units.format_bytes(layout.temp_bytes)
  # Units of the picture for a step, and for a byte.
  shape = _WIDTH / max(1, layout.num_steps), _HEIGHT / top_bytes
  peak = (layout.peak_step + 0.5) * shape[0]
  return (
    f'<g transform="translate({left} {_TOP})">'
    f'<text y="-8" fill="currentColor">{title}: {size}</text>'
    f'<path d="{_outline(temps, layout.num_steps, shape)}" fill="#8884"/>'
    '<g fill="#4c8fd0" fill-opacity=".7" stroke="#fff8" stroke-width=".5">'
    f"{''.join(_box(b, shape, n) for n, b in enumerate(drawn))}</g>"
    f'<path d="M{peak:.1f} 0V{_HEIGHT}" stroke="#d97706"'
    ' stroke-dasharray="3"/>'
    f'<path d="M0 {_HEIGHT - layout.temp_bytes * shape[1]:.1f}H{_WIDTH}"'
    ' stroke="currentColor" stroke-dasharray="2"/>'
    f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="currentColor"/>'
    "</g>"
  )


def _outline(
  temps: Sequence[PlannedBuffer], num_steps: int, shape: tuple[float, float]
) -> str:
  """Returns the live bytes over the steps as a path, in few points."""
  live = live_bytes(temps, num_steps)
  count = max(1, min(_MAX_POINTS, num_steps))
  edges = np.linspace(0, num_steps, count + 1).astype(int)
  points = []
  for low, high in itertools.pairwise(edges):
    most = int(live[low : max(high, low + 1)].max(initial=0))
    points.append(
      f"V{_HEIGHT - most * shape[1]:.1f}H{int(high) * shape[0]:.1f}"
    )
  return f"M0 {_HEIGHT}{''.join(points)}V{_HEIGHT}Z"


def _box(buffer: PlannedBuffer, shape: tuple[float, float], number: int) -> str:
  width = (buffer.end - buffer.start) * shape[0]
  height = buffer.size_bytes * shape[1]
  top = _HEIGHT - (buffer.offset_bytes + buffer.size_bytes) * shape[1]
  place = (
    f'x="{buffer.start * shape[0]:.1f}" y="{top:.1f}" width="{width:.1f}"'
    f' height="{height:.1f}"'
  )
  if number >= _MAX_TITLED:
    return f"<rect {place}/>"
  said = f"{units.format_bytes(buffer.size_bytes)} {buffer.name}"
  said = html.escape(f"{said} {buffer.source}"[:_MAX_CHARACTERS].strip())
  return f"<rect {place}><title>{said}</title></rect>"
