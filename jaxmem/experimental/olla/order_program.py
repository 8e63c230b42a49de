"""Program 14: the order of the least peak, without addresses."""

import heapq
import time
from collections.abc import Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from jaxmem.experimental.olla.anchors import anchor_updates
from jaxmem.experimental.olla.intervals import IntervalLifetimes
from jaxmem.experimental.olla.lifetimes import BooleanLifetimes
from jaxmem.experimental.olla.problem import Problem, default_order
from jaxmem.experimental.olla.program_options import ProgramOptions
from jaxmem.experimental.olla.solution import ModelSize, OrderSolution
from jaxmem.experimental.olla.windows import Windows
from jaxmem.graph import Graph, check_order, lower_bound, peak_bytes
from jaxmem.solver import cpsat


def solve_order(
  graph: Graph,
  initial_order: Sequence[int] | None = None,
  options: ProgramOptions | None = None,
) -> OrderSolution:
  """Minimises the peak of live bytes over all orders (program 14).

  Args:
    graph: The program, without shares.
    initial_order: A topological order to start from; by default the graph's.
    options: The toggles.

  Returns:
    The best order: the one found, or the initial one if that is not worse.

  Raises:
    ValidationError: If the initial order is none.
    ValueError: If the graph is not one for OLLA; see `Problem`.
  """
  start_time = time.perf_counter()
  options = options or ProgramOptions()
  Problem(graph=graph)
  best = start_order(graph, initial_order)
  best_bytes = peak_bytes(graph, best)
  bound = cut_bound(graph, best, options)
  size = ModelSize()
  if bound < best_bytes:
    searched = anchor_updates(graph) if options.anchor_updates else graph
    first = follow(searched, best)
    model = OrderModel(Problem(graph=searched), options, bound, first)
    size = model.size
    answer = model.solve(options.max_deterministic_time)
    if not options.anchor_updates:
      bound = max(bound, answer.bound_bytes)
    if answer.order is not None:
      found_bytes = peak_bytes(graph, answer.order)
      if found_bytes < best_bytes:
        best, best_bytes = answer.order, found_bytes
  return OrderSolution(
    order=best,
    value_bytes=best_bytes,
    lower_bound_bytes=bound,
    seconds=time.perf_counter() - start_time,
    size=size,
  )


class OrderAnswer(NamedTuple):
  """What the solver says.

  Attributes:
    order: An order, if one was found in time.
    bound_bytes: No order of the model has a lower peak.
  """

  order: tuple[int, ...] | None
  bound_bytes: int


class OrderModel:
  """Equations 1 to 5 and 10 to 13, and the objective.

  Args:
    problem: The edges.
    options: The toggles.
    min_peak_bytes: A lower bound on the peak.
    first_order: An order of the problem, to warm-start from.
  """

  def __init__(
    self,
    problem: Problem,
    options: ProgramOptions,
    min_peak_bytes: int,
    first_order: Sequence[int],
  ):
    self._unit = problem.unit_bytes
    self._model = cp_model.CpModel()
    windows = Windows.of(problem, options)
    self._lifetimes = make_lifetimes(self._model, problem, windows, options)
    self._peak = self._new_peak(problem, options, min_peak_bytes, first_order)
    self._add_capacity()
    self._add_objective()
    if options.warm_start:
      self._lifetimes.add_hint(first_order)

  @property
  def size(self) -> ModelSize:
    """How large the model is."""
    return ModelSize.of(self._model)

  def solve(self, max_deterministic_time: float) -> OrderAnswer:
    """Solves the model; a limit that is reached is not an error."""
    solver = cpsat.make_solver(max_deterministic_time)
    status = cpsat.solve(solver, self._model)
    assert status != "infeasible", "The first order is a solution."
    bound = cpsat.objective_bound(solver) * self._unit
    if status == "unknown":
      return OrderAnswer(None, bound)
    return OrderAnswer(self._lifetimes.convert_to_order(solver), bound)

  def _new_peak(
    self,
    problem: Problem,
    options: ProgramOptions,
    min_peak_bytes: int,
    first_order: Sequence[int],
  ) -> cp_model.IntVar:
    worst = problem.total_bytes
    if options.warm_start:
      worst = peak_bytes(problem.graph, first_order)
    lowest = -(-min_peak_bytes // self._unit)
    return self._model.new_int_var(lowest, worst // self._unit, "peak")

  def _add_capacity(self) -> None:
    """Equation 13."""
    self._lifetimes.add_capacity(self._peak)

  def _add_objective(self) -> None:
    """Equation 14."""
    self._model.minimize(self._peak)


def make_lifetimes(
  model: cp_model.CpModel,
  problem: Problem,
  windows: Windows,
  options: ProgramOptions,
) -> BooleanLifetimes | IntervalLifetimes:
  """Adds the variables of an order to a model, in the chosen formulation."""
  kind = (
    BooleanLifetimes if options.formulation == "boolean" else IntervalLifetimes
  )
  return kind(
    model, problem, windows, one_node_per_step=options.one_node_per_step
  )


def start_order(
  graph: Graph, initial_order: Sequence[int] | None
) -> tuple[int, ...]:
  """Returns the given order, checked, or the graph's own."""
  if initial_order is None:
    return default_order(graph)
  check_order(graph, initial_order)
  return tuple(initial_order)


def cut_bound(
  graph: Graph, order: Sequence[int], options: ProgramOptions
) -> int:
  """Returns the bound of the minimum cuts, in bytes; 0 if it is not wanted."""
  if not options.cut_bound:
    return 0
  return lower_bound(graph, order, graph.num_nodes)


def follow(graph: Graph, order: Sequence[int]) -> tuple[int, ...]:
  """Returns the order nearest to a given one that the precedences allow.

  Each step runs the ready node that comes first in the given order.
  """
  rank = {v: t for t, v in enumerate(order)}
  waiting = [len(node.predecessors) for node in graph.nodes]
  ready = [rank[v] for v, count in enumerate(waiting) if not count]
  heapq.heapify(ready)
  found = []
  while ready:
    node = order[heapq.heappop(ready)]
    found.append(node)
    for successor in graph.successors[node]:
      waiting[successor] -= 1
      if not waiting[successor]:
        heapq.heappush(ready, rank[successor])
  return tuple(found)
