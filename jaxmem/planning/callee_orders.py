"""Orders what a module calls: bodies of loops, branches, functions."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.buffers import UnsupportedModuleError, schedule

from jaxmem import order
from jaxmem.graph import (
  ComputationGraph,
  Graph,
  callee_peaks,
  check_order,
  liveness,
)
from jaxmem.options import Options
from jaxmem.planning.trials import Trials

# A called computation of fewer nodes has nothing to order.
_MIN_NODES = 3
FoundByGraph = dict[Graph, order.OrderResult]


def check_understood(graph: ComputationGraph) -> None:
  """Refuses a computation whose given order already breaks our rules.

  Raises:
    UnsupportedModuleError: If it does.
  """
  if graph.is_repaired:
    raise UnsupportedModuleError(
      f"{graph.computation.name}: XLA's own schedule seems to read a buffer"
      " that was already overwritten; something in it is not understood."
    )


def checked_schedule(
  graph: ComputationGraph, nodes: Sequence[int]
) -> tuple[int, ...]:
  """Returns the instruction ids of an order, once it is known to be valid.

  Args:
    graph: Of the computation.
    nodes: The order of its nodes.
  """
  check_order(graph.graph, nodes)
  ids = graph.schedule(nodes)
  schedule.check_schedule(graph.computation, ids)
  return tuple(ids)


class CalleeOrders:
  """Orders called computations by their own peaks, where that helps the whole.

  Args:
    model: Of the module.
    options: How hard to try.
    proves: As of `OrderSearch`.
    found: What was found for graphs before; more is added to it.

  Attributes:
    orders: Computation id -> instruction ids in execution order, where that is
      another than the module's.
    peaks: What each computation needs, as `callee_peaks` says it.
    bounds: What it needs at least, in any order.
  """

  def __init__(
    self,
    model: AssignmentModel,
    options: Options,
    proves: bool,
    found: FoundByGraph,
  ):
    self._options = options
    self._proves = proves
    self._found = found
    self._is_searching = True
    # The orders of nodes that are in use.
    self._nodes: dict[int, tuple[int, ...]] = {}
    self.orders: dict[int, tuple[int, ...]] = {}
    self.bounds: dict[int, int] = {}
    self.peaks = callee_peaks(model, self._peak)
    self._is_searching = False
    if not self.orders:
      return
    trials = Trials(model, model.temp_bytes(), keeps_savings=True)
    trials.adopt(self.orders)
    if trials.adopted != self.orders:
      # Who calls what keeps XLA's order has to be looked at again.
      self.orders = trials.adopted
      self._nodes = {c: self._nodes[c] for c in self.orders}
      self.peaks = callee_peaks(model, self._peak)

  def _peak(self, inner: ComputationGraph) -> int:
    """Returns the peak of a computation in the order that it is to have."""
    check_understood(inner)
    graph, callee = inner.graph, inner.computation.id
    peak = liveness.peak_bytes(graph, range(graph.num_nodes))
    bound = 0
    if graph.num_nodes >= _MIN_NODES:
      found = self._search(graph)
      bound = found.lower_bound_bytes
      if self._is_searching and found.peak_bytes < peak:
        self._nodes[callee] = found.order
        self.orders[callee] = checked_schedule(inner, found.order)
    if callee in self._nodes:
      peak = liveness.peak_bytes(graph, self._nodes[callee])
    self.bounds[callee] = max(0, bound - inner.owned_bytes)
    return peak

  def _search(self, graph: Graph) -> order.OrderResult:
    if graph not in self._found:
      self._found[graph] = order.plan_order(
        graph, effort=self._options.effort, prove=self._proves
      )
    return self._found[graph]
