"""The tables of the page of a picture: sorted, filtered, copied, by keys."""

import browser_pages
import timeline_cases as cases
from absl.testing import absltest

from jaxmem.report.edits_report import edits_html
from jaxmem.report.plan_data import EditCost


def _page(**kwargs):
  return cases.render(
    cases.told(cases.make_before()), cases.told(cases.make_after()), **kwargs
  )


class BufferTableTest(browser_pages.BrowserTest):
  def test_sorts_by_every_column(self):
    seen = self.observe(
      _page(),
      {"titles": "heads().map((h) => h.innerText.trim())", "sorted": "sorted"},
      """
      byId("scope").value = "all";
      byId("scope").dispatchEvent(new Event("change"));
      const sorted = heads().map((head) => {
        const button = head.querySelector("button");
        const orders = [0, 1].map(() => {
          button.click();
          return [head.ariaSort, names().join("")];
        });
        const others = heads().filter(
          (h) => h !== head && h.ariaSort !== "none").length;
        return [...orders, others];
      });
      """,
    )
    self.assertEqual(
      [title.rstrip(" ▲▼") for title in seen["titles"]],
      [
        *("Buffer", "Size", "jaxmem from", "jaxmem to", "XLA from", "XLA to"),
        *("Kind", "Layer", "Source"),
      ],
    )
    ascending, descending = "ascending", "descending"
    self.assertEqual(
      seen["sorted"],
      [
        [[ascending, "abcd"], [descending, "dcba"], 0],
        # 2, 4, 3 and 4 MiB; what is equal keeps its place.
        [[descending, "dbca"], [ascending, "acdb"], 0],
        # From 0, 1, 3, 4 to 2, 3, 4, 5; XLA's 0, 1, 2, 4 to 3, 4, 4, 5.
        [[ascending, "abcd"], [descending, "dcba"], 0],
        [[ascending, "abcd"], [descending, "dcba"], 0],
        [[ascending, "abcd"], [descending, "dcba"], 0],
        [[ascending, "acbd"], [descending, "dcba"], 0],
        # donated, output, temp, temp.
        [[ascending, "cdba"], [descending, "badc"], 0],
        # None, block 0, block 2, block 10.
        [[ascending, "dabc"], [descending, "cbad"], 0],
        # layer.py, loss.py, model.py:1, model.py:2.
        [[ascending, "cdab"], [descending, "badc"], 0],
      ],
    )

  def test_lists_the_peak_all_buffers_and_what_is_found(self):
    seen = self.observe(
      _page(),
      {"seen": "seen"},
      """
      const seen = [];
      const note = () => seen.push([
        byId("scope").value, text("list-title"), names().join("")]);
      note();
      byId("scope").value = "all";
      byId("scope").dispatchEvent(new Event("change")); note();
      type("norm"); note();
      type(""); note();
      tap(PANELS[0], PANELS[0].x(3.6), PANELS[0].stripTop + 40); note();
      """,
    )
    peak = ["peak", "jaxmem at the peak, step 1: 6.00 MiB live, 2 buffers"]
    self.assertEqual(
      seen["seen"],
      [
        [*peak, "ba"],
        ["all", "All 4 buffers", "bdca"],
        ["all", "Buffers that match the search: 1 buffer, 3.00 MiB", "c"],
        [*peak, "ba"],
        ["step", "XLA at step 3: 7.00 MiB live, 2 buffers", "bc"],
      ],
    )

  def test_only_rows_in_sight_are_there(self):
    arena = cases.many("XLA", 2000, 0)
    seen = self.observe(
      cases.render(arena, arena),
      {
        "count": "byId('list').ariaRowCount",
        "rows": "rows",
        "end": "[names().at(-1), lines().at(-1).ariaRowIndex]",
        "height": "[byId('rows').scrollHeight, byId('rows').clientHeight]",
      },
      """
      listAll();
      heads()[0].querySelector("button").click();
      const rows = [lines().length];
      byId("rows").scrollTop = 20000;
      TABLE.render();
      rows.push(lines().length, names()[0]);
      byId("rows").scrollTop = 1e9;
      TABLE.render();
      """,
    )
    self.assertEqual(seen["count"], "2001")
    first, second, name = seen["rows"]
    self.assertLess(max(first, second), 60)
    # 20000 pixels are 714 rows of 28; eight more are kept ready.
    self.assertEqual(name, "loop_multiply_add_fusion.706")
    self.assertEqual(seen["end"], ["loop_multiply_add_fusion.1999", "2001"])
    self.assertLess(seen["height"][1], 440)
    self.assertGreater(seen["height"][0], 2000 * 28)

  def test_keys(self):
    arena = cases.many("XLA", 500, 0)
    seen = self.observe(
      cases.render(arena, arena),
      {"seen": "seen", "selected": "MODEL.names[STATE.selected[1]]"},
      """
      listAll();
      heads()[0].querySelector("button").click();
      const table = byId("list");
      table.focus();
      const seen = [];
      for (const key of ["ArrowDown", "ArrowDown", "ArrowUp", "PageDown",
                         "End", "Home", "ArrowDown"]) {
        press(table, key);
        const active = byId(table.getAttribute("aria-activedescendant"));
        seen.push([TABLE.active, active.classList.contains("active")]);
      }
      press(table, "Enter");
      """,
    )
    places = [place for place, _ in seen["seen"]]
    self.assertEqual(places[:3], [0, 1, 0])
    self.assertGreater(places[3], 5)
    self.assertEqual(places[4:], [499, 0, 1])
    self.assertTrue(all(is_active for _, is_active in seen["seen"]))
    self.assertEqual(seen["selected"], "loop_multiply_add_fusion.1")

  def test_copies_all_rows(self):
    arena = cases.many("XLA", 300, 0)
    seen = self.observe(
      cases.render(arena, arena),
      {"copied": "copied", "said": "text('copied')"},
      """
      let copied = "";
      Object.defineProperty(navigator, "clipboard", {
        value: { writeText: async (words) => { copied = words; } } });
      listAll();
      await copyTable();
      """,
    )
    head, *lines = seen["copied"].split("\n")
    self.assertEqual(
      head.split("\t")[:3], ["Buffer", "Size (bytes)", "XLA from"]
    )
    self.assertLen(lines, 300)
    sizes = [int(line.split("\t")[1]) for line in lines]
    self.assertEqual(
      sizes, sorted((r.size_bytes for r in arena.rectangles), reverse=True)
    )
    self.assertEqual(seen["said"], "300 rows copied")

  def test_copies_where_there_is_no_clipboard(self):
    seen = self.observe(
      _page(),
      {"copied": "copied", "said": "text('copied')", "left": "left"},
      """
      Object.defineProperty(navigator, "clipboard", { value: undefined });
      let copied = "";
      document.execCommand = (command) => {
        copied = `${command}: ${document.activeElement.value}`;
        return true;
      };
      byId("copy").click();
      await new Promise((done) => setTimeout(done, 50));
      const left = document.querySelectorAll("textarea").length;
      """,
    )
    self.assertStartsWith(seen["copied"], "copy: Buffer\tSize (bytes)\t")
    self.assertEqual(seen["copied"].count("\n"), 2)
    self.assertEqual(seen["said"], "2 rows copied")
    self.assertEqual(seen["left"], 0)

  def test_a_cell_is_one_line(self):
    rectangle = cases.make_rectangle(
      "a\tb\nc", 1, 0, 0, 1, source="/x/y/z.py:3"
    )
    arena = cases.make_arena("XLA", [rectangle], 1)
    seen = self.observe(
      cases.render(arena, arena),
      {
        "text": "TABLE.asText().split('\\n').map((l) => l.split('\\t'))",
        "shown": "lines()[0].cells[8].innerText",
      },
    )
    _, row = seen["text"]
    self.assertEqual((row[0], row[8]), ("a b c", "/x/y/z.py:3"))
    self.assertEqual(seen["shown"], "…/y/z.py:3")


