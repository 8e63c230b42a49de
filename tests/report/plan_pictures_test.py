"""Pages of real plans, as a real Chromium shows them: screenshots, checked.

What is checked is what must be seen on any machine: the colours of what is
there, in light and dark, at the widths of a desk and of a phone. Fonts and
edges differ from machine to machine.
"""

import functools
import pathlib
import re
import tempfile

import browser_pages
import guide_steps
import heavy_step
import pytest
from absl.testing import absltest

import jaxmem
from benchmarks.sharded import residual_mlp
from jaxmem import targets
from jaxmem.report import timeline

_AUTOTUNE = {"xla_gpu_autotune_level": 0}


def _free() -> jaxmem.Plan:
  """A step without a limit, on the CPU."""
  arguments = guide_steps.params, guide_steps.opt_state, guide_steps.batch
  return jaxmem.plan(guide_steps.train_step, *arguments, donate_argnums=(0, 1))


def _limited() -> jaxmem.Plan:
  """A step that runs four kernels twice, on a described GPU."""
  arguments = guide_steps.params, guide_steps.opt_state, guide_steps.batch
  return jaxmem.plan(
    guide_steps.train_step,
    *arguments,
    donate_argnums=(0, 1),
    compiler_options=_AUTOTUNE,
    target="h200",
    memory_limit="72MiB",
  )


def _offloaded() -> jaxmem.Plan:
  """A step whose values move to the host and back."""
  return jaxmem.plan(
    heavy_step.step,
    *heavy_step.arguments(),
    donate_argnums=0,
    compiler_options=_AUTOTUNE,
    target="h200",
    memory_limit="13.7GiB",
  )


def _sharded() -> jaxmem.Plan:
  """A step over eight described GPUs that gathers its parameters."""
  devices = jaxmem.devices("h200", 8)
  step = residual_mlp(
    devices, fsdp=True, num_layers=3, width=2048, examples=16, length=2048
  )
  options = {"donate_argnums": 0, "compiler_options": _AUTOTUNE}
  return jaxmem.plan(step.fun, *step.args, **options)


def _gathered() -> jaxmem.Plan:
  """The same with more layers, in half the room: blocks are recomputed."""
  devices = jaxmem.devices("h200", 8)
  step = residual_mlp(devices, fsdp=True, num_layers=6, policy=None)
  options = {"donate_argnums": 0, "compiler_options": _AUTOTUNE}
  free = jaxmem.plan(step.fun, *step.args, **options)
  limit = int(free.total_bytes - 0.5 * free.temp_bytes)
  return jaxmem.plan(step.fun, *step.args, memory_limit=limit, **options)


_PLANS = {
  "free": _free,
  "gathered": _gathered,
  "limited": _limited,
  "offloaded": _offloaded,
  "sharded": _sharded,
}


@functools.cache
def _page(name: str) -> tuple[jaxmem.Plan, str]:
  plan = _PLANS[name]()
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "plan.html")
    plan.save_html(path)
    return plan, path.read_text(encoding="utf-8")


def _theme(page: str, *, is_dark: bool) -> dict[str, str]:
  """Returns the colours that the page's style names."""
  light, dark = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
  found = re.findall(r"--([\w-]+): (#\w+);", dark if is_dark else light)
  return dict(found)


