"""Runs one case in this process, which ends with it.

Started by `benchmarks.gpu.campaign`:

    python -m benchmarks.gpu.worker --out=DIR \
      --labels='{"part": "peak", "case": "gpt2_small", "rehearsal": true, ...}'
"""

from __future__ import annotations

import json
import pathlib

from absl import app, flags

from benchmarks.gpu import machine, parts, store
from benchmarks.gpu.case import Context

_PROBE = flags.DEFINE_bool("probe", False, "Only print jax's device, as JSON.")
_OUT = flags.DEFINE_string("out", ".", "Folder of the campaign.")
_LABELS = flags.DEFINE_string("labels", "{}", "Of the case's rows, as JSON.")


def main(argv: list[str]) -> None:
  """Measures the case."""
  del argv
  if _PROBE.value:
    print(machine.describe_device())
    return
  import jax

  # Planning happens while a step is compiled.
  jax.config.update("jax_enable_compilation_cache", False)
  labels = json.loads(_LABELS.value)
  folder = pathlib.Path(_OUT.value)
  part = parts.by_name(labels["part"])
  is_rehearsal = labels["rehearsal"]
  name = labels["case"]
  part.run(
    Context(
      case=next(c for c in part.cases(is_rehearsal) if c.name == name),
      is_rehearsal=is_rehearsal,
      folder=folder,
      recorder=store.Recorder(folder / store.ROWS_FILE, labels),
    )
  )


if __name__ == "__main__":
  app.run(main)
