"""Lanes of time on the page of a picture, by steps and in time."""

import browser_pages
import timeline_cases as cases
from absl.testing import absltest


def _page():
  # XLA's side has a timing without any transfers, jaxmem's has all there are.
  after = cases.timed(cases.make_after())
  assert after.timing is not None
  kernels = cases.without_transfers(cases.make_before())
  return cases.render(kernels, after)


# The colour of a step in a lane, by its name in the theme. The peak is marked
# in the middle of its step.
_COLOUR_AT = """
function colourAt(panel, step, key, row = 0) {
  const lane = panel.lanes.lanes.find((each) => each.key === key);
  const y = key === "kernels"
    ? panel.lanesTop + lane.top + lane.height - 1
    : panel.lanesTop + lane.top + row * ROW + 3;
  const scale = panel.base.width / panel.width;
  const { data } = panel.base.getContext("2d").getImageData(
    panel.x(step) * scale, y * scale, 1, 1);
  const hex = hexOf([...data.slice(0, 3)]);
  const names = ["busy", "hidden", "exposed"];
  return data[3] === 255 ? names.find((n) => STATE.theme[n] === hex) : null;
}
"""


class LanesTest(browser_pages.BrowserTest):
  def test_only_lanes_that_have_anything(self):
    kernels = cases.without_transfers(cases.make_before())
    after = cases.timed(cases.make_after())
    pages = {
      "none": cases.render(),
      "kernels": cases.render(kernels, kernels),
      "all": cases.render(kernels, after),
    }
    expressions = {
      "lanes": "PANELS.map((p) => p.lanes.lanes.map((lane) => lane.key))",
      "axis": "byId('axis').offsetParent !== null",
      "times": "[...document.querySelectorAll('.times')].map("
      "(e) => e.innerText)",
    }
    seen = {k: self.observe(page, expressions) for k, page in pages.items()}
    self.assertEqual(seen["none"]["lanes"], [[], []])
    self.assertFalse(seen["none"]["axis"])
    self.assertEqual(seen["none"]["times"], ["", ""])
    self.assertEqual(seen["kernels"]["lanes"], [["kernels"]] * 2)
    self.assertTrue(seen["kernels"]["axis"])
    lanes = ["kernels", "collectives", "to host", "from host"]
    # Both sides have the same lanes, so that they can be compared.
    self.assertEqual(seen["all"]["lanes"], [lanes, lanes])
    own, planned = seen["all"]["times"]
    self.assertEqual(own, "6 ms by estimate: compute 6 ms")
    # 2.5 + 1.5 ms of collectives, of which the device waits for 0.5 and 1.5.
    self.assertEqual(
      planned,
      "8 ms by estimate: compute 6 ms, network 4 ms (2 ms exposed),"
      " to host 1 ms (0 s exposed), from host 2 ms (0 s exposed)",
    )

  def test_what_runs_at_each_step(self):
    seen = self.observe(
      _page(),
      {"lanes": "lanes"},
      f"""{_COLOUR_AT}
      const places = [0.4, 1.4, 2.4, 3.4, 4.4];
      const lanes = Object.fromEntries(LINKS.concat("kernels").map((key) =>
        [key, places.map((step) => colourAt(PANELS[1], step, key))]));
      """,
    )
    busy, hidden, exposed = "busy", "hidden", "exposed"
    self.assertEqual(
      seen["lanes"],
      {
        # At steps 2 and 4 the device waits.
        "kernels": [busy, busy, None, busy, None],
        "collectives": [None, hidden, exposed, None, exposed],
        "to host": [hidden, hidden, hidden, None, None],
        "from host": [None, hidden, hidden, None, None],
      },
    )

  def test_transfers_that_overlap_have_rows_of_their_own(self):
    spans = [
      cases.make_span(n, "collectives", start, end, 1e-3, 0.0)
      for n, start, end in (
        *(("a", 0, 3), ("b", 1, 4), ("c", 2, 5)),
        *(("d", 2, 4), ("e", 4, 5)),
      )
    ]
    arena = cases.timed(cases.make_after(), spans)
    seen = self.observe(
      cases.render(arena, arena),
      {"rows": "packed(MODEL.arenas[0].spans).map((s) => [s.name, s.row])"},
    )
    # Of four at once the last shares a row; what comes later has the first.
    self.assertEqual(
      seen["rows"], [["a", 0], ["b", 1], ["d", 2], ["c", 2], ["e", 0]]
    )

  def test_steps_as_wide_as_they_take(self):
    seen = self.observe(
      _page(),
      {
        "wide": "wide",
        "lanes": "lanes",
        "at": "[0, 0.5, 2, 6.4, 7.9].map((ms) => arena.stepAt(ms * 1e-3))",
        "box": "box",
        "axis": "byId('axis').value",
        "again": "again",
      },
      f"""{_COLOUR_AT}
      byId("axis").value = "time";
      byId("axis").dispatchEvent(new Event("change"));
      for (const panel of PANELS) panel.draw();
      const panel = PANELS[1];
      const arena = panel.arena;
      const edges = [0, 1, 2, 3, 4, 5].map((step) => panel.x(step));
      const wide = edges.slice(1).map(
        (x, k) => Math.round(1000 * (x - edges[k]) / panel.plotWidth));
      const lanes = [0.4, 1.4, 2.4, 3.4, 4.4].map(
        (step) => colourAt(panel, step, "collectives"));
      const [left, , width] = panel.box(0, 0);
      const box = [left - edges[0], width / panel.plotWidth];
      press(document.body, "t");
      const again = [byId("axis").value, STATE.xSpan];
      press(document.body, "t");
      """,
    )
    # Of 8 ms: 1, 2, 0.5, 3 and 1.5.
    self.assertEqual(seen["wide"], [125, 250, 63, 375, 188])
    self.assertEqual(
      seen["lanes"], [None, "hidden", "exposed", None, "exposed"]
    )
    self.assertEqual(seen["at"], [0, 0, 1, 3, 4])
    # The first buffer lives over steps [0, 2): 3 of 8 ms.
    self.assertAlmostEqual(seen["box"][0], 0)
    self.assertAlmostEqual(seen["box"][1], 3 / 8)
    self.assertEqual(seen["axis"], "time")
    self.assertEqual(seen["again"], ["steps", 5])

  def test_hover_tells_what_a_transfer_costs(self):
    seen = self.observe(
      _page(),
      {"tips": "tips", "empty": "empty"},
      """
      const panel = PANELS[1];
      const tips = [];
      const point = (step, key) => {
        const lane = panel.lanes.lanes.find((each) => each.key === key);
        fire(panel, "pointermove", panel.x(step),
             panel.lanesTop + lane.top + 4);
        return byId("tip").hidden ? null : text("tip").split("\\n");
      };
      tips.push(point(1.5, "collectives"), point(4.5, "collectives"),
                point(3.5, "kernels"));
      const empty = point(3.5, "from host");
      """,
    )
    gather, alone, kernel = seen["tips"]
    self.assertEqual(
      gather,
      [
        "gather",
        "network, asynchronous",
        "takes 2.5 ms: 2 ms hidden, 500 µs exposed",
        "steps [1, 3)",
        "collectives.py:5",
      ],
    )
    self.assertEqual(alone[1], "network, nothing runs beside it")
    self.assertEqual(kernel, ["step 3", "3 ms of kernels", "begins at 3.5 ms"])
    self.assertIsNone(seen["empty"])

  def test_the_picture_says_it_in_words_too(self):
    seen = self.observe(
      _page(), {"label": "PANELS[1].over.ariaLabel", "legend": "text('legend')"}
    )
    self.assertIn("network 4 ms (2 ms exposed)", seen["label"])
    self.assertIn("device waits", seen["legend"])


if __name__ == "__main__":
  absltest.main()
