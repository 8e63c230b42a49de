"""What the page of a picture holds; timeline_page_test loads it."""

import dataclasses
import html
import itertools
import json
import re

import numpy as np
import timeline_cases as cases
from absl.testing import absltest, parameterized


def _data(page):
  block = re.search(r'<script type="application/json"[^>]*>(.*?)</script', page)
  assert block is not None
  return json.loads(block[1])


# What protan, deutan and tritan observers see of linear RGB: Machado, Oliveira
# and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", IEEE TVCG 2009, severity 1.0. And the least distance asked for.
_OBSERVERS = {
  "normal": (np.eye(3), 18),
  "protan": (
    [
      [0.152286, 1.052583, -0.204868],
      [0.114503, 0.786281, 0.099216],
      [-0.003882, -0.048116, 1.051998],
    ],
    15,
  ),
  "deutan": (
    [
      [0.367322, 0.860646, -0.227968],
      [0.280085, 0.672501, 0.047413],
      [-0.011820, 0.042940, 0.968881],
    ],
    15,
  ),
  "tritan": (
    [
      [1.255528, -0.076749, -0.178779],
      [-0.078411, 0.930809, 0.147602],
      [0.004733, 0.691367, 0.303900],
    ],
    12,
  ),
}
_XYZ = [
  [0.4124, 0.3576, 0.1805],
  [0.2126, 0.7152, 0.0722],
  [0.0193, 0.1192, 0.9505],
]


def _lab(colour, observer):
  """Returns a colour as CIELAB; 2.3 in it is a difference just noticed."""
  channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
  linear = np.where(
    channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
  )
  seen = np.clip(np.array(observer) @ linear, 0, 1)
  x, y, z = np.array(_XYZ) @ seen / (0.9505, 1.0, 1.089)
  fx, fy, fz = (
    np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)
  )
  return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


class ColoursTest(parameterized.TestCase):
  @parameterized.product(observer=list(_OBSERVERS), theme=(0, 1))
  def test_kinds_can_be_told_apart(self, observer, theme):
    seen, least = _OBSERVERS[observer]
    block = re.findall(r":root \{(.*?)\}", cases.render(), re.DOTALL)[theme]
    kinds = re.findall(r"--kind-\d: (#\w+);", block)
    self.assertLen(kinds, 10)
    labs = [_lab(kind, seen) for kind in kinds]
    for (i, a), (k, b) in itertools.combinations(enumerate(labs), 2):
      self.assertGreater(np.linalg.norm(a - b), least, (kinds[i], kinds[k]))
    # And whether the device waits, from all else in the lanes.
    lanes = dict(re.findall(r"--(busy|hidden|exposed): (#\w+);", block))
    waits = _lab(lanes["exposed"], seen)
    for other in ("busy", "hidden"):
      away = np.linalg.norm(waits - _lab(lanes[other], seen))
      self.assertGreater(away, 40)


class PageTest(parameterized.TestCase):
  def test_data_are_columns(self):
    data = _data(cases.render())
    self.assertEqual(data["lower_bound"], 5 * cases.MIB)
    self.assertEqual(data["names"], ["a", "b", "c", "d"])
    before, after = data["arenas"]
    self.assertEqual(before["title"], "XLA")
    self.assertEqual(before["height"], 9 * cases.MIB)
    self.assertEqual(before["live"], [m * cases.MIB for m in (2, 6, 9, 7, 4)])
    self.assertEqual(before["size"], [m * cases.MIB for m in (2, 4, 3, 4)])
    self.assertEqual(before["offset"], [m * cases.MIB for m in (0, 2, 6, 0)])
    self.assertEqual(before["kind"], [0, 0, 1, 2])
    self.assertEqual(after["start"], [0, 1, 3, 4])
    self.assertEqual(after["end"], [2, 3, 4, 5])
    self.assertEqual(data["sources"][after["source"][2]], "layer.py:7")

  def test_text_is_escaped_and_survives(self):
    page = cases.render_hostile()
    plain = cases.render()
    for opening in ("<script", "</script", "<img", "<!--"):
      self.assertEqual(page.count(opening), plain.count(opening), opening)
    data = _data(page)
    self.assertEqual(data["names"], [cases.HOSTILE])
    self.assertEqual(data["arenas"][0]["title"], cases.HOSTILE)
    self.assertEqual(page.count(html.escape(cases.HOSTILE)), 7)

  def test_refers_to_nothing_outside(self):
    page = cases.render()
    self.assertNotRegex(page, r"https?:|\bsrc=|\bhref=|@import|url\(")
    self.assertIn("default-src 'none'", page)
    self.assertNotIn("$", re.sub(r"\$\{", "", page))

  def test_ten_thousand_buffers_take_less_than_two_megabytes(self):
    page = cases.render(
      cases.many("XLA", 10_000, 0),
      cases.many("jaxmem", 10_000, 1),
    )
    self.assertLess(len(page.encode()), 2e6)

  @parameterized.parameters(
    ({"size_bytes": -1}, "size and an offset"),
    ({"offset_bytes": -1}, "size and an offset"),
    ({"start": 3}, "0 <= start <= end"),
  )
  def test_refuses_impossible_rectangles(self, change, message):
    rectangle = cases.make_rectangle("fusion", 1, 0, 1, 2)
    with self.assertRaisesRegex(ValueError, f"'fusion'.*{message}"):
      dataclasses.replace(rectangle, **change)

  def test_refuses_arenas_of_another_length(self):
    with self.assertRaisesRegex(ValueError, "live_bytes for each of its 5"):
      dataclasses.replace(cases.make_before(), live_bytes=(1, 2))
    with self.assertRaisesRegex(ValueError, "'d' must end within the 4 steps"):
      dataclasses.replace(cases.make_before(), num_steps=4, live_bytes=(1,) * 4)


if __name__ == "__main__":
  absltest.main()