class PicturesTest(browser_pages.BrowserTest):
  def _check(self, name: str) -> None:
    plan, page = _page(name)
    links = {span.link for span in plan.timing.spans}
    exposed_s = sum(span.exposed_s for span in plan.timing.spans)
    kinds = {
      timeline.KIND_COLOURS.get(b.kind, 9)
      for b in plan.after.at_peak()
      if b.size_bytes > 0.02 * plan.after.temp_bytes
    }
    self.assertNotEmpty(kinds)
    for is_dark in (False, True):
      theme = _theme(page, is_dark=is_dark)
      seen = self.colours(page, width=1400, height=1200, is_dark=is_dark)
      # The page, and on it the panels.
      self.assertGreater(seen[theme["page"]], 0.1)
      self.assertGreater(seen[theme["surface"]], 0.2)
      # Each kind that takes much at the peak is drawn, and more than its mark
      # in the legend, which is 144 pixels of 1.7 million.
      for kind in kinds:
        self.assertGreater(seen.get(theme[f"kind-{kind}"], 0), 5e-4, kind)
      # Kernels, and transfers if there are any, in their lanes.
      self.assertGreater(seen[theme["busy"]], 5e-4)
      self.assertEqual(seen.get(theme["hidden"], 0) > 3e-4, bool(links))
      if exposed_s > 0.01 * sum(plan.timing.seconds):
        self.assertGreater(seen[theme["exposed"]], 1e-4)
    for width in (1400, 400):
      wide = self.observe(
        page,
        {
          "page": "[innerWidth, document.documentElement.scrollWidth]",
          "out": "out",
        },
        """
        const out = [...document.querySelectorAll("main *")].filter((e) =>
          !e.closest(".scroller, svg, .hidden, #legend") &&
          e.getBoundingClientRect().right > innerWidth + 1,
        ).map((e) => e.outerHTML.slice(0, 80));
        """,
        frame_width=width,
      )
      inner, scrolled = wide["page"]
      self.assertEqual(inner, width)
      self.assertLessEqual(scrolled, inner)
      self.assertEmpty(wide["out"])

  def test_free(self):
    self._check("free")

  @pytest.mark.slow
  def test_the_rows_of_the_limit_add_up(self):
    self._skip_without_target()
    plan, page = _page("limited")
    assert plan.budget is not None
    seen = self.observe(
      page,
      {
        "rows": "[...byId('edits').tBodies[0].rows].map((line) => "
        "[...line.querySelectorAll('.number')].map((c) => +c.dataset.value))",
        "total": "[...byId('edits').tFoot.querySelectorAll('.number')].map("
        "(c) => +c.dataset.value)",
        "kinds": "[...byId('edits').tBodies[0].rows].map("
        "(line) => line.cells[0].innerText)",
      },
    )
    freed, added = zip(*seen["rows"], strict=True)
    self.assertEqual(sum(freed), seen["total"][0])
    self.assertEqual(sum(freed), plan.saved_bytes)
    self.assertAlmostEqual(sum(added), seen["total"][1])
    more_s = plan.budget.schedule_s - plan.budget.written_s
    self.assertAlmostEqual(sum(added), more_s)
    self.assertEqual(
      seen["kinds"].count("recompute"), plan.budget.num_recomputed
    )
    # What is recomputed is 8 MiB each, and away at the peak.
    self.assertEqual(freed[: plan.budget.num_recomputed], (8 << 20,) * 4)
    self.assertIn("recompute  gemm_fusion", str(plan))

  @pytest.mark.slow
  def test_limited(self):
    self._skip_without_target()
    self._check("limited")

  @pytest.mark.slow
  def test_offloaded(self):
    self._skip_without_target()
    plan, _ = _page("offloaded")
    assert plan.budget is not None and plan.budget.num_offloaded
    moved = [e for e in plan.budget.edits if e.kind == "offload"]
    self.assertLen(moved, plan.budget.num_offloaded)
    # Of 4096 x 32768 numbers of two bytes each.
    self.assertEqual({e.freed_bytes for e in moved}, {1 << 28})
    links = {span.link for span in plan.timing.spans}
    self.assertEqual(links, {"to host", "from host"})
    self._check("offloaded")

  @pytest.mark.slow
  def test_sharded(self):
    self._skip_without_target()
    plan, _ = _page("sharded")
    assert plan.communication is not None
    spans = [s for s in plan.timing.spans if s.link == "collectives"]
    seconds = sum(span.seconds for span in spans)
    exposed_s = sum(span.exposed_s for span in spans)
    self.assertAlmostEqual(seconds, plan.communication.seconds)
    self.assertAlmostEqual(exposed_s, plan.communication.exposed_s)
    synchronous = [span for span in spans if span.is_synchronous]
    self.assertLen(synchronous, plan.communication.num_synchronous)
    self.assertAlmostEqual(sum(plan.timing.seconds), plan.communication.step_s)
    self._check("sharded")

  @pytest.mark.slow
  def test_blocks_and_what_is_gathered_for_them(self):
    self._skip_without_target()
    plan, page = _page("gathered")
    budget = plan.budget
    assert budget is not None
    blocks = [edit for edit in budget.edits if edit.kind == "blocks"]
    self.assertLen(blocks, 1)
    self.assertStartsWith(blocks[0].name, f"{budget.num_dropped} residuals")
    self.assertIn("read anew", blocks[0].name)
    self.assertGreater(blocks[0].freed_bytes, 0)
    self.assertGreater(blocks[0].extra_s, 0)
    freed = sum(edit.freed_bytes for edit in budget.edits)
    self.assertEqual(freed, plan.saved_bytes)
    self.assertAlmostEqual(
      sum(edit.extra_s for edit in budget.edits),
      budget.schedule_s - budget.written_s,
    )
    self.assertIn(blocks[0].name, page)
    self.assertIn(blocks[0].name, str(plan))

  def test_without_scripts_there_is_a_still_picture(self):
    _, page = _page("free")
    # As if a browser ran no script: what stands for them is shown.
    still = re.sub(r"</?noscript>", "", page)
    still = re.sub(r"<script>.*?</script>", "", still, flags=re.DOTALL)
    seen = self.colours(still, width=1400, height=1200)
    theme = _theme(page, is_dark=False)
    self.assertGreater(seen[theme["page"]], 0.1)
    document, _ = self.open(still)
    self.assertIn("<svg", document)
    self.assertIn("by kind", document)

  def _skip_without_target(self) -> None:
    if not targets.is_available("h200"):
      self.skipTest("needs jax's CUDA plugin")


if __name__ == "__main__":
  absltest.main()
