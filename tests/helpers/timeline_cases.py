"""Small pictures of memory for tests of report.timeline."""

import random

from jaxmem.report import timeline

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
        kind=timeline.KINDS[index % 4],
      )
    )
  return make_arena(title, rectangles, num_buffers)
