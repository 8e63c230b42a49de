"""When tensors are live, as intervals: the same orders with fewer variables.

A node has a start, a tensor an interval from the start of its source to one
past the starts of all its sinks. What equations 1 to 5 say about each step is
then in the intervals themselves, and equation 13 is one cumulative constraint.
"""

from collections.abc import Sequence

from ortools.sat.python import cp_model

from jaxmem.experimental.olla.problem import Edge, Problem
from jaxmem.experimental.olla.windows import Windows


class IntervalLifetimes:
  """start[v] for each node; an interval for each edge that has bytes.

  Args:
    model: What to add to.
    problem: The edges.
    windows: The domains of the starts.
    one_node_per_step: Whether nodes may not share a step.
  """

  def __init__(
    self,
    model: cp_model.CpModel,
    problem: Problem,
    windows: Windows,
    *,
    one_node_per_step: bool,
  ):
    self._model = model
    self._problem = problem
    self._windows = windows
    self._starts: list[cp_model.IntVar] = []
    self._ends: dict[int, cp_model.IntVar] = {}
    self._lengths: dict[int, cp_model.IntVar] = {}
    self._intervals: dict[int, cp_model.IntervalVar] = {}
    self._add_starts()
    self._add_precedences()
    self._add_live_intervals()
    if one_node_per_step:
      self._add_one_node_per_step()

  def interval(self, e: int) -> cp_model.IntervalVar:
    """The steps through which an edge that has bytes is live."""
    return self._intervals[e]

  def add_capacity(self, peak: cp_model.IntVar) -> None:
    """Equation 13: all that is live at once fits below the peak."""
    unit = self._problem.unit_bytes
    edges = self._problem.edges
    demands = [edges[e].size_bytes // unit for e in self._intervals]
    self._model.add_cumulative(self._intervals.values(), demands, peak)

  def add_hint(self, order: Sequence[int]) -> None:
    """Suggests the starts and ends of an order to start from."""
    position = {v: t for t, v in enumerate(order)}
    for v, start in enumerate(self._starts):
      self._model.add_hint(start, position[v])
    for e, end in self._ends.items():
      edge = self._problem.edges[e]
      first = 0 if edge.source is None else position[edge.source]
      last = max(position[v] for v in edge.last_touchers)
      self._model.add_hint(end, last + 1)
      self._model.add_hint(self._lengths[e], last + 1 - first)

  def convert_to_order(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
    """Function 1: nodes by their starts; those of one step are independent."""
    nodes = range(self._problem.num_nodes)
    return tuple(sorted(nodes, key=lambda v: solver.value(self._starts[v])))

  def _add_starts(self) -> None:
    """Equations 3 and 10: every node runs once, within its span."""
    for v in range(self._problem.num_nodes):
      span = self._windows.span(v)
      self._starts.append(
        self._model.new_int_var(span.start, span.stop - 1, f"start_{v}")
      )

  def _add_precedences(self) -> None:
    """Equation 4: what a node reads was created in an earlier step."""
    for v, node in enumerate(self._problem.graph.nodes):
      for p in dict.fromkeys(node.predecessors):
        self._model.add(self._starts[p] < self._starts[v])

  def _add_live_intervals(self) -> None:
    """Equations 1, 2, 5, 11 and 12: live from the source to the last sink."""
    for e in self._problem.placed:
      edge = self._problem.edges[e]
      if edge.size_bytes:
        self._intervals[e] = self._live_interval(e, edge)

  def _live_interval(self, e: int, edge: Edge) -> cp_model.IntervalVar:
    start = 0 if edge.source is None else self._starts[edge.source]
    if not edge.sinks and not edge.live_at_end:
      return self._model.new_fixed_size_interval_var(start, 1, f"live_{e}")
    num_steps = self._windows.num_steps
    length = self._model.new_int_var(1, num_steps, f"length_{e}")
    if edge.live_at_end:
      return self._model.new_interval_var(start, length, num_steps, f"live_{e}")
    useful = self._windows.useful(edge)
    end = self._model.new_int_var(useful.start + 1, useful.stop, f"end_{e}")
    for sink in edge.sinks:
      self._model.add(self._starts[sink] < end)
    self._ends[e], self._lengths[e] = end, length
    return self._model.new_interval_var(start, length, end, f"live_{e}")

  def _add_one_node_per_step(self) -> None:
    """All starts differ; not in the paper."""
    self._model.add_all_different(self._starts)
