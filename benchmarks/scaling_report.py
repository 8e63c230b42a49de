"""What `benchmarks.scaling_benchmark` measured, as a section and as a plot."""

from collections.abc import Sequence

from benchmarks import svg_plot
from benchmarks.page import Row, by_step, table

PLOT = "scaling.svg"
EDITS_PLOT = "scaling-limit.svg"

_TEXT = f"""\
## Planning time by size

`python -m benchmarks.scaling_benchmark
--output=benchmarks/results/scaling.jsonl`

CPU seconds of all between XLA's callback and the returned module, by the number
of instructions on the timeline: steps of `benchmarks/deep_steps.py`, for the
CPU. Profiles of them showed where time could be saved; how much is searched was
not chosen by them. *Until the schedule* is what XLA takes before
it shows the module, *XLA* its whole compile, code generation included, where
that was measured. *us* is microseconds per instruction at the default effort.
Both cores were shared with other programs, which CPU seconds hardly feel.

Most of what is left at small sizes is no search: reading the module, its
buffers, their graph, and the predictions of what XLA allocates. So
`effort="fast"` saves less than half. Modules of *recurrent* grow with the
square of their time steps, as XLA fuses sums over all of them: microseconds per
instruction grow with it. Beyond 10,000 instructions, predicting one assignment
takes time with the square of what is live at once.

![CPU seconds by instructions, both logarithmic]({PLOT})
"""


_EDITS_TEXT = f"""\
### Under a limit, and placement

`python -m benchmarks.scaling_benchmark --parts=limit,placement
--sizes=500,1000,3000,10000,20000,30000
--output=benchmarks/results/scaling.jsonl`

The same modules under a limit that leaves three quarters of the planned order's
temporaries, for edits of that order: CPU seconds from XLA's callback to the
chosen edits, reading and order included, by effort. *us* is microseconds per
instruction at the default effort, *extra* what the edits cost by estimate, as a
part of the step. *Placement* gives every buffer of the planned order an offset
in one arena (`jaxmem.placement.place`), its *gap* is to the proven lower bound.
The second core compiled other programs meanwhile.

With `effort="fast"` the first plan that fits takes 0.3 to 0.6 of the time;
where nothing fits, nearly all is tried all the same.

Above some thousand instructions limits grow a little faster than the order: in
a greedy run each change of a plan counts live bytes anew, over all steps. No
plan of *recurrent*, whose instructions read some twenty values each, was found.
At 10,000 instructions *decoder* and *experts*, and at 20,000 *residual*, are
planned for 32 MiB of temporaries, which no run maps anew: more runs twice for
that, and planning takes longer than their size tells.

![CPU seconds by instructions, both logarithmic]({EDITS_PLOT})
"""


def plot(rows: Sequence[Row]) -> str:
  """Returns CPU seconds over instructions, one line per step, and XLA's."""
  rows = _orders(rows)
  series = [
    (f"plan: {step}", [(r["num_instructions"], _planning_s(r)) for r in here])
    for step, here in by_step(rows).items()
  ]
  decoder = by_step(rows).get("decoder", [])
  for name, key in (("schedule", "schedule_s"), ("compile", "compile_s")):
    points = [(r["num_instructions"], r[key]) for r in decoder if r[key]]
    if points:
      series.append((f"XLA {name}: decoder", points))
  return svg_plot.lines(
    "CPU seconds to plan the order, default effort",
    "instructions",
    series,
    is_logarithmic=True,
  )


def edits_plot(rows: Sequence[Row]) -> str:
  """Returns CPU seconds of limits, a line per step, and of all placements."""
  rows = _edits(rows)
  series = [
    (f"limit: {step}", [(r["num_instructions"], _limit_s(r)) for r in here])
    for step, here in by_step(rows).items()
  ]
  placed = [(r["num_instructions"], r["placement"]["seconds"]) for r in rows]
  series.append(("placement: all", sorted(placed)))
  return svg_plot.lines(
    "CPU seconds to fit a limit, and to place all buffers",
    "instructions",
    series,
    is_logarithmic=True,
  )


def section(rows: Sequence[Row]) -> str:
  """Returns the section of docs/results.md; empty if there are no rows."""
  text = _orders_section(_orders(rows))
  edits = _edits(rows)
  return f"{text}\n{_edits_section(edits)}" if edits else text


def _orders(rows: Sequence[Row]) -> list[Row]:
  return [row for row in rows if "efforts" in row]


def _edits(rows: Sequence[Row]) -> list[Row]:
  return [row for row in rows if "limit" in row]


def _edits_section(rows: Sequence[Row]) -> str:
  titles = (
    "step",
    "instructions",
    "limit, s",
    "us",
    "at fast, s",
    "fast by normal",
    "extra %",
    "fast extra %",
    "buffers",
    "placement, s",
    "us each",
    "gap %",
  )
  return f"{_EDITS_TEXT}\n{table(titles, map(_edits_cells, rows))}"


def _edits_cells(row: Row) -> list[str]:
  normal, fast = (row["limit"][effort] for effort in ("normal", "fast"))
  placed = row["placement"]
  gap = placed["height_bytes"] / placed["lower_bound_bytes"] - 1.0
  return [
    row["step"],
    f"{row['num_instructions']:,}",
    f"{normal['seconds']:.2f}",
    f"{normal['us_each']:,.0f}",
    f"{fast['seconds']:.2f}",
    f"{fast['seconds'] / normal['seconds']:.2f}",
    *(
      f"{100 * limit['extra']:.2f}" if "extra" in limit else "no plan"
      for limit in (normal, fast)
    ),
    f"{placed['num_buffers']:,}",
    f"{placed['seconds']:.3f}",
    f"{placed['us_each']:.0f}",
    f"{100 * gap:.2f}",
  ]


def _limit_s(row: Row) -> float:
  return row["limit"]["normal"]["seconds"]


def _orders_section(rows: Sequence[Row]) -> str:
  if not rows:
    return ""
  titles = (
    "step",
    "instructions",
    "until the schedule, s",
    "XLA, s",
    "plan, s",
    "us",
    "plan at fast, s",
    "XLA MB",
    "plan MB",
    "fast MB",
    "bound MB",
  )
  return f"{_TEXT}\n{table(titles, map(_cells, rows))}"


def _planning_s(row: Row) -> float:
  return row["efforts"]["normal"]["planning_s"]


def _cells(row: Row) -> list[str]:
  normal, fast = (row["efforts"][effort] for effort in ("normal", "fast"))
  return [
    row["step"],
    f"{row['num_instructions']:,}",
    f"{row['schedule_s']:.2f}",
    f"{row['compile_s']:.1f}" if row["compile_s"] else "",
    f"{normal['planning_s']:.2f}",
    f"{normal['us_per_instruction']:.0f}",
    f"{fast['planning_s']:.2f}",
    *(
      f"{num_bytes / 1e6:.2f}"
      for num_bytes in (
        row["xla_temp_bytes"],
        normal["temp_bytes"],
        fast["temp_bytes"],
        normal["lower_bound_bytes"],
      )
    ),
  ]
