"""What called computations need besides what their callers see."""

from __future__ import annotations

from jaxmem_hlo.assignment import AssignmentModel

from jaxmem.graph import liveness
from jaxmem.graph.hlo_graph import CalleePeak, from_hlo


def callee_peaks(model: AssignmentModel) -> dict[int, CalleePeak]:
  """Returns what each called computation needs, in the order that it has.

  Args:
    model: The assignment model of the module.

  Returns:
    Computation id -> its peak; the bound is that of this order.
  """
  peaks: dict[int, CalleePeak] = {}
  sequential = {c.id for c in model.analysis.dataflow.computations}
  for computation in model.module.computations:
    if computation.id in sequential and computation is not model.module.entry:
      inner = from_hlo(model, computation, peaks)
      peak = liveness.peak_bytes(inner.graph, range(inner.graph.num_nodes))
      extra_bytes = max(0, peak - inner.owned_bytes)
      peaks[computation.id] = CalleePeak(extra_bytes, extra_bytes)
  return peaks
