"""Draws buffers on one HTML page, address against schedule step.

`plan_page.plan_html` says which rectangles to draw, and calls `render_html`;
nothing here knows what a plan is. The browser runs the scripts beside this
file; timeline_page.js puts together what the others do.

Every buffer is a rectangle, before and after side by side on one scale, with
the live bytes and their lower bound below, and under them what runs when. The
page holds its data, style and script, opens from disk and asks the network for
nothing (its content security policy forbids it).

The form is that in which the storage allocation literature draws a placement;
see Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
Hardware-Accelerated Machine Learning", ASPLOS 2023.
"""

import dataclasses
import functools
import html
import importlib.resources
import json
import string
import urllib.parse
from collections.abc import Sequence

from jaxmem.report.timing import Timing

# The colour of each kind; any other kind is grey. Alike in colour is what is
# seldom in one place: a layer's parameters and its results.
KIND_COLOURS = {
  "residuals": 0,
  "intermediate values": 0,
  "temp": 0,
  "activations": 1,
  "inputs": 1,
  "activation gradients": 2,
  "donated": 2,
  "parameter gradients": 3,
  "parameters": 4,
  "outputs": 4,
  "output": 4,
  "optimizer update": 5,
  "optimizer state": 5,
  "communication": 6,
  "recomputed": 7,
  "copies of arguments": 8,
}
_GREY = 9
_LINKS = ("collectives", "to host", "from host")