class EditsTest(browser_pages.BrowserTest):
  def test_what_the_limit_cost_can_be_sorted(self):
    edits = [
      EditCost(
        kind=kind, name=name, source="f.py:1", freed_bytes=size, extra_s=extra
      )
      for kind, name, size, extra in (
        ("recompute", "fusion.10", 8 << 20, 2e-3),
        ("offload", "fusion.9", 4 << 20, 0.0),
        ("gather again", "all-gather.1", 16 << 20, 1e-3),
        ("all else", "packing", -(1 << 20), -0.5e-3),
      )
    ]
    seen = self.observe(
      _page(below=edits_html(edits)),
      {
        "orders": "orders",
        "total": "table.tFoot.rows[0].innerText.split('\\t')",
        "sorts": "sorts",
      },
      """
      const table = byId("edits");
      const orders = [], sorts = [];
      for (const place of [0, 1, 2, 2, 3]) {
        const head = table.tHead.rows[0].cells[place];
        head.querySelector("button").click();
        sorts.push(head.ariaSort);
        orders.push([...table.tBodies[0].rows].map(
          (line) => line.cells[1].innerText[0]).join(""));
      }
      """,
    )
    # Their first letters: fusions are named alike, and told by their kinds.
    self.assertEqual(seen["orders"], ["paff", "affp", "affp", "pffa", "fafp"])
    self.assertEqual(
      seen["sorts"],
      ["ascending", "ascending", "descending", "ascending", "descending"],
    )
    self.assertEqual(
      [cell.strip() for cell in seen["total"]][:4],
      ["together", "", "27.0 MiB", "+2.500 ms"],
    )


if __name__ == "__main__":
  absltest.main()
