"""Plans as JSON, changed at random: refused, or a plan that can be shown."""

import json
import pathlib
import re
import tempfile

import hostile
import jax.numpy as jnp
import timeline_cases as cases
from absl.testing import absltest
from hypothesis import given
from hypothesis import strategies as st

import jaxmem
from jaxmem.report import timeline
from jaxmem.script import pictures


def _step(weights, x):
  return weights - 0.1 * jnp.tanh(x @ weights), (x @ weights).sum()


class PlanJsonTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    arrays = jnp.ones((8, 8)), jnp.ones((8, 8))
    options = jaxmem.Options(effort="fast")
    plan = jaxmem.plan(_step, *arrays, memory_limit="1MiB", options=options)
    cls.fields = json.loads(plan.to_json())

  def check(self, text):
    try:
      plan = jaxmem.Plan.from_json(text)
    except ValueError as error:
      self.assertStartsWith(str(error), "Not a plan written by Plan.to_json: ")
      return
    self.assertIsInstance(str(plan), str)
    self.assertEqual(
      jaxmem.Plan.from_json(plan.to_json()).to_json(), plan.to_json()
    )
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "plan.html")
      plan.save_html(path)
      self.assert_safe(path.read_text(encoding="utf-8"))

  def assert_safe(self, page):
    self.assertLen(re.findall(r"(?i)<script", page), 2)
    self.assertLen(re.findall(r"(?i)</script", page), 2)
    self.assertNotRegex(page, r"(?i)<img|<!--")

  def refuses(self, message, **changed):
    after = {**self.fields["after"], **changed}
    text = json.dumps({**self.fields, "after": after})
    with self.assertRaisesRegex(
      ValueError, f"^Not a plan written by Plan.to_json: {message}"
    ):
      jaxmem.Plan.from_json(text)

  def test_a_layout_that_nothing_could_draw(self):
    # So many steps would take all memory there is.
    self.refuses("after.num_steps must be from 0 to", num_steps=2**40)
    self.refuses("after.num_steps must be from 0 to", num_steps=-1)
    self.refuses("after.temp_bytes must fit 64 bits", temp_bytes=10**400)
    for change in (
      {"start": -1},
      {"end": 10**9},
      {"start": 3, "end": 2},
      {"size_bytes": -1},
      {"offset_bytes": -5},
    ):
      buffer = {**self.fields["after"]["buffers"][0], **change}
      self.refuses(r"after.buffers\[0\] has no place or no", buffers=[buffer])

  def test_half_a_character_is_no_text(self):
    buffer = {**self.fields["after"]["buffers"][0], "name": "\ud800"}
    self.refuses(".*surrogates not allowed", buffers=[buffer])

  @hostile.examples(400)
  @given(draw=st.data())
  def test_a_changed_plan(self, draw):
    self.check(json.dumps(hostile.changed(self.fields, draw)))

  @hostile.examples(200)
  @given(text=st.one_of(hostile.texts, hostile.values.map(json.dumps)))
  def test_other_texts(self, text):
    self.check(text)

  @hostile.examples(100)
  @given(length=st.integers(0, 10_000), draw=st.data())
  def test_half_a_plan(self, length, draw):
    text = json.dumps(self.fields)
    cut = text[: length % len(text)]
    self.check(cut + draw.draw(hostile.texts))


class PagesTest(absltest.TestCase):
  """Names of modules, functions, buffers and files are text, whatever else."""

  @hostile.examples(200)
  @given(
    name=hostile.written_texts,
    source=hostile.written_texts,
    link=hostile.written_texts,
  )
  def test_a_page(self, name, source, link):
    plain = cases.render()
    rectangle = cases.make_rectangle(name, 1, 0, 0, 1, source=source)
    arena = cases.make_arena(name, [rectangle], 1)
    table = timeline.Table(header=(name,), rows=((source,),), links=(link,))
    page = cases.render(
      arena,
      arena,
      title=name,
      subtitle=source,
      facts=[(name, source)],
      table=table,
    )
    for opening in ("<script", "</script", "<img", "<!--"):
      self.assertEqual(page.count(opening), plain.count(opening), opening)
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</sc', page)
    assert data is not None
    self.assertEqual(json.loads(data[1])["names"], [name])
    for target in re.findall(r'href="([^"]*)"', page):
      # A file beside the page, never an address or a scheme.
      self.assertNotRegex(target, r"[:<>&' ]")

  @hostile.examples(150)
  @given(functions=st.lists(hostile.written_texts, max_size=6, unique=True))
  def test_each_function_has_a_file_of_its_own(self, functions):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "out.html")
      files = pictures._files(path, functions)
      self.assertLen({*files.values()}, len(functions))
      for file in files.values():
        self.assertEqual(file.parent, path.parent)
        file.write_text("page", encoding="utf-8")

  def test_functions_whose_names_meet(self):
    path = pathlib.Path("out.html")
    for functions in (["x", "a_.3", "a_", "a?"], ["x", "a?", "a_.2", "a_"]):
      files = pictures._files(path, functions)
      self.assertLen({*files.values()}, len(functions), files)


if __name__ == "__main__":
  absltest.main()
