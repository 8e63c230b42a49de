"""Draws the picture at the top of the README: memory of a step over its course.

    python -m benchmarks.readme_picture

writes docs/before-and-after.svg. The step is one of docs/devices.md: a decoder
whose parameters are sharded over eight H200s, none of which is here. Bytes are
those of one device, live in the temporaries that XLA allocates, by jaxmem's
model of XLA's buffer assignment; those in the legend are XLA's own figures.
"""

from __future__ import annotations

import pathlib

from absl import app, flags

import jaxmem
from benchmarks import svg_plot
from benchmarks.sharded import DecoderSize, decoder
from jaxmem.report import Communication, Plan, layout

_LAYERS = flags.DEFINE_integer("layers", 32, "How many blocks.", lower_bound=1)
_OUTPUT = flags.DEFINE_string(
  "output",
  str(pathlib.Path(__file__).parents[1] / "docs" / "before-and-after.svg"),
  "The file to write.",
)
_NUM_DEVICES = 8


def main(argv: list[str]) -> None:
  """Plans the step and draws it."""
  del argv
  step = decoder(
    jaxmem.devices("h200", _NUM_DEVICES),
    tensor=1,
    num_layers=_LAYERS.value,
    size=DecoderSize(),
  )
  plan = jaxmem.plan(step.fun, *step.args, donate_argnums=0)
  text = drawn(plan, f"{step.name}, on {_NUM_DEVICES} x H200")
  pathlib.Path(_OUTPUT.value).write_text(text, encoding="utf-8")
  print(plan)


def drawn(plan: Plan, title: str) -> str:
  """Returns the picture of a plan: its live bytes, behind them those of XLA."""
  sides = (
    ("XLA", plan.before, plan.baseline_temp_bytes, plan.baseline_communication),
    ("jaxmem", plan.after, plan.temp_bytes, plan.communication),
  )
  return svg_plot.areas(
    f"{title}: temporary memory of one of them",
    "the step, from its first operation to its last",
    [
      (_legend(name, temp_bytes, own), _live_gb(side))
      for name, side, temp_bytes, own in sides
    ],
    unit="GB",
  )


def _legend(name: str, temp_bytes: int, own: Communication | None) -> str:
  words = f"{name}: {temp_bytes / 1e9:.2f} GB"
  return f"{words}, {1e3 * own.step_s:.1f} ms by estimate" if own else words


def _live_gb(side: layout.Layout) -> list[float]:
  temps = [b for b in side.buffers if b.allocation == "temp"]
  live = layout.live_bytes(temps, side.num_steps)
  return [size / 1e9 for size in live.tolist()]


if __name__ == "__main__":
  app.run(main)
