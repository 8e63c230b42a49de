"""What the page of a picture does in a browser; timeline_test reads it."""

import random

import browser_pages
import timeline_cases as cases
from absl.testing import absltest

from jaxmem import units
from jaxmem.report import timeline
from jaxmem.report.explain_html import explanation_html
from jaxmem.report.peak_tree import Node


class PageTest(browser_pages.BrowserTest):
  """What is on the page, and what pointers do."""

  def test_errors_would_be_seen(self):
    _, console = self.open("<script>throw new Error('broken')</script>")
    self.assertLen(console, 1)
    self.assertIn("broken", console[0])

  def test_numbers_match_the_plan(self):
    before, after = cases.make_before(), cases.make_after()
    seen = self.observe(
      cases.render(before, after),
      {
        "panels": "[...document.querySelectorAll('.panel')].map(p => ({"
        "...p.dataset, text: p.innerText }))",
        "bound": "document.body.dataset.lowerBoundBytes",
        "title": "text('list-title')",
        "names": "names()",
        "legend": "[...byId('legend').children].map(i => i.innerText.trim())",
      },
    )
    for arena, panel in zip((before, after), seen["panels"], strict=True):
      peak_bytes, peak_step = cases.peak(arena)
      self.assertEqual(int(panel["peakBytes"]), peak_bytes)
      self.assertEqual(int(panel["peakStep"]), peak_step)
      self.assertEqual(int(panel["heightBytes"]), arena.height_bytes)
      self.assertEqual(int(panel["numBuffers"]), len(arena.rectangles))
      self.assertIn(units.format_bytes(arena.height_bytes), panel["text"])
      self.assertIn(units.format_bytes(peak_bytes), panel["text"])
    # 9 MiB became 6 MiB.
    self.assertIn("33.3% less", seen["panels"][1]["text"])
    self.assertEqual(int(seen["bound"]), 5 * cases.MIB)
    self.assertEqual(
      seen["title"], "jaxmem at the peak, step 1: 6.00 MiB live, 2 buffers"
    )
    self.assertEqual(seen["names"], ["b", "a"])
    self.assertEqual(
      seen["legend"], ["temp", "donated", "output", "lower bound"]
    )

  def test_draws_every_buffer_where_it_is(self):
    seen = self.observe(
      cases.render(),
      {
        "colours": "STATE.theme.kind",
        "pixels": "PANELS.flatMap(pixels)",
        "boxes": "PANELS.flatMap(p => "
        "Array.from(p.arena.name, (_, i) => p.box(i, 0)))",
        "area": "[PANELS[0].plotWidth, PANELS[0].mainHeight]",
      },
      """
      function pixels({ base, arena, side }) {
        const { width, height } = base;
        const image = base.getContext("2d").getImageData(0, 0, width, height);
        return Array.from(arena.name, (name) => {
          const point = inside(PANELS[side], MODEL.names[name]);
          const [x, y] = point.map((v) => Math.floor(v * devicePixelRatio));
          const at = 4 * (y * width + x);
          const rgb = [...image.data.slice(at, at + 3)];
          return `#${rgb.map((v) => v.toString(16).padStart(2, "0")).join("")}`;
        });
      }
      """,
    )
    width, height = seen["area"]
    # The axis is 9% longer than the taller arena, 9 MiB.
    pixels_per_mib = height / (9 * 1.09)
    rectangles = cases.make_before().rectangles + cases.make_after().rectangles
    for rectangle, pixel, box in zip(
      rectangles, seen["pixels"], seen["boxes"], strict=True
    ):
      kind = timeline.KIND_COLOURS[rectangle.kind]
      self.assertEqual(pixel, seen["colours"][kind], rectangle.name)
      duration = rectangle.end - rectangle.start
      top_mib = (rectangle.offset_bytes + rectangle.size_bytes) / cases.MIB
      size_mib = rectangle.size_bytes / cases.MIB
      self.assertAlmostEqual(box[1], height - pixels_per_mib * top_mib, 6)
      self.assertAlmostEqual(box[2], width * duration / 5, 6)
      self.assertAlmostEqual(box[3], pixels_per_mib * size_mib, 6)

  def test_hover_shows_a_buffer_on_both_sides(self):
    seen = self.observe(
      cases.render(),
      {"tip": "tip", "hovered": "hovered", "gone": "byId('tip').hidden"},
      "fire(PANELS[0], 'pointermove', ...inside(PANELS[0], 'c'));"
      "const tip = text('tip'); const hovered = STATE.hovered;"
      "fire(PANELS[0], 'pointerleave', -1, -1);",
    )
    self.assertEqual(
      seen["tip"].split("\n"),
      [
        "c",
        "3.00 MiB (3,145,728 bytes)",
        "donated at address 6,291,456",
        "XLA: steps [2, 4)",
        "jaxmem: steps [3, 4)",
        "layer.py:7",
      ],
    )
    self.assertEqual(seen["hovered"], [2, 2])
    self.assertTrue(seen["gone"])

  def test_search_list_zoom_and_reset(self):
    seen = self.observe(
      cases.render(),
      {
        "found": "found",
        "names": "searched",
        "zoomed": "zoomed",
        "selected": "selected",
        "middles": "middles",
        "spans": "[STATE.xSpan, STATE.ySpan / MODEL.maxAddress]",
        "cleared": "names()",
      },
      """
      type("MODEL.py");
      const found = text("found");
      const searched = names();
      fire(PANELS[0], "wheel", 300, 100, { deltaY: -500 });
      const zoomed = [STATE.xSpan < 5, STATE.ySpan < MODEL.maxAddress];
      lines()[0].click();
      const selected = STATE.selected;
      const middles = PANELS.map((panel) => {
        const [left, top, width, height] = panel.box(selected[panel.side], 0);
        return [(left - GUTTER + width / 2) / panel.plotWidth,
                (top + height / 2) / panel.mainHeight];
      });
      type("");
      tap(PANELS[1], 300, 100);
      tap(PANELS[1], 300, 100);
      """,
    )
    # a and b: 2 + 4 MiB, the larger first.
    self.assertEqual(seen["found"], "2 buffers, 6.00 MiB")
    self.assertEqual(seen["names"], ["b", "a"])
    self.assertEqual(seen["zoomed"], [True, True])
    self.assertEqual(seen["selected"], [1, 1])
    for middle in seen["middles"]:
      self.assertBetween(min(middle), 0, 1)
      self.assertBetween(max(middle), 0, 1)
    self.assertEqual(seen["spans"], [5, 1])
    self.assertEqual(seen["cleared"], ["b", "a"])

  def test_clicking_the_curve_lists_what_is_live(self):
    seen = self.observe(
      cases.render(),
      {"clicked": "clicked", "peak": "[text('list-title'), ...names()]"},
      """
      const y = PANELS[0].stripTop + 40;
      tap(PANELS[0], PANELS[0].x(3.6), y);
      const clicked = [text("list-title"), ...names()];
      tap(PANELS[0], PANELS[0].x(2.5) + 4, y);
      """,
    )
    self.assertEqual(
      seen["clicked"], ["XLA at step 3: 7.00 MiB live, 2 buffers", "b", "c"]
    )
    self.assertEqual(
      seen["peak"],
      ["XLA at the peak, step 2: 9.00 MiB live, 3 buffers", "b", "c", "a"],
    )

  def test_bytes_read_as_in_text_reports(self):
    values = [
      0,
      1,
      1023,
      1024,
      1047552,
      10496,
      10 * cases.MIB + cases.MIB // 4,
      -3 << 30,
    ]
    draw = random.Random(0)
    values += [draw.randrange(2 ** draw.randrange(1, 44)) for _ in range(300)]
    values += [draw.randrange(2**20) * 2**13 for _ in range(300)]
    seen = self.observe(cases.render(), {"text": f"{values}.map(formatBytes)"})
    self.assertEqual(seen["text"], list(map(units.format_bytes, values)))

  def test_ten_thousand_buffers(self):
    before, after = (
      cases.many("XLA", 10_000, 0),
      cases.many("jaxmem", 10_000, 1),
    )
    peak_bytes, peak = cases.peak(after)
    live = [r for r in after.rectangles if r.start <= peak < r.end]
    seen = self.observe(
      cases.render(before, after),
      {
        "buffers": "PANELS.map(p => p.arena.count)",
        "title": "text('list-title')",
        "rows": "Number(byId('list').ariaRowCount) - 1",
        "hit": "PANELS[0].hit(...inside(PANELS[0], MODEL.names[1234]), 0)",
      },
    )
    self.assertEqual(seen["buffers"], [10_000, 10_000])
    self.assertEqual(
      seen["title"],
      f"jaxmem at the peak, step {peak}: "
      f"{units.format_bytes(peak_bytes)} live, {len(live)} buffers",
    )
    self.assertEqual(seen["rows"], len(live))
    self.assertGreaterEqual(seen["hit"], 0)

  def test_hostile_names_are_text(self):
    seen = self.observe(
      cases.render_hostile(),
      {
        "title": "document.title",
        "name": "lines()[0].cells[0].textContent",
        "images": "document.images.length",
      },
      "fire(PANELS[0], 'pointermove', ...inside(PANELS[0], MODEL.names[0]));",
    )
    self.assertEqual(seen["title"], cases.HOSTILE)
    self.assertEqual(seen["name"], cases.HOSTILE)
    self.assertEqual(seen["images"], 0)

  def test_nothing_to_draw(self):
    empty = cases.make_arena("XLA", [], 0)
    seen = self.observe(
      cases.render(empty, empty, lower_bound_bytes=None),
      {"rows": "names().length", "bound": "document.body.dataset"},
      "fire(PANELS[0], 'wheel', 300, 100, { deltaY: -500 });"
      "tap(PANELS[0], 300, PANELS[0].stripTop + 9);",
    )
    self.assertEqual(seen["rows"], 0)
    self.assertEqual(seen["bound"]["lowerBoundBytes"], "")

  def test_panels_stack_on_a_phone(self):
    seen = self.observe(
      cases.render(),
      {
        "width": "[innerWidth, document.documentElement.scrollWidth]",
        "boxes": "[...document.querySelectorAll('.panel')].map("
        "p => p.getBoundingClientRect()).map(b => [b.left, b.top, b.bottom])",
      },
      frame_width=390,
    )
    inner, scrolled = seen["width"]
    self.assertEqual(inner, 390)
    self.assertLessEqual(scrolled, inner)
    first, second = seen["boxes"]
    self.assertEqual(first[0], second[0])
    self.assertLess(first[2], second[1])

  def test_the_trees_of_the_peak_open_without_a_script(self):
    inner = Node(name="<b>Dense_0</b>", size_bytes=6 * cases.MIB)
    block = Node(name="Block_0", size_bytes=9 * cases.MIB, children=(inner,))
    whole = Node(name="module", size_bytes=9 * cases.MIB, children=(block,))
    trees = {"module": whole, "line": whole}
    seen = self.observe(
      cases.render(below=explanation_html(trees, ["donate_argnums=(0,)"])),
      {
        "open": "[...document.querySelectorAll('.trees>details')]"
        ".map(d => d.open)",
        "height": "row.getBoundingClientRect().height",
        "name": "row.innerText",
        "hint": "document.querySelector('.jaxmem li').innerText",
      },
      "const row = document.querySelector('.trees .leaf');"
      "row.closest('details').querySelector('summary').click();",
    )
    self.assertEqual(seen["open"], [True, False])
    self.assertGreater(seen["height"], 0)
    self.assertIn("66.7 %", seen["name"])
    self.assertIn("<b>Dense_0</b>", seen["name"])
    self.assertEqual(seen["hint"], "donate_argnums=(0,)")


if __name__ == "__main__":
  absltest.main()
