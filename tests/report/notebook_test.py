"""What notebooks show of plans: complete, small, escaped, without scripts."""

import dataclasses
import functools
import html.parser
import json
import pathlib
import tempfile

import jax.numpy as jnp
import library_steps
import pytest
import treescope
from absl.testing import absltest

import jaxmem
from jaxmem.report import Frontier, Point, layout

_HOSTILE = "</script></svg><img src=x onerror=alert()>&\"'"
_VOID = {"meta", "br", "img"}


@functools.cache
def _plan() -> jaxmem.Plan:
  step, args, jit_kwargs = library_steps.linen()
  options = jaxmem.Options(effort="fast")
  return jaxmem.plan(step, *args, options=options, **jit_kwargs)


class _Reader(html.parser.HTMLParser):
  """Collects the elements of a fragment; tells whether all are closed."""

  def __init__(self, fragment: str):
    super().__init__()
    self.tags: set[str] = set()
    self.attributes: set[str] = set()
    self.open: list[str] = []
    self.is_balanced = True
    self.feed(fragment)
    self.is_balanced &= not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    self.attributes |= {name for name, _ in attrs}
    if tag not in _VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.add(tag)
    self.attributes |= {name for name, _ in attrs}

  def handle_endtag(self, tag):
    self.is_balanced &= bool(self.open) and self.open.pop() == tag


class NotebookTest(absltest.TestCase):
  def _check(self, fragment: str) -> _Reader:
    read = _Reader(fragment)
    self.assertTrue(read.is_balanced, read.open)
    self.assertEmpty(read.tags & {"script", "img", "link", "iframe", "html"})
    self.assertFalse([a for a in read.attributes if a.startswith("on")])
    self.assertEmpty(read.attributes & {"src", "href"})
    self.assertNotIn("url(", fragment)
    self.assertNotIn("@import", fragment)
    return read

  def test_a_plan(self):
    plan = _plan()
    fragment = plan._repr_html_()
    read = self._check(fragment)
    self.assertLessEqual({"svg", "details", "pre"}, read.tags)
    self.assertIn("prefers-color-scheme", fragment)
    for by in plan.explain().trees:
      self.assertIn(f"by {by}", fragment)
    self.assertLess(len(fragment), 200_000)

  def test_a_plan_from_a_file_shows_the_same(self):
    plan = _plan()
    again = jaxmem.Plan.from_json(plan.to_json())
    self.assertEqual(again._repr_html_(), plan._repr_html_())

  @pytest.mark.slow
  def test_a_plan_of_50_000_buffers_stays_small(self):
    plan = _plan()
    buffers = tuple(
      layout.PlannedBuffer(
        name=f"a_rather_long_name_of_a_fusion_of_many_operations.{i}",
        size_bytes=1000 + i % 777,
        allocation="temp",
        offset_bytes=2000 * (i % 1000),
        start=i // 10,
        end=i // 10 + 100,
        source=f"/home/somebody/some/project/model/layers_{i % 50}.py:{i}",
      )
      for i in range(50_000)
    )
    large = layout.Layout(
      buffers=buffers,
      peak_step=2000,
      max_live_bytes=1_000_000,
      temp_bytes=2_002_000,
      num_steps=5200,
    )
    rows = tuple(
      dataclasses.replace(
        plan.peak[0],
        name=buffer.name,
        module=("Net", f"Block_{i % 97}", f"Dense_{i % 13}", f"x{i % 1009}"),
        source=buffer.source,
      )
      for i, buffer in enumerate(buffers)
    )
    plan = dataclasses.replace(plan, before=large, after=large, peak=rows)
    fragment = plan._repr_html_()
    self._check(fragment)
    self.assertLess(len(fragment.encode()), 200_000)

  def test_names_are_escaped(self):
    plan = _plan()
    rows = tuple(
      dataclasses.replace(
        row, module=(_HOSTILE,), source=f"{_HOSTILE}:3", argument=_HOSTILE
      )
      for row in plan.peak[:5]
    )
    hostile = layout.Layout(
      buffers=tuple(
        dataclasses.replace(b, name=_HOSTILE) for b in plan.after.buffers
      ),
      peak_step=plan.after.peak_step,
      max_live_bytes=plan.after.max_live_bytes,
      temp_bytes=plan.after.temp_bytes,
      num_steps=plan.after.num_steps,
    )
    plan = dataclasses.replace(
      plan, name=_HOSTILE, target=_HOSTILE, peak=rows, after=hostile
    )
    self._check(plan._repr_html_())
    frontier = Frontier(
      name=_HOSTILE,
      target=_HOSTILE,
      step_s=1.0,
      exposed_s=None,
      points=(Point(limit_bytes=5, total_bytes=4),),
    )
    self._check(frontier._repr_html_())
    batch = jaxmem.BatchPlan(batch=2, plan=plan, smallest_bytes={2: 7, 4: 9})
    self._check(batch._repr_html_())

  def test_a_frontier(self):
    frontier = _plan().frontier()
    fragment = frontier._repr_html_()
    self.assertIn("svg", self._check(fragment).tags)
    self.assertIn("currentColor", fragment)
    self.assertIn("extra time", fragment)
    self.assertLess(len(fragment), 200_000)

  def test_a_frontier_that_nothing_meets(self):
    frontier = Frontier(
      name="f", target="cpu", step_s=1.0, exposed_s=None, points=()
    )
    self.assertIn("No limit can be met", frontier._repr_html_())

  def test_a_batch(self):
    batch = jaxmem.BatchPlan(
      batch=64, plan=_plan(), smallest_bytes={64: 100, 128: 200}
    )
    fragment = batch._repr_html_()
    self._check(fragment)
    self.assertIn("largest batch 64", fragment)
    self.assertIn("128", fragment)
    self.assertIn(_plan().name, fragment)

  @pytest.mark.slow
  def test_treescope_shows_them_in_other_values(self):
    plan = _plan()
    batch = jaxmem.BatchPlan(batch=64, plan=plan, smallest_bytes={64: 100})
    page = treescope.render_to_html(
      {"a": plan, "b": batch, "c": plan.frontier()}, compressed=False
    )
    for value in (plan, batch, plan.frontier()):
      start = value._repr_html_()[:400].replace('"', "&quot;")
      self.assertTrue(start in page, type(value))
    self.assertEqual(page.count("baseline_temp_bytes="), 2)
    # Not every buffer, and not every instruction.
    self.assertLess(len(page), 500_000)

  def test_the_representation_is_short(self):
    self.assertIn("temp_bytes=", repr(_plan()))
    self.assertLess(len(repr(_plan())), 2_000)

  def test_a_plan_without_temporaries(self):
    options = jaxmem.Options(effort="fast")
    plan = jaxmem.plan(lambda x: x + 1, jnp.zeros(4), options=options)
    self._check(plan._repr_html_())

  def test_the_page_has_the_trees_too(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "plan.html")
      _plan().save_html(path)
      page = path.read_text(encoding="utf-8")
    tree = _plan().explain().to_html()
    self.assertIn(tree, page)
    # The data of the page are one JSON text still.
    data = page.split('id="data">')[1].split("</script>")[0]
    self.assertIn("arenas", json.loads(data))


if __name__ == "__main__":
  absltest.main()
