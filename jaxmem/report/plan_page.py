"""The page of a plan: its two layouts as the two sides of a picture.

`Plan.save_html` calls `plan_html`, which says what to draw: which buffers, in
which bands. `timeline.render_html` draws them, and knows nothing of plans.
"""

import string
from collections.abc import Sequence

from jaxmem.report.edits_report import edits_html
from jaxmem.report.layout import Layout, PlannedBuffer, live_bytes
from jaxmem.report.picture import layouts_svg
from jaxmem.report.plan_data import EditCost
from jaxmem.report.timeline import Arena, Rectangle, Table, render_html
from jaxmem.report.timing import Timing

# A slot that holds an argument and the output that follows it has two values;
# it is drawn when something else moves in between.
_MIN_SLOT_VALUES = 3
_PEAK = string.Template(
  '<section class="list" aria-labelledby="peak-title">'
  '<h2 id="peak-title">What the bytes at the peak are</h2>$trees</section>'
)


def plan_html(
  title: str,
  before: Layout,
  after: Layout,
  *,
  lower_bound_bytes: int,
  facts: Sequence[tuple[str, str]],
  table: Table | None = None,
  timings: tuple[Timing, Timing] | None = None,
  edits: Sequence[EditCost] = (),
  explanation: str = "",
) -> str:
  """Returns a page that shows a plan beside XLA's own.

  Args:
    title: The function's name, and the device's.
    before: XLA's own plan.
    after: jaxmem's.
    lower_bound_bytes: No order of the program has smaller temporaries.
    facts: Pairs of a label and a value, shown above the picture.
    table: Shown above the facts, if there is one.
    timings: When the steps of both run, if that is known.
    edits: What a byte limit cost, edit by edit.
    explanation: HTML that says what the bytes at the peak are; shown below the
      picture.
  """
  slots = _shared_slots(before) | _shared_slots(after)
  own_timing, timing = timings or (None, None)
  below = edits_html(edits) if edits else ""
  if explanation:
    below += _PEAK.substitute(trees=explanation)
  return render_html(
    title=title,
    subtitle="Temporary memory by address and schedule step, XLA's own plan and"
    " jaxmem's. Slots of arguments and outputs that also serve temporaries are"
    " drawn above.",
    before=_arena("XLA", before, slots, own_timing),
    after=_arena("jaxmem", after, slots, timing),
    lower_bound_bytes=lower_bound_bytes,
    facts=facts,
    table=table,
    below=below,
    still=layouts_svg(before, after),
  )


def _by_allocation(layout: Layout) -> dict[str, list[PlannedBuffer]]:
  groups: dict[str, list[PlannedBuffer]] = {"temp": []}
  for buffer in layout.buffers:
    groups.setdefault(buffer.allocation, []).append(buffer)
  return groups


def _shared_slots(layout: Layout) -> set[str]:
  """Names of the slots that also serve temporaries."""
  groups = _by_allocation(layout).items()
  found = {name for name, group in groups if len(group) >= _MIN_SLOT_VALUES}
  return found - {"temp"}


def _arena(
  title: str, layout: Layout, slots: set[str], timing: Timing | None
) -> Arena:
  groups = _by_allocation(layout)
  temps = groups.pop("temp")
  top = layout.temp_bytes
  bands = [("temporaries", 0, top)]
  rectangles = [_rectangle(b, 0, "temp") for b in temps]
  for name, buffers in groups.items():
    if name in slots:
      size = max(b.offset_bytes + b.size_bytes for b in buffers)
      bands.append((name, top, size))
      kind = "donated" if name.startswith("argument") else "output"
      rectangles.extend(_rectangle(b, top, kind) for b in buffers)
      top += size
  return Arena(
    title=title,
    rectangles=tuple(rectangles),
    height_bytes=layout.temp_bytes,
    live_bytes=tuple(live_bytes(temps, layout.num_steps).tolist()),
    num_steps=layout.num_steps,
    allocations=tuple(bands),
    timing=timing,
  )


def _rectangle(buffer: PlannedBuffer, base: int, slot_kind: str) -> Rectangle:
  return Rectangle(
    name=buffer.name,
    size_bytes=buffer.size_bytes,
    offset_bytes=base + buffer.offset_bytes,
    start=buffer.start,
    end=buffer.end,
    source=buffer.source,
    kind=buffer.kind or slot_kind,
    module=buffer.module,
    operation=buffer.operation,
  )
