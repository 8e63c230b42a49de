"""One process that runs one step function, a step at a time, on request.

`python -m jaxmem.demo.worker CASES INDEX COMPILER` compiles the step, prints
one JSON line, and from then on answers every line on stdin by one more step and
one more line. At the end of stdin it prints a last line and exits. A process of
its own is needed because the peak of its resident memory cannot be reset.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import resource
import sys
import time
from typing import Any

import jax
import numpy as np

import jaxmem
from jaxmem.demo import cases

_COMPILERS = {"jax.jit": jax.jit, "jaxmem.jit": jaxmem.jit}


def main(which: str, index: int, compiler: str) -> None:
  """Serves steps of one case until stdin ends."""
  case = getattr(cases, f"{which}_cases")()[index]
  state, batch = case.state(), case.random_batch()
  jitted = _COMPILERS[compiler](case.step, donate_argnums=0)
  compiled = jitted.lower(state, *batch).compile()
  temp_bytes = compiled.memory_analysis().temp_size_in_bytes
  _answer(temp_bytes=temp_bytes, peak_rss_bytes=_peak_rss_bytes())
  losses = []
  for _ in sys.stdin:
    start = time.perf_counter()
    state, loss = jax.block_until_ready(compiled(state, *batch))
    losses.append(loss)
    _answer(seconds=time.perf_counter() - start)
  _answer(
    peak_rss_bytes=_peak_rss_bytes(),
    digest=_digest((state, losses)),
    last_loss=float(losses[-1]) if losses else None,
  )


def _answer(**fields: Any) -> None:
  print(json.dumps(fields), flush=True)


def _peak_rss_bytes() -> int:
  """Returns the most memory that this process has had.

  On Linux getrusage starts with the peak of the process that forked this one,
  so the kernel's own mark is read.
  """
  try:
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
  except (OSError, IndexError):
    pass
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == "darwin" else 1024 * peak


def _digest(tree: Any) -> str:
  """Returns a hash of every bit of every array."""
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(tree):
    digest.update(np.ascontiguousarray(leaf).tobytes())
  return digest.hexdigest()


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
