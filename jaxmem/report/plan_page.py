"""The picture of a Plan: its two layouts as the two sides of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxmem import units
from jaxmem.report.layout import live_bytes
from jaxmem.report.timeline import Arena, Rectangle, render_html

if TYPE_CHECKING:
  from jaxmem.report.layout import Layout, PlannedBuffer
  from jaxmem.report.plan import Plan

# A slot that holds an argument and the output that follows it has two values;
# it is drawn when something else moves in between.
_MIN_SLOT_VALUES = 3


def plan_html(plan: Plan) -> str:
  """Returns a page that shows a plan beside XLA's own.

  Args:
    plan: The plan.
  """
  slots = _shared_slots(plan.before) | _shared_slots(plan.after)
  return render_html(
    title=f"{plan.name} on {plan.target}",
    subtitle="Temporary memory by address and schedule step, XLA's own plan and"
    " jaxmem's. Slots of arguments and outputs that also serve temporaries are"
    " drawn above.",
    before=_arena("XLA", plan.before, plan.baseline_temp_bytes, slots),
    after=_arena("jaxmem", plan.after, plan.temp_bytes, slots),
    lower_bound_bytes=plan.lower_bound_bytes,
    facts=_facts(plan),
  )


def _facts(plan: Plan) -> list[tuple[str, str]]:
  return [
    ("Status", plan.status),
    ("XLA's temporaries", units.format_bytes(plan.baseline_temp_bytes)),
    ("Planned temporaries", units.format_bytes(plan.temp_bytes)),
    ("Lower bound", units.format_bytes(plan.lower_bound_bytes)),
    ("Whole program", units.format_bytes(plan.total_bytes)),
    ("Instructions", str(plan.num_instructions)),
    ("Copies removed", str(plan.num_removed_copies)),
    ("jax", plan.versions.get("jax", "")),
  ]


def _by_allocation(layout: Layout) -> dict[str, list[PlannedBuffer]]:
  groups: dict[str, list[PlannedBuffer]] = {}
  for buffer in layout.buffers:
    groups.setdefault(buffer.allocation, []).append(buffer)
  return groups


def _shared_slots(layout: Layout) -> set[str]:
  """Names of the slots that also serve temporaries."""
  groups = _by_allocation(layout)
  return {
    name
    for name, buffers in groups.items()
    if name != "temp" and len(buffers) >= _MIN_SLOT_VALUES
  }


def _arena(
  title: str, layout: Layout, temp_bytes: int, slots: set[str]
) -> Arena:
  groups = _by_allocation(layout)
  temps = groups.pop("temp", [])
  bands = [("temporaries", 0, temp_bytes)]
  rectangles = [_rectangle(b, 0, "temp") for b in temps]
  top = temp_bytes
  for name, buffers in groups.items():
    if name not in slots:
      continue
    size = max(b.offset_bytes + b.size_bytes for b in buffers)
    bands.append((name, top, size))
    kind = "donated" if name.startswith("argument") else "output"
    rectangles.extend(_rectangle(b, top, kind) for b in buffers)
    top += size
  return Arena(
    title=title,
    rectangles=tuple(rectangles),
    height_bytes=temp_bytes,
    live_bytes=tuple(live_bytes(temps, layout.num_steps).tolist()),
    num_steps=layout.num_steps,
    allocations=tuple(bands),
  )


def _rectangle(buffer: PlannedBuffer, base: int, kind: str) -> Rectangle:
  return Rectangle(
    name=buffer.name,
    size_bytes=buffer.size_bytes,
    offset_bytes=base + buffer.offset_bytes,
    start=buffer.start,
    end=buffer.end,
    source=buffer.source,
    kind=kind,
  )
