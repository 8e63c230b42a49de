"""Program 15: addresses for live ranges that are known."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from jaxmem.experimental.olla.locations import Locations
from jaxmem.experimental.olla.problem import Problem, check_total
from jaxmem.experimental.olla.program_options import ProgramOptions
from jaxmem.experimental.olla.solution import AddressSolution, ModelSize
from jaxmem.experimental.place_by import place_by
from jaxmem.graph import Graph, live_ranges
from jaxmem.placement import Buffer, Table, nested, try_floors
from jaxmem.placement import Problem as PlacementProblem
from jaxmem.solver import cpsat


def address_problem(graph: Graph, order: Sequence[int]) -> PlacementProblem:
  """Returns what is to be placed once an order is known.

  Args:
    graph: The program, without shares.
    order: A topological order.

  Returns:
    A buffer for each buffer of the graph that is ever live, in the graph's
    order, then one for each node that has extra bytes. Their live ranges are in
    steps of the order.

  Raises:
    ValueError: If there is nothing to place.
  """
  position = {v: t for t, v in enumerate(order)}
  ranges = live_ranges(graph, order).tolist()
  edges = Problem(graph=graph).edges
  buffers = []
  for e, edge in enumerate(edges):
    if edge.is_control:
      continue
    if edge.buffer is not None:
      lower, upper = ranges[edge.buffer]
    else:
      assert edge.source is not None, "Extra bytes are those of a node."
      lower, upper = position[edge.source], position[edge.source] + 1
    buffers.append(
      Buffer(
        name=f"{e}: {edge.name}",
        size_bytes=edge.size_bytes,
        lower=lower,
        upper=upper,
      )
    )
  return PlacementProblem(tuple(buffers))


def solve_addresses(
  problem: PlacementProblem, options: ProgramOptions | None = None
) -> AddressSolution:
  """Minimises the height of an arena (program 15).

  Args:
    problem: The buffers, without gaps.
    options: The toggles. `preplace_pyramid` fixes the addresses of nested
      buffers first.

  Returns:
    The lowest placement: the one found, or the one that was started from.

  Raises:
    ValueError: If a buffer has gaps, or the sizes are too large to be added up.
  """
  start_time = time.perf_counter()
  options = options or ProgramOptions()
  _check_no_gaps(problem)
  check_total(_total_bytes(problem), _unit_bytes(problem))
  first = place_by(problem, try_floors)
  best, height = first.offsets, first.height_bytes
  bound = first.lower_bound_bytes
  size = ModelSize()
  if bound < height:
    searched = preplace(problem) if options.preplace_pyramid else problem
    model = AddressModel(searched, options, bound)
    size = model.size
    answer = model.solve(options.max_deterministic_time)
    if not options.preplace_pyramid:
      bound = max(bound, answer.bound_bytes)
    if answer.offsets_bytes and answer.height_bytes < height:
      best, height = answer.offsets_bytes, answer.height_bytes
  return AddressSolution(
    offsets_bytes=best,
    value_bytes=height,
    lower_bound_bytes=bound,
    seconds=time.perf_counter() - start_time,
    size=size,
  )


class AddressAnswer(NamedTuple):
  """What the solver says.

  Attributes:
    offsets_bytes: The offset of each buffer; empty if none was found in time.
    height_bytes: One past the highest byte; 0 if none was found.
    bound_bytes: No placement of the model is lower.
  """

  offsets_bytes: tuple[int, ...]
  height_bytes: int
  bound_bytes: int


class AddressModel:
  """Equations 6 to 8 for known live ranges, and the objective.

  Args:
    problem: The buffers.
    options: The toggles.
    min_height_bytes: A lower bound on the height.
  """

  def __init__(
    self,
    problem: PlacementProblem,
    options: ProgramOptions,
    min_height_bytes: int,
  ):
    self._problem = problem
    self._options = options
    self._unit = _unit_bytes(problem)
    self._sizes = [b.size_bytes // self._unit for b in problem.buffers]
    self._model = cp_model.CpModel()
    first = place_by(problem, try_floors)
    worst = first.height_bytes if options.warm_start else _total_bytes(problem)
    self._locations = Locations(
      self._model,
      self._sizes,
      -(-min_height_bytes // self._unit),
      worst // self._unit,
    )
    self._add_fixed_addresses()
    self._add_alignments()
    if options.formulation == "boolean":
      self._add_pairs()
    else:
      self._add_rectangles()
    self._add_objective()
    if options.warm_start:
      self._locations.add_hint([o // self._unit for o in first.offsets])

  @property
  def size(self) -> ModelSize:
    """How large the model is."""
    return ModelSize.of(self._model)

  def solve(self, max_deterministic_time: float) -> AddressAnswer:
    """Solves the model; a limit that is reached is not an error."""
    solver = cpsat.make_solver(max_deterministic_time)
    status = cpsat.solve(solver, self._model)
    assert status != "infeasible", "The first placement is a solution."
    bound = cpsat.objective_bound(solver) * self._unit
    if status == "unknown":
      return AddressAnswer((), 0, bound)
    addresses = self._locations.convert_to_addresses(solver)
    offsets = tuple(address * self._unit for address in addresses)
    sizes = [b.size_bytes for b in self._problem.buffers]
    height = max(o + s for o, s in zip(offsets, sizes, strict=True))
    return AddressAnswer(offsets, height, bound)

  def _add_fixed_addresses(self) -> None:
    """4.5, and whatever the problem fixes."""
    for i, buffer in enumerate(self._problem.buffers):
      if buffer.offset_bytes is not None:
        address = self._locations.addresses[i]
        self._model.add(address == buffer.offset_bytes // self._unit)

  def _add_alignments(self) -> None:
    for i, buffer in enumerate(self._problem.buffers):
      alignment = buffer.alignment_bytes // self._unit
      if alignment > 1:
        address = self._locations.addresses[i]
        self._model.add_modulo_equality(0, address, alignment)

  def _add_pairs(self) -> None:
    """Equation 6: of two that are live at once, one is above the other."""
    buffers = self._problem.buffers
    for j in range(len(buffers)):
      for i in range(j):
        if not self._sizes[i] or not self._sizes[j]:
          continue
        coexist = (
          buffers[i].lower < buffers[j].upper
          and buffers[j].lower < buffers[i].upper
        )
        if coexist or not self._options.skip_disjoint_pairs:
          sides = self._locations.add_pair(i, j)
          self._model.add(sum(sides) >= coexist)

  def _add_rectangles(self) -> None:
    """Equation 6 as geometry."""
    owners = [i for i, size in enumerate(self._sizes) if size]
    live = [self._problem.buffers[i] for i in owners]
    times = [
      self._model.new_fixed_size_interval_var(b.lower, b.upper - b.lower, "")
      for b in live
    ]
    self._locations.add_rectangles(times, owners)

  def _add_objective(self) -> None:
    """Equation 15."""
    self._model.minimize(self._locations.peak)


def preplace(problem: PlacementProblem) -> PlacementProblem:
  """Algorithm 5: fixes nested buffers on top of each other, longest first.

  Buffers that have a fixed offset already keep the problem as it is.
  """
  if any(b.offset_bytes is not None for b in problem.buffers):
    return problem
  buffers = list(problem.buffers)
  base = 0
  for i in nested(Table(problem)):
    alignment = buffers[i].alignment_bytes
    base = -(-base // alignment) * alignment
    buffers[i] = dataclasses.replace(buffers[i], offset_bytes=base)
    base += buffers[i].size_bytes
  return PlacementProblem(tuple(buffers))


def _check_no_gaps(problem: PlacementProblem) -> None:
  for buffer in problem.buffers:
    if buffer.gaps:
      raise ValueError(
        f"OLLA's tensors are live without gaps, but {buffer.name!r} has some."
        " Drop its gaps, or use jaxmem.placement.place."
      )


def _unit_bytes(problem: PlacementProblem) -> int:
  lengths = [b.size_bytes for b in problem.buffers]
  # What is aligned to one byte may be anywhere, so also at multiples.
  lengths += [
    b.alignment_bytes for b in problem.buffers if b.alignment_bytes > 1
  ]
  lengths += [b.offset_bytes or 0 for b in problem.buffers]
  return max(math.gcd(*lengths), 1)


def _total_bytes(problem: PlacementProblem) -> int:
  """No useful placement is higher: all of it above what is fixed."""
  buffers = problem.buffers
  room = sum(b.size_bytes + b.alignment_bytes for b in buffers)
  return room + max(b.offset_bytes or 0 for b in buffers)
