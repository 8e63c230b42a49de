"""How many bytes a program could keep of what it makes a second time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmem.graph import ComputationGraph, liveness


def kept_room(entry: ComputationGraph, scope: str, spare_bytes: int) -> int:
  """Returns the bytes that a program has room for until it makes them again.

  What is kept instead of made again is live from the one time to the other:
  all of it at the end of the forward pass, nothing at the end of the backward
  pass. So a program whose peak comes late, as where the gradients of all
  weights are live together, has room for more than is left at its peak.

  Args:
    entry: The program, in the order in which it runs.
    scope: A name scope of all that it makes a second time.
    spare_bytes: What is left at its peak; not negative.

  Returns:
    Bytes, if what is kept is spread over the program as is what it makes
    again; at least those left at the peak.
  """
  names = [i.proto.metadata.op_name for i in entry.instructions]
  shares = _kept_shares(names, scope)
  live = liveness.live_bytes(entry.graph, range(len(names)))
  rooms = live.max(initial=0) - live + spare_bytes
  is_kept = shares > 0
  if not is_kept.any():
    return spare_bytes
  return int((rooms[is_kept] / shares[is_kept]).min())


def _kept_shares(names: Sequence[str], scope: str) -> np.ndarray:
  """Returns what share of all that is kept would be live at each step.

  An operation that is made again has the name of the first, and the scope. Of
  several of one name the last is made again first, as backward passes do.

  Args:
    names: Of operations, in the order in which they run.
    scope: See `kept_room`.

  Returns:
    float64 array `[num_steps]`.
  """
  change = np.zeros(len(names))
  num_kept = 0
  made: dict[str, list[int]] = {}
  for step, name in enumerate(names):
    scopes = name.split("/")
    if scope not in scopes:
      made.setdefault(name, []).append(step)
      continue
    scopes.remove(scope)
    if first := made.get("/".join(scopes)):
      change[first.pop()] += 1
      change[step] -= 1
      num_kept += 1
  shares = change.cumsum()
  return shares / max(1, num_kept)
