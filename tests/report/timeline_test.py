"""What the page of a picture holds; timeline_page_test loads it."""

import dataclasses
import html
import json
import re

import timeline_cases as cases
from absl.testing import absltest, parameterized


def _data(page):
  block = re.search(r'<script type="application/json"[^>]*>(.*?)</script', page)
  assert block is not None
  return json.loads(block[1])


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
