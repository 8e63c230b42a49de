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
    known: Orders of graphs that were searched before; more are added.

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
    known: dict[Graph, order.OrderResult],
  ):
    self._options = options
    self._proves = proves
    self._known = known
    # As `orders`, in nodes, and of those that were not adopted, too.
    self._nodes: dict[int, tuple[int, ...]] = {}
    self.orders: dict[int, tuple[int, ...]] = {}
    self.bounds: dict[int, int] = {}
    self.peaks = callee_peaks(model, self._order)
    if not self.orders:
      return
    trials = Trials(model, model.temp_bytes(), keeps_savings=True)
    trials.adopt(self.orders)
    if trials.adopted != self.orders:
      # Who calls what keeps XLA's order has to be looked at again.
      self.orders = trials.adopted
      self.peaks = callee_peaks(model, self._peak)

  def _order(self, inner: ComputationGraph) -> int:
    """Orders a computation if that lowers its peak; returns the peak."""
    check_understood(inner)
    found, peak = self._search(inner), _peak_as_given(inner.graph)
    if found is None or found.peak_bytes >= peak:
      return peak
    callee = inner.computation.id
    self._nodes[callee] = found.order
    self.orders[callee] = checked_schedule(inner, found.order)
    return found.peak_bytes

  def _peak(self, inner: ComputationGraph) -> int:
    """Returns the peak of a computation in the order that was adopted."""
    self._search(inner)
    callee, graph = inner.computation.id, inner.graph
    if callee not in self.orders:
      return _peak_as_given(graph)
    return liveness.peak_bytes(graph, self._nodes[callee])

  def _search(self, inner: ComputationGraph) -> order.OrderResult | None:
    """Finds an order of a computation, None without a choice, and its bound."""
    graph, found = inner.graph, None
    if graph.num_nodes >= _MIN_NODES:
      found = self._known.get(graph) or order.plan_order(
        graph, effort=self._options.effort, prove=self._proves
      )
      self._known[graph] = found
    bound = found.lower_bound_bytes if found else 0
    self.bounds[inner.computation.id] = max(0, bound - inner.owned_bytes)
    return found


def _peak_as_given(graph: Graph) -> int:
  return liveness.peak_bytes(graph, range(graph.num_nodes))
