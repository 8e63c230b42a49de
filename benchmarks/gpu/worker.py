"""Runs one case in this process, which ends with it.

Started by `benchmarks.gpu.campaign`:

    python -m benchmarks.gpu.worker --out=DIR \
      --labels='{"part": "peak", "case": "gpt2_small", "rehearsal": true, ...}'
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import threading
import time

from absl import app, flags

from benchmarks.gpu import machine, parts, store
from benchmarks.gpu.case import Context

_PROBE = flags.DEFINE_bool("probe", False, "Only print jax's device, as JSON.")
_OUT = flags.DEFINE_string("out", ".", "Folder of the campaign.")
_LABELS = flags.DEFINE_string("labels", "{}", "Of the case's rows, as JSON.")
_PARENT = flags.DEFINE_integer("parent", 0, "Process to end with, if any.")
_LOOK_S = 0.5


def main(argv: list[str]) -> None:
  """Measures the case."""
  del argv
  if _PROBE.value:
    print(machine.describe_device())
    return
  if _PARENT.value:
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def _end_with_parent() -> None:
  """Ends this process, and all that it started, once its parent is gone.

  A campaign that is killed cannot end its case, which would go on taking the
  card's memory from the campaign that is started again.
  """
  while os.getppid() == _PARENT.value:
    time.sleep(_LOOK_S)
  os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
  app.run(main)
