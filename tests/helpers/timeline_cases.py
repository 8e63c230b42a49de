"""Small pictures of memory for tests of report.timeline."""

import dataclasses
import random

from jaxmem.report import timeline, timing

MIB = 2**20
HOSTILE = (
  "</script><script>throw new Error('ran')</script><img src=x onerror=alert()>"
  "<!--<script>&lt;\u2028'\"$data ${1}"
)


def make_rectangle(name, size_mib, offset_mib, start, end, **kwargs):
  return timeline.Rectangle(
    name=name,
    size_bytes=size_mib * MIB,
    offset_bytes=offset_mib * MIB,
    start=start,
    end=end,
    **kwargs,
  )


def make_arena(title, rectangles, num_steps, **kwargs):
  live = [0] * num_steps
  for rectangle in rectangles:
    for step in range(rectangle.start, rectangle.end):
      live[step] += rectangle.size_bytes
  tops = [r.offset_bytes + r.size_bytes for r in rectangles]
  return timeline.Arena(
    title=title,
    rectangles=tuple(rectangles),
    height_bytes=max(tops, default=0),
    live_bytes=tuple(live),
    num_steps=num_steps,
    **kwargs,
  )


def side(title, offsets, ranges):
  sources = ("model.py:1", "model.py:2", "layer.py:7", "loss.py:3")
  kinds = ("temp", "temp", "donated", "output")
  rows = zip("abcd", (2, 4, 3, 4), offsets, ranges, sources, kinds, strict=True)
  rectangles = [
    make_rectangle(name, size, offset, *live, source=source, kind=kind)
    for name, size, offset, live, source, kind in rows
  ]
  return make_arena(title, rectangles, 5)


def make_before():
  # Live: 2, 6, 9, 7, 4 MiB.
  return side("XLA", (0, 2, 6, 0), ((0, 3), (1, 4), (2, 4), (4, 5)))


def make_after():
  # Live: 2, 6, 4, 3, 4 MiB.
  return side("jaxmem", (0, 2, 0, 0), ((0, 2), (1, 3), (3, 4), (4, 5)))


_MODULES = ("Net/Block_0/Dense", "Net/Block_2/Dense", "Net/Block_10/Norm", "")
_OPERATIONS = ("dot_general", "tanh", "add", "copy")


def told(arena):
  """Returns an arena whose buffers have modules and operations."""
  rectangles = tuple(
    dataclasses.replace(r, module=module, operation=operation)
    for r, module, operation in zip(
      arena.rectangles, _MODULES, _OPERATIONS, strict=True
    )
  )
  return dataclasses.replace(arena, rectangles=rectangles)


def make_span(name, link, start, end, seconds, exposed_s, *, alone=False):
  return timing.Span(
    name=name,
    link=link,
    start=start,
    end=end,
    seconds=seconds,
    exposed_s=exposed_s,
    is_synchronous=alone,
    source="collectives.py:5",
  )


def timed(arena, spans=None):
  """Returns an arena of five steps with something in each lane.

  Kernels take 6 ms: 1, 2 and 3. A gather runs from the first millisecond on and
  takes 2.5, of which the device waits half of one; a sum that has no start
  takes 1.5 more.
  """
  spans = spans or (
    make_span("gather", "collectives", 1, 3, 2.5e-3, 0.5e-3),
    make_span("store", "to host", 0, 3, 1e-3, 0.0),
    make_span("fetch", "from host", 1, 3, 2e-3, 0.0),
    make_span("sum", "collectives", 4, 5, 1.5e-3, 1.5e-3, alone=True),
  )
  seconds = (1e-3, 2e-3, 0.5e-3, 3e-3, 1.5e-3)
  found = timing.Timing(seconds=seconds, spans=tuple(spans))
  return dataclasses.replace(arena, timing=found)


def without_transfers(arena):
  """Returns an arena of five steps, three of which take time."""
  found = timing.Timing(seconds=(1e-3, 2e-3, 0.0, 3e-3, 0.0), spans=())
  return dataclasses.replace(arena, timing=found)


def render(before=None, after=None, **kwargs):
  options: dict = {"title": "train_step", "subtitle": "two layers"}
  options |= {"lower_bound_bytes": 5 * MIB, "facts": [("Status", "feasible")]}
  return timeline.render_html(
    before=before or make_before(),
    after=after or make_after(),
    **options | kwargs,
  )


def render_hostile():
  rectangle = make_rectangle(HOSTILE, 1, 0, 0, 1, source=HOSTILE)
  arena = make_arena(HOSTILE, [rectangle], 1)
  texts = {"title": HOSTILE, "subtitle": HOSTILE, "facts": [(HOSTILE, HOSTILE)]}
  table = timeline.Table(
    header=(HOSTILE,), rows=((HOSTILE,),), links=(HOSTILE,)
  )
  return render(arena, arena, table=table, **texts)


def peak(arena):
  """Returns the most bytes live at any step, and the first such step."""
  most = max(arena.live_bytes)
  return most, arena.live_bytes.index(most)


def many(title, num_buffers, seed):
  draw = random.Random(seed)
  kinds = [*timeline.KIND_COLOURS]
  rectangles = []
  for index in range(num_buffers):
    start = draw.randrange(num_buffers - 1)
    rectangles.append(
      timeline.Rectangle(
        name=f"loop_multiply_add_fusion.{index}",
        size_bytes=256 * draw.randrange(1, 4096),
        offset_bytes=256 * draw.randrange(10**6),
        start=start,
        end=min(num_buffers, start + draw.randrange(1, 300)),
        source=f"model/layers/block.py:{index % 300}",
        kind=kinds[index % len(kinds)],
      )
    )
  return make_arena(title, rectangles, num_buffers)


def busy(title, num_buffers, seed):
  """Returns `many` with modules, a timing, and a collective in twenty steps."""
  arena = many(title, num_buffers, seed)
  draw = random.Random(seed)
  rectangles = tuple(
    dataclasses.replace(
      r, module=f"Net/Block_{k % 24}/Dense_{k % 3}", operation="dot_general"
    )
    for k, r in enumerate(arena.rectangles)
  )
  spans = tuple(
    make_span(f"all-gather.{k}", "collectives", k, k + 15, 1e-5, 1e-6)
    for k in range(0, num_buffers - 20, 20)
  )
  seconds = tuple(1e-5 * draw.random() for _ in range(num_buffers))
  return dataclasses.replace(
    arena,
    rectangles=rectangles,
    timing=timing.Timing(seconds=seconds, spans=spans),
  )
