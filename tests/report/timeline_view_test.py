"""Zoom, search, colours and keys of the page of a picture."""

import browser_pages
import timeline_cases as cases
from absl.testing import absltest


def _page():
  return cases.render(
    cases.told(cases.make_before()), cases.told(cases.make_after())
  )


class ZoomTest(browser_pages.BrowserTest):
  def test_to_the_peak_and_back(self):
    many = [cases.many(t, 400, seed) for t, seed in (("XLA", 0), ("plan", 1))]
    seen = self.observe(
      cases.render(*many),
      {
        "zoomed": "zoomed",
        "title": "text('list-title')",
        "whole": "[STATE.xSpan, PANELS[0].x0, PANELS[1].x0]",
        "label": "byId('peak').ariaKeyShortcuts ?? "
        "byId('peak').getAttribute('aria-keyshortcuts')",
      },
      """
      const zoomed = [];
      const note = () => zoomed.push(
        [STATE.xSpan, ...PANELS.map((p) => p.x0)]);
      byId("peak").click(); note();
      byId("reset").click(); note();
      press(document.body, "p"); note();
      press(document.body, "0");
      """,
    )
    by_button, reset, by_key = seen["zoomed"]
    self.assertEqual(by_button, by_key)
    self.assertEqual(reset, [400, 0, 0])
    self.assertEqual(seen["whole"], [400, 0, 0])
    span, *starts = by_button
    self.assertLess(span, 50)
    for arena, start in zip(many, starts, strict=True):
      _, peak = cases.peak(arena)
      self.assertBetween(peak, start, start + span)
    self.assertIn("at the peak", seen["title"])
    self.assertEqual(seen["label"], "p")

  def test_keys_of_a_picture(self):
    seen = self.observe(
      _page(),
      {"seen": "seen", "tab": "PANELS[0].over.tabIndex"},
      """
      const seen = [];
      const keys = ["+", "=", "ArrowRight", "ArrowLeft", "ArrowUp",
                    "ArrowDown", "-", "-"];
      for (const key of keys) {
        press(PANELS[0].over, key);
        seen.push([STATE.xSpan, PANELS[0].x0, PANELS[0].y0]);
      }
      """,
    )
    once, twice, right, left, up, down, out, whole = seen["seen"]
    self.assertAlmostEqual(once[0], 4)
    self.assertAlmostEqual(twice[0], 3.2)
    self.assertGreater(right[1], twice[1])
    self.assertAlmostEqual(left[1], twice[1])
    self.assertGreater(up[2], left[2])
    self.assertAlmostEqual(down[2], left[2])
    self.assertAlmostEqual(out[0], 4)
    self.assertEqual(whole[0], 5)
    self.assertEqual(seen["tab"], 0)

  def test_wheel_and_drag(self):
    seen = self.observe(
      _page(),
      {"wheel": "wheel", "drag": "[PANELS[0].x0 - x0, PANELS[1].x0]"},
      """
      fire(PANELS[0], "wheel", 300, 100, { deltaY: -400 });
      const wheel = [STATE.xSpan, STATE.ySpan < MODEL.maxAddress];
      const { x0 } = PANELS[0];
      const other = PANELS[1].x0;
      fire(PANELS[0], "pointerdown", 300, 100);
      fire(PANELS[0], "pointermove", 280, 100);
      fire(PANELS[0], "pointermove", 260, 100);
      fire(PANELS[0], "pointerup", 260, 100);
      """,
    )
    self.assertLess(seen["wheel"][0], 5)
    self.assertTrue(seen["wheel"][1])
    self.assertGreater(seen["drag"][0], 0)


class SearchTest(browser_pages.BrowserTest):
  def test_by_name_operation_module_and_source(self):
    seen = self.observe(
      _page(),
      {"found": "found"},
      """
      const found = {};
      for (const words of ["c", "TANH", "block_2", "layer.py", "nothing"]) {
        type(words);
        found[words] = [text("found"), names()];
      }
      """,
    )
    self.assertEqual(
      seen["found"],
      {
        # By its own name; "Block" and "source" have that letter, too.
        "c": ["4 buffers, 13.0 MiB", ["b", "d", "c", "a"]],
        "TANH": ["1 buffer, 4.00 MiB", ["b"]],
        "block_2": ["1 buffer, 4.00 MiB", ["b"]],
        "layer.py": ["1 buffer, 3.00 MiB", ["c"]],
        "nothing": ["0 buffers, 0 B", []],
      },
    )

  def test_enter_goes_from_match_to_match(self):
    seen = self.observe(
      _page(),
      {"steps": "steps", "disabled": "byId('next').disabled"},
      """
      const steps = [];
      const note = () => steps.push(
        [text("found").split(",")[0], MODEL.names[
          MODEL.arenas[1].name[STATE.selected[1]]]]);
      type("model.py");
      const input = byId("search");
      press(input, "Enter"); note();
      press(input, "Enter"); note();
      press(input, "Enter"); note();
      press(input, "Enter", { shiftKey: true }); note();
      byId("next").click(); note();
      byId("previous").click(); note();
      press(document.body, "n"); note();
      press(document.body, "N"); note();
      type("");
      """,
    )
    first, second = ["1 of 2 buffers", "b"], ["2 of 2 buffers", "a"]
    self.assertEqual(seen["steps"], [first, second] * 4)
    self.assertTrue(seen["disabled"])

  def test_matches_stay_coloured_and_others_fade(self):
    seen = self.observe(
      _page(),
      {"before": "before", "after": "after", "colour": "STATE.colours"},
      """
      const at = (name) => {
        const [x, y] = inside(PANELS[1], name);
        const scale = PANELS[1].base.width / PANELS[1].width;
        return [...PANELS[1].base.getContext("2d").getImageData(
          x * scale, y * scale, 1, 1).data];
      };
      const before = ["a", "b"].map(at);
      type("tanh");
      PANELS[1].draw();
      const after = ["a", "b"].map(at);
      """,
    )
    self.assertEqual(seen["after"][1], seen["before"][1])
    # What fades is as good as see-through.
    self.assertEqual(seen["before"][0][3], 255)
    self.assertLess(seen["after"][0][3], 60)


