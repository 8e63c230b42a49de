"""Plots as SVG text: groups of bars, lines, and areas.

Written by hand, so that reports need no plotting package and the files change
only where the figures do. Readable on light and dark pages: the background and
the text follow the reader's color scheme, and the colors of the series suit
both.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from html import escape

# Paul Tol's "bright" palette, made for the color blind.
_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_STYLE = """\
<style>
.page { fill: #ffffff } .ink { fill: #222222 }
.grid { stroke: #dddddd } .axis { stroke: #777777 }
.mark { stroke: #222222; stroke-width: 1.5; stroke-dasharray: 4 2 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .ink { fill: #dddddd }
.grid { stroke: #30363d } .axis { stroke: #999999 }
.mark { stroke: #eeeeee }
}
</style>"""
# In pixels. A letter of 10 px is taken to be 6 px wide.
_BAR, _GAP, _LETTER = 9, 12, 6
_HEIGHT, _LEFT, _TOP, _RIGHT = 220, 56, 44, 24
_LINES_WIDTH = 420
_AREAS_WIDTH = 640
_NUM_TICKS = 6

Series = tuple[str, Sequence[float]]
Line = tuple[str, Sequence[tuple[float, float]]]


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
  """A dashed level to compare bars with.

  Attributes:
    value: Where it lies, in the unit of the bars.
    label: What is written above its left end.
    groups: The groups of bars that it spans, half-open; all if None.
  """

  value: float
  label: str
  groups: tuple[int, int] | None = None


def bars(
  title: str,
  labels: Sequence[str],
  series: Sequence[Series],
  *,
  unit: str = "%",
  marks: Sequence[Mark] = (),
) -> str:
  """Returns groups of bars side by side.

  Args:
    title: Above the plot.
    labels: One per group.
    series: Names and values; each has a value per group, NaN for no bar.
    unit: What is written behind the numbers of the axis.
    marks: Levels to compare with.

  Raises:
    ValueError: If a series has not one value per label, or if there are more
      series than colors.
  """
  _check_colors(len(series))
  for name, values in series:
    if len(values) != len(labels):
      raise ValueError(
        f"{name!r} must have {len(labels)} values, got {len(values)}."
      )
  group = _BAR * len(series) + _GAP
  # Bars begin at zero.
  heights = [0.0, *(v for _, values in series for v in values)]
  axis = _Axis.around(heights + [mark.value for mark in marks], unit)
  right = _LEFT + group * len(labels) + _GAP / 2
  parts = list(_grid(axis, right))
  for index, label in enumerate(labels):
    left = _LEFT + _GAP / 2 + group * index
    for number, (_, values) in enumerate(series):
      if not math.isnan(values[index]):
        x = left + _BAR * number
        parts.append(_bar(axis, x, values[index], _COLORS[number]))
    x = left + _BAR * len(series) / 2
    parts.append(_slanted(x, _TOP + _HEIGHT + 12, label))
  for mark in marks:
    first, last = mark.groups or (0, len(labels))
    low, high = (_LEFT + group * g for g in (first, last))
    y = axis.y(mark.value)
    parts.append(_line(low + 2, high - 2, y, y, "mark"))
    parts.append(_text(low + 3, y - 3, mark.label))
  longest = max((len(label) for label in labels), default=0)
  return _page(
    title,
    [name for name, _ in series],
    right,
    # The labels hang at 45 degrees.
    _TOP + _HEIGHT + 20 + longest * _LETTER * 0.71,
    parts,
  )


def lines(
  title: str,
  x_title: str,
  series: Sequence[Line],
  *,
  unit: str = "s",
  is_logarithmic: bool = False,
) -> str:
  """Returns lines through points.

  Args:
    title: Above the plot.
    x_title: Below the horizontal axis.
    series: Names and points (x, y), with x ascending.
    unit: What is written behind the numbers of the vertical axis.
    is_logarithmic: Whether both axes are; all numbers are positive then.

  Raises:
    ValueError: If there are more series than colors, or no points.
  """
  _check_colors(len(series))
  points = [point for _, line in series for point in line]
  if not points:
    raise ValueError("series must have points, got none.")
  made = _LogarithmicAxis if is_logarithmic else _Axis
  axis = made.around([y for _, y in points], unit)
  scale = math.log if is_logarithmic else float
  low, high = (scale(f(x for x, _ in points)) for f in (min, max))
  right = _LEFT + _LINES_WIDTH
  bottom = _TOP + _HEIGHT

  def place(x: float) -> float:
    share = (scale(x) - low) / ((high - low) or 1)
    return _LEFT + 10 + share * (_LINES_WIDTH - 20)

  parts = list(_grid(axis, right))
  marked = sorted({x for x, _ in points})
  if is_logarithmic:
    powers = _powers_of_ten(marked[0], marked[-1])
    marked = [x for x in powers if marked[0] <= x <= marked[-1]]
  for x in marked:
    parts.append(_line(place(x), place(x), bottom, bottom + 4, "axis"))
    parts.append(_text(place(x), bottom + 15, f"{x:g}", "middle"))
  middle = (_LEFT + right) / 2
  parts.append(_text(middle, bottom + 32, x_title, "middle"))
  for number, (_, line) in enumerate(series):
    places = " ".join(f"{place(x):.1f},{axis.y(y):.1f}" for x, y in line)
    parts.append(
      f'<polyline points="{places}" fill="none" stroke="{_COLORS[number]}"'
      ' stroke-width="2"/>'
    )
    parts += [
      f'<circle cx="{place(x):.1f}" cy="{axis.y(y):.1f}" r="3"'
      f' fill="{_COLORS[number]}"/>'
      for x, y in line
    ]
  return _page(title, [name for name, _ in series], right, bottom + 40, parts)


def areas(
  title: str,
  x_title: str,
  series: Sequence[Series],
  *,
  unit: str,
) -> str:
  """Returns what several series rise and fall to, one before the other.

  All have the same width, however many values they are: of those that fall on
  one pixel the largest is drawn.

  Args:
    title: Above the plot.
    x_title: Below the horizontal axis.
    series: Names and values from the left to the right, the largest first.
    unit: What is written behind the numbers of the vertical axis.

  Raises:
    ValueError: If there are more series than colors, or one has no values.
  """
  _check_colors(len(series))
  if not all(len(values) for _, values in series):
    raise ValueError("every series must have values, got none.")
  axis = _Axis.around([0.0, *(max(v) for _, v in series)], unit)
  right, bottom = _LEFT + _AREAS_WIDTH, _TOP + _HEIGHT
  parts = list(_grid(axis, right))
  for number, (_, values) in enumerate(series):
    width = _AREAS_WIDTH / min(len(values), _AREAS_WIDTH)
    path = [f"M{_LEFT} {bottom}"]
    for column, top in enumerate(_columns(values)):
      path.append(f"V{axis.y(top):.1f}H{_LEFT + width * (column + 1):.1f}")
    parts.append(
      f'<path d="{"".join(path)}V{bottom}Z" fill="{_COLORS[number]}"'
      f' fill-opacity="0.6" stroke="{_COLORS[number]}"/>'
    )
  parts.append(_text((_LEFT + right) / 2, bottom + 18, x_title, "middle"))
  return _page(title, [name for name, _ in series], right, bottom + 28, parts)


def _columns(values: Sequence[float]) -> list[float]:
  """Returns the largest values of as many columns as there are pixels."""
  count = min(len(values), _AREAS_WIDTH)
  edges = [column * len(values) // count for column in range(count + 1)]
  return [max(values[a:b]) for a, b in itertools.pairwise(edges)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Axis:
  """The vertical axis: from `low` to `high`, both multiples of `step`."""

  low: float
  high: float
  step: float
  unit: str

  @classmethod
  def around(cls, values: Sequence[float], unit: str) -> _Axis:
    known = [v for v in values if not math.isnan(v)] or [0.0]
    least, most = min(known), max(known)
    step = _nice_step((most - least or 1.0) / _NUM_TICKS)
    low, high = math.floor(least / step), math.ceil(most / step)
    return cls(low * step, max(high, low + 1) * step, step, unit)

  @property
  def ticks(self) -> list[float]:
    count = round((self.high - self.low) / self.step)
    return [self.low + i * self.step for i in range(count + 1)]

  def y(self, value: float) -> float:
    share = (value - self.low) / (self.high - self.low)
    return _TOP + _HEIGHT * (1 - share)


@dataclasses.dataclass(frozen=True, slots=True)
class _LogarithmicAxis(_Axis):
  """The same from one power of ten to another."""

  @classmethod
  def around(cls, values: Sequence[float], unit: str) -> _LogarithmicAxis:
    powers = _powers_of_ten(min(values), max(values))
    return cls(powers[0], max(powers[-1], 10 * powers[0]), 0.0, unit)

  @property
  def ticks(self) -> list[float]:
    return _powers_of_ten(self.low, self.high)

  def y(self, value: float) -> float:
    share = math.log(value / self.low) / math.log(self.high / self.low)
    return _TOP + _HEIGHT * (1 - share)


def _powers_of_ten(low: float, high: float) -> list[float]:
  """Returns the fewest that have two positive numbers between them."""
  first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
  return [10.0**exponent for exponent in range(first, last + 1)]


def _check_colors(num_series: int) -> None:
  if num_series > len(_COLORS):
    raise ValueError(
      f"series must be at most {len(_COLORS)}, got {num_series}."
    )


def _nice_step(least: float) -> float:
  """Returns 1, 2 or 5 times a power of ten, at least this much."""
  power = 10.0 ** math.floor(math.log10(least))
  # Against rounding: 5.000000001 of a power is 5 of it.
  factor = next(f for f in (1, 2, 5, 10) if f * power >= least * (1 - 1e-9))
  return factor * power


def _grid(axis: _Axis, right: float) -> Iterator[str]:
  for tick in axis.ticks:
    name = "axis" if abs(tick) < axis.step / 2 else "grid"
    yield _line(_LEFT, right, axis.y(tick), axis.y(tick), name)
    label = f"{round(tick, 10):g} {axis.unit}".strip()
    yield _text(_LEFT - 6, axis.y(tick) + 3, label, "end")


def _bar(axis: _Axis, x: float, value: float, color: str) -> str:
  top, bottom = sorted((axis.y(value), axis.y(0.0)))
  return (
    f'<rect x="{x:.1f}" y="{top:.1f}" width="{_BAR - 1}"'
    f' height="{bottom - top:.1f}" fill="{color}"/>'
  )


def _line(x1: float, x2: float, y1: float, y2: float, name: str) -> str:
  return (
    f'<line class="{name}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}"'
    f' y2="{y2:.1f}"/>'
  )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
  return (
    f'<text class="ink" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
    f"{escape(text)}</text>"
  )


def _slanted(x: float, y: float, text: str) -> str:
  return (
    f'<text class="ink" x="{x:.1f}" y="{y:.1f}" text-anchor="end"'
    f' transform="rotate(-45 {x:.1f} {y:.1f})">{escape(text)}</text>'
  )


def _page(
  title: str,
  names: Sequence[str],
  right: float,
  height: float,
  parts: Sequence[str],
) -> str:
  """Returns the whole file: title, legend and what was drawn."""
  head = [
    f'<text class="ink" x="8" y="15" font-size="12">{escape(title)}</text>'
  ]
  x = float(_LEFT)
  for name, color in zip(names, _COLORS, strict=False):
    head.append(
      f'<rect x="{x:.1f}" y="22" width="9" height="9" fill="{color}"/>'
    )
    head.append(_text(x + 13, 30, name))
    x += 25 + _LETTER * len(name)
  width = max(right + _RIGHT, x, 16 + 7 * len(title))
  return "\n".join(
    [
      f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}"'
      f' height="{height:.0f}" font-family="sans-serif" font-size="10">',
      _STYLE,
      '<rect class="page" width="100%" height="100%"/>',
      *head,
      *parts,
      "</svg>",
      "",
    ]
  )
