"""Plots and pages of the reports: what is drawn, and where it is written."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import page, svg_plot

_SVG = "{http://www.w3.org/2000/svg}"


def _parsed(text):
  return ElementTree.fromstring(text)


def _bars(root):
  """Rectangles with a color, without the legend's."""
  found = [r for r in root.iter(f"{_SVG}rect") if r.get("fill")]
  return [r for r in found if r.get("y") != "22"]


def test_bars_are_as_high_as_their_values():
  root = _parsed(
    svg_plot.bars("t", ["a", "b"], [("x", [10, 40]), ("y", [20, -20])])
  )
  first, second, third, fourth = _bars(root)
  # By label, then by series.
  heights = [float(r.get("height", "")) for r in (first, second, third, fourth)]
  expected = [h * heights[0] / 10 for h in (10, 20, 40, 20)]
  assert heights == pytest.approx(expected, abs=0.3)
  zero = float(first.get("y", "")) + heights[0]
  assert float(third.get("y", "")) + heights[2] == pytest.approx(zero)
  # What is negative hangs below zero.
  assert float(fourth.get("y", "")) == pytest.approx(zero, abs=0.1)
  assert first.get("fill") == third.get("fill") != second.get("fill")


def test_a_missing_value_has_no_bar():
  root = _parsed(svg_plot.bars("t", ["a", "b"], [("x", [1, float("nan")])]))
  assert len(_bars(root)) == 1


def test_marks_lie_at_their_value_over_their_groups():
  plot = svg_plot.bars(
    "t",
    ["a", "b", "c"],
    [("x", [10, 10, 10])],
    marks=[svg_plot.Mark(10, "paper <", (1, 3))],
  )
  root = _parsed(plot)
  (mark,) = (r for r in root.iter(f"{_SVG}line") if r.get("class") == "mark")
  bars = _bars(root)
  assert mark.get("y1") == mark.get("y2") == bars[0].get("y")
  assert float(bars[0].get("x", "")) < float(mark.get("x1", ""))
  assert float(mark.get("x1", "")) <= float(bars[1].get("x", ""))
  assert float(mark.get("x2", "")) >= float(bars[2].get("x", ""))
  assert "paper <" in {t.text for t in root.iter(f"{_SVG}text")}


def test_lines_go_through_their_points():
  root = _parsed(
    svg_plot.lines("t", "memory", [("x", [(0, 100), (10, 110), (20, 105)])])
  )
  (line,) = root.iter(f"{_SVG}polyline")
  points = [
    tuple(map(float, point.split(",")))
    for point in line.get("points", "").split()
  ]
  (x0, y0), (x1, y1), (x2, y2) = points
  assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
  # Up on the page is down in numbers; the axis need not begin at zero.
  assert (y0 - y1) == pytest.approx(2 * (y0 - y2), abs=0.3)
  assert y0 - y1 > 100


def test_ticks_are_round_and_enclose_the_values():
  root = _parsed(svg_plot.bars("t", ["a"], [("x", [0.37])], unit="s"))
  ticks = [
    t.text for t in root.iter(f"{_SVG}text") if (t.text or "").endswith(" s")
  ]
  assert ticks == ["0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]


def test_everything_lies_within_the_picture():
  labels = [f"a long label number {i}" for i in range(12)]
  plot = svg_plot.bars("title", labels, [("x", list(range(12)))])
  root = _parsed(plot)
  width, height = (float(root.get(n, "")) for n in ("width", "height"))
  for bar in _bars(root):
    assert 0 <= float(bar.get("x", "")) <= width - 9
    assert float(bar.get("y", "")) + float(bar.get("height", "")) <= height


def test_plots_suit_light_and_dark_pages():
  plot = svg_plot.bars("t", ["a"], [("x", [1])])
  assert "prefers-color-scheme: dark" in plot
  for text in _parsed(plot).iter(f"{_SVG}text"):
    assert text.get("class") == "ink"


def test_areas_keep_their_peaks_and_share_one_width():
  # More values than pixels: the one that is high is not lost.
  many = [1.0] * 5000
  many[1234] = 8.0
  root = _parsed(
    svg_plot.areas("t", "x", [("a", many), ("b", [2, 4])], unit="B")
  )
  first, second = (p.get("d", "") for p in root.iter(f"{_SVG}path"))
  tops = [
    [float(v) for v in re.findall(r"V([\d.]+)H", d)] for d in (first, second)
  ]
  ends = [float(re.findall(r"H([\d.]+)", d)[-1]) for d in (first, second)]
  assert len(tops[0]) == 640
  assert len(tops[1]) == 2
  assert ends[0] == pytest.approx(ends[1])
  bottom = float(first.split("V")[-1].rstrip("Z"))
  heights = [bottom - top for top in (min(tops[0]), max(tops[0]), *tops[1])]
  assert heights == pytest.approx(
    [heights[0] * share / 8 for share in (8, 1, 2, 4)], abs=0.2
  )


def test_refuses_what_it_cannot_draw():
  with pytest.raises(ValueError, match="'x' must have 2 values, got 1"):
    svg_plot.bars("t", ["a", "b"], [("x", [1])])
  with pytest.raises(ValueError, match="at most 6, got 7"):
    svg_plot.bars("t", ["a"], [(str(i), [1]) for i in range(7)])
  with pytest.raises(ValueError, match="every series must have values"):
    svg_plot.areas("t", "x", [("x", [])], unit="B")
  with pytest.raises(ValueError, match="points"):
    svg_plot.lines("t", "x", [])


def test_a_page_is_filled_in_its_places(tmp_path):
  text = "a\n<!-- begin one -->\nold\n<!-- end -->\nb\n"
  (tmp_path / "p.md").write_text(text, encoding="utf-8")
  made = page.table(("x", "y"), [(1, "\\1"), (2, "d")])
  page.fill("p.md", {"one": made}, {"p.svg": "<svg/>"}, docs=tmp_path)
  filled = (tmp_path / "p.md").read_text(encoding="utf-8")
  assert filled == text.replace(
    "old\n", "| x | y |\n| --- | --- |\n| 1 | \\1 |\n| 2 | d |\n"
  )
  assert (tmp_path / "p.svg").read_text(encoding="utf-8") == "<svg/>"
  with pytest.raises(ValueError, match="one place for 'two', got 0"):
    page.fill("p.md", {"two": ""}, {}, docs=tmp_path)