class ColoursTest(browser_pages.BrowserTest):
  def test_legends(self):
    seen = self.observe(
      _page(),
      {"legends": "legends", "colours": "colours"},
      """
      const legends = {}, colours = {};
      for (const by of ["kind", "layer", "size"]) {
        byId("colour").value = by;
        byId("colour").dispatchEvent(new Event("change"));
        const buttons = [...byId("legend").querySelectorAll("button")];
        legends[by] = buttons.map((b) => b.innerText.trim());
        colours[by] = buttons.map(
          (b) => b.querySelector("i").style.backgroundColor);
      }
      """,
    )
    self.assertEqual(seen["legends"]["kind"], ["temp", "donated", "output"])
    # Block 2 is before block 10; what has no module is last.
    self.assertEqual(
      seen["legends"]["layer"],
      ["Net/Block_0", "Net/Block_2", "Net/Block_10", "no module"],
    )
    # They have 2, 3 and 4 MiB.
    self.assertEqual(seen["legends"]["size"], ["≥ 2 MiB"])
    for colours in seen["colours"].values():
      self.assertLen({*colours}, len(colours))

  def test_a_click_in_the_legend_shows_one_alone(self):
    seen = self.observe(
      _page(),
      {"states": "states"},
      """
      setColourBy("kind");
      const [, donated] = byId("legend").querySelectorAll("button");
      const states = [];
      const note = () => {
        PANELS[0].draw();
        const alpha = ["a", "c"].map((name) => {
          const [x, y] = inside(PANELS[0], name);
          const { base, width } = PANELS[0];
          const scale = base.width / width;
          return base.getContext("2d").getImageData(
            x * scale, y * scale, 1, 1).data[3];
        });
        states.push([donated.ariaPressed, ...alpha]);
      };
      note();
      donated.click(); note();
      press(document.body, "Escape"); note();
      """,
    )
    shown, alone, again = seen["states"]
    self.assertEqual(shown, ["false", 255, 255])
    self.assertEqual(alone[0], "true")
    self.assertLess(alone[1], 60)
    self.assertEqual(alone[2], 255)
    self.assertEqual(again, shown)


class KeyboardTest(browser_pages.BrowserTest):
  def test_everything_can_be_reached_and_has_a_name(self):
    seen = self.observe(
      _page(),
      {"unnamed": "unnamed", "reached": "reached", "outlines": "outlines"},
      """
      const all = [...document.querySelectorAll(
        "button, input, select, summary, [tabindex]")].filter(
          (e) => e.tabIndex >= 0 && !e.disabled && e.offsetParent);
      const named = (e) => e.innerText || e.ariaLabel || e.labels?.length ||
        e.getAttribute("aria-labelledby");
      const unnamed = all.filter((e) => !named(e)).map((e) => e.outerHTML);
      const reached = all.map((e) => e.id || e.tagName);
      const outlines = all.map((e) => {
        e.focus({ focusVisible: true });
        return [e.id, document.activeElement === e,
                getComputedStyle(e).outlineStyle];
      }).filter(([, has, style]) => !has || style !== "solid");
      """,
    )
    self.assertEmpty(seen["unnamed"])
    self.assertEmpty(seen["outlines"])
    self.assertContainsSubset(
      ["search", "colour", "peak", "reset", "CANVAS", "list", "copy", "scope"],
      seen["reached"],
    )

  def test_keys_for_the_whole_page(self):
    seen = self.observe(
      _page(),
      {
        "focus": "focus",
        "help": "help",
        "typed": "[STATE.xSpan, byId('help').open]",
      },
      """
      press(document.body, "/");
      const focus = document.activeElement.id;
      const help = [];
      for (let k = 0; k < 2; k += 1) {
        press(document.body, "?");
        help.push(byId("help").open);
      }
      // Whoever types into the search means what is typed.
      press(byId("search"), "p");
      press(byId("search"), "?");
      """,
    )
    self.assertEqual(seen["focus"], "search")
    self.assertEqual(seen["help"], [True, False])
    self.assertEqual(seen["typed"], [5, False])


if __name__ == "__main__":
  absltest.main()