# In the order in which the browser must read them: the last one starts.
_SCRIPTS = (
  "timeline_model.js",
  "timeline_lanes.js",
  "timeline_frame.js",
  "timeline_panel.js",
  "timeline_table.js",
  "timeline_controls.js",
  "timeline_pointers.js",
  "timeline_page.js",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
  """A buffer in time and address space.

  Attributes:
    name: The name under which the page shows and finds it; the same buffer has
      the same name before and after.
    size_bytes: Height, in bytes.
    offset_bytes: Lowest address, in bytes from the bottom of the picture.
    start: First schedule step at which it is live.
    end: One past the last step; a buffer with `end == start` is listed but not
      drawn.
    source: Source line, or empty if unknown.
    kind: What it is; those in `KIND_COLOURS` have a colour of their own.
    module: Scopes that it comes from, "Net/Block_3", or empty.
    operation: What makes it, or empty.
  """

  name: str
  size_bytes: int
  offset_bytes: int
  start: int
  end: int
  source: str = ""
  kind: str = "temp"
  module: str = ""
  operation: str = ""

  def __post_init__(self) -> None:
    if self.size_bytes < 0 or self.offset_bytes < 0:
      raise ValueError(
        f"Buffer {self.name!r} must have a size and an offset of at least 0 "
        f"bytes, got {self.size_bytes} and {self.offset_bytes}."
      )
    if not 0 <= self.start <= self.end:
      raise ValueError(
        f"Buffer {self.name!r} must have 0 <= start <= end, got "
        f"[{self.start}, {self.end})."
      )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
  """One side of the picture.

  Attributes:
    title: Its heading, such as "XLA".
    rectangles: Every buffer.
    height_bytes: The temporary memory that the program asks for, in bytes.
    live_bytes: Bytes live while each step executes, `[num_steps]`.
    num_steps: Steps in the schedule.
    allocations: Bands `(name, offset_bytes, size_bytes)` if several allocations
      are drawn one above the other, the heap of temporaries first. Empty
      means one band of `height_bytes`.
    timing: When the steps run; None if that is not known.
  """

  title: str
  rectangles: tuple[Rectangle, ...]
  height_bytes: int
  live_bytes: tuple[int, ...]
  num_steps: int
  allocations: tuple[tuple[str, int, int], ...] = ()
  timing: Timing | None = None

  def __post_init__(self) -> None:
    if len(self.live_bytes) != self.num_steps:
      raise ValueError(
        f"Arena {self.title!r} must have live_bytes for each of its "
        f"{self.num_steps} steps, got {len(self.live_bytes)}."
      )
    if self.timing is not None:
      self.timing.check(self.num_steps)
    for rectangle in self.rectangles:
      if rectangle.end > self.num_steps:
        raise ValueError(
          f"Buffer {rectangle.name!r} must end within the {self.num_steps} "
          f"steps of arena {self.title!r}, got {rectangle.end}."
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
  """A table above the picture.

  Attributes:
    header: What the columns are.
    rows: Cells, as many in each row as columns.
    links: For each row the file beside this page that its first cell leads to;
      empty for none.
  """

  header: tuple[str, ...]
  rows: tuple[tuple[str, ...], ...]
  links: tuple[str, ...]


def render_html(
  *,
  title: str,
  subtitle: str,
  before: Arena,
  after: Arena,
  lower_bound_bytes: int | None,
  facts: Sequence[tuple[str, str]] = (),
  table: Table | None = None,
  below: str = "",
  still: str = "",
) -> str:
  """Returns the page, UTF-8 text that loads no other files.

  Deterministic: the same arguments give the same text.

  Args:
    title: Heading and window title. Like all text here it is escaped.
    subtitle: One line below it, such as the program and the device.
    before: The left side, usually XLA's own plan.
    after: The right side.
    lower_bound_bytes: What no order can go below, in bytes, drawn as a line
      over the live bytes of both sides. None if unknown.
    facts: Pairs of a label and a value, shown in this order above the picture.
    table: Shown above the picture and the facts, if there is one.
    below: HTML, shown as it is below the picture. A table in it of the class
      "sortable" can be sorted by its columns; of those of the class "number",
      by what is in `data-value`.
    still: HTML, shown in the place of the picture where no script may run.
  """
  data = _encode((before, after), lower_bound_bytes)
  return string.Template(_read("timeline.html")).substitute(
    title=html.escape(title),
    subtitle=html.escape(subtitle),
    table="" if table is None else _table_html(table),
    facts="\n".join(
      f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd></div>"
      for label, value in facts
    ),
    below=below,
    still=still,
    style=_read("timeline.css"),
    script="\n".join(_read(name) for name in _SCRIPTS),
    data=_script_safe(json.dumps(data, separators=(",", ":"))),
  )


def _table_html(table: Table) -> str:
  heads = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
  rows = []
  for cells, link in zip(table.rows, table.links, strict=True):
    first, *others = map(html.escape, cells)
    if link:
      # Names of files need not be UTF-8.
      address = urllib.parse.quote(link, errors="surrogateescape")
      first = f'<a href="{address}">{first}</a>'
    rows.append("".join(f"<td>{cell}</td>" for cell in (first, *others)))
  body = "\n".join(f"<tr>{row}</tr>" for row in rows)
  return (
    f'<table class="functions"><thead><tr>{heads}</tr></thead>\n'
    f"<tbody>{body}</tbody></table>"
  )


def _encode(
  arenas: Sequence[Arena], lower_bound_bytes: int | None
) -> dict[str, object]:
  """Columns rather than objects, and each text once, to keep the page small."""
  texts: dict[str, dict[str, int]] = {
    key: {} for key in ("name", "source", "kind", "module", "operation")
  }
  columns = [_encode_arena(arena, texts) for arena in arenas]
  return {
    "lower_bound": lower_bound_bytes,
    "kind_colours": [KIND_COLOURS.get(k, _GREY) for k in texts["kind"]],
    "arenas": columns,
    **{f"{key}s": list(found) for key, found in texts.items()},
  }


def _encode_arena(
  arena: Arena, texts: dict[str, dict[str, int]]
) -> dict[str, object]:
  rectangles = arena.rectangles
  return {
    "title": arena.title,
    "height": arena.height_bytes,
    "steps": arena.num_steps,
    "live": arena.live_bytes,
    "bands": arena.allocations,
    **{
      key: [found.setdefault(getattr(r, key), len(found)) for r in rectangles]
      for key, found in texts.items()
    },
    "size": [r.size_bytes for r in rectangles],
    "offset": [r.offset_bytes for r in rectangles],
    "start": [r.start for r in rectangles],
    "end": [r.end for r in rectangles],
    **_encode_timing(arena.timing),
  }


def _encode_timing(timing: Timing | None) -> dict[str, object]:
  if timing is None:
    return {"seconds": [], "spans": []}
  return {
    "seconds": [_rounded(s) for s in timing.seconds],
    "spans": [
      (
        span.name,
        _LINKS.index(span.link),
        span.start,
        span.end,
        _rounded(span.seconds),
        _rounded(span.exposed_s),
        int(span.is_synchronous),
        span.source,
      )
      for span in timing.spans
    ],
  }


def _rounded(seconds: float) -> float:
  """Returns an estimate with the digits that anybody can see."""
  return float(f"{seconds:.5g}") if seconds else 0


def _script_safe(text: str) -> str:
  """Escapes JSON so that no name can end the script element or open another.

  The three characters occur only inside JSON strings, where \\u003c and the
  like mean the same.
  """
  for character in "<>&":
    text = text.replace(character, f"\\u{ord(character):04x}")
  return text


@functools.cache
def _read(name: str) -> str:
  folder = importlib.resources.files("jaxmem.report")
  return folder.joinpath(name).read_text(encoding="utf-8")
