"""Program 9: order and addresses at once; and 4.4, one after the other."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from jaxmem.experimental.olla.address_program import (
  address_problem,
  solve_addresses,
)
from jaxmem.experimental.olla.anchors import anchor_updates
from jaxmem.experimental.olla.intervals import IntervalLifetimes
from jaxmem.experimental.olla.lifetimes import BooleanLifetimes
from jaxmem.experimental.olla.locations import Locations
from jaxmem.experimental.olla.order_program import (
  cut_bound,
  follow,
  make_lifetimes,
  solve_order,
  start_order,
)
from jaxmem.experimental.olla.problem import Problem
from jaxmem.experimental.olla.program_options import ProgramOptions
from jaxmem.experimental.olla.solution import JointSolution, ModelSize
from jaxmem.experimental.olla.windows import Windows, pairs
from jaxmem.experimental.place_by import place_by
from jaxmem.graph import Graph
from jaxmem.placement import try_floors
from jaxmem.solver import cpsat


def solve(
  graph: Graph,
  initial_order: Sequence[int] | None = None,
  options: ProgramOptions | None = None,
) -> JointSolution:
  """Finds an order and addresses: in turn (4.4), or jointly.

  Args:
    graph: The program, without shares.
    initial_order: A topological order to start from; by default the graph's.
    options: The toggles; `split` decides.

  Returns:
    The plan. After a split it is "optimal" if the height meets the bound of the
    order program: no fragmentation, hence nothing lost.

  Raises:
    ValidationError: If the initial order is none.
    ValueError: If the graph is not one for OLLA, or has no buffers.
  """
  options = options or ProgramOptions()
  if not options.split:
    return solve_joint(graph, initial_order, options)
  ordered = solve_order(graph, initial_order, options)
  placed = solve_addresses(address_problem(graph, ordered.order), options)
  return JointSolution(
    order=ordered.order,
    offsets_bytes=placed.offsets_bytes,
    value_bytes=placed.value_bytes,
    lower_bound_bytes=ordered.lower_bound_bytes,
    seconds=ordered.seconds + placed.seconds,
    size=ModelSize(
      num_variables=ordered.size.num_variables + placed.size.num_variables,
      num_constraints=ordered.size.num_constraints
      + placed.size.num_constraints,
    ),
  )


def solve_joint(
  graph: Graph,
  initial_order: Sequence[int] | None = None,
  options: ProgramOptions | None = None,
) -> JointSolution:
  """Minimises the height of the arena over orders and addresses (program 9).

  Args:
    graph: The program, without shares; at most some tens of nodes.
    initial_order: A topological order to start from; by default the graph's.
    options: The toggles; `split` and `preplace_pyramid` do not apply.

  Returns:
    The best plan: the one found, or the initial order with the lowest floors.

  Raises:
    ValidationError: If the initial order is none.
    ValueError: If the graph is not one for OLLA, or has no buffers.
  """
  start_time = time.perf_counter()
  options = options or ProgramOptions()
  best = _initial_plan(graph, start_order(graph, initial_order))
  bound = cut_bound(graph, best.order, options)
  size = ModelSize()
  if bound < best.height_bytes:
    searched = anchor_updates(graph) if options.anchor_updates else graph
    first = _initial_plan(searched, follow(searched, best.order))
    model = JointModel(Problem(graph=searched), options, bound, first)
    size = model.size
    found, proven = model.solve(options.max_deterministic_time)
    if not options.anchor_updates:
      bound = max(bound, proven)
    if found is not None and found.height_bytes < best.height_bytes:
      best = found
  return JointSolution(
    order=best.order,
    offsets_bytes=best.offsets_bytes,
    value_bytes=best.height_bytes,
    lower_bound_bytes=bound,
    seconds=time.perf_counter() - start_time,
    size=size,
  )


class Plan(NamedTuple):
  """An order and addresses.

  Attributes:
    order: A topological order.
    offsets_bytes: Of each buffer of `address_problem(graph, order)`.
    height_bytes: One past the highest byte.
  """

  order: tuple[int, ...]
  offsets_bytes: tuple[int, ...]
  height_bytes: int


def _initial_plan(graph: Graph, order: tuple[int, ...]) -> Plan:
  placed = place_by(address_problem(graph, order), try_floors)
  return Plan(order, placed.offsets, placed.height_bytes)


class JointModel:
  """Equations 1 to 8 and 10 to 12, and the objective.

  Equation 13 follows from them. It is added all the same: it says at once what
  CP-SAT would have to find out pair by pair.

  Args:
    problem: The edges.
    options: The toggles.
    min_height_bytes: A lower bound on the height.
    first: A plan of the problem, to warm-start from.
  """

  def __init__(
    self,
    problem: Problem,
    options: ProgramOptions,
    min_height_bytes: int,
    first: Plan,
  ):
    self._problem = problem
    self._options = options
    self._unit = problem.unit_bytes
    self._sizes = [problem.edges[e].size_bytes for e in problem.placed]
    self._model = cp_model.CpModel()
    self._windows = Windows.of(problem, options)
    self._lifetimes = make_lifetimes(
      self._model, problem, self._windows, options
    )
    worst = first.height_bytes if options.warm_start else problem.total_bytes
    self._locations = Locations(
      self._model,
      [size // self._unit for size in self._sizes],
      -(-min_height_bytes // self._unit),
      worst // self._unit,
    )
    self._add_pairs()
    self._add_capacity()
    self._add_objective()
    if options.warm_start:
      self._lifetimes.add_hint(first.order)
      units = [offset // self._unit for offset in first.offsets_bytes]
      self._locations.add_hint(units)

  @property
  def size(self) -> ModelSize:
    """How large the model is."""
    return ModelSize.of(self._model)

  def solve(self, max_deterministic_time: float) -> tuple[Plan | None, int]:
    """Returns a plan, if one was found in time, and the proven bound."""
    solver = cpsat.make_solver(max_deterministic_time)
    status = cpsat.solve(solver, self._model)
    assert status != "infeasible", "The first plan is a solution."
    bound = cpsat.objective_bound(solver) * self._unit
    if status == "unknown":
      return None, bound
    addresses = self._locations.convert_to_addresses(solver)
    offsets = tuple(address * self._unit for address in addresses)
    tops = [o + s for o, s in zip(offsets, self._sizes, strict=True)]
    order = self._lifetimes.convert_to_order(solver)
    return Plan(order, offsets, max(tops)), bound

  def _add_pairs(self) -> None:
    """Equation 6: while two are live, one is above the other."""
    lifetimes = self._lifetimes
    if isinstance(lifetimes, BooleanLifetimes):
      self._add_boolean_pairs(lifetimes)
    else:
      self._add_rectangles(lifetimes)

  def _add_boolean_pairs(self, lifetimes: BooleanLifetimes) -> None:
    index = {e: i for i, e in enumerate(self._problem.placed)}
    edges = self._problem.edges
    for e, f in pairs(self._problem, self._windows, self._options):
      below, above = self._locations.add_pair(index[e], index[f])
      one = self._windows.useful(edges[e])
      other = self._windows.useful(edges[f])
      for t in range(max(one.start, other.start), min(one.stop, other.stop)):
        both = lifetimes.live(e, t) + lifetimes.live(f, t)
        self._model.add(below + above >= both - 1)

  def _add_rectangles(self, lifetimes: IntervalLifetimes) -> None:
    owners = [i for i, size in enumerate(self._sizes) if size]
    times = [lifetimes.interval(self._problem.placed[i]) for i in owners]
    self._locations.add_rectangles(times, owners)

  def _add_capacity(self) -> None:
    """Equation 13, implied."""
    self._lifetimes.add_capacity(self._locations.peak)

  def _add_objective(self) -> None:
    """Equation 9."""
    self._model.minimize(self._locations.peak)
