"""Pools of limited capacity: which buffers go into them, and where.

A fast memory holds only some of the buffers; each one that stays outside costs
something, such as its bytes. `fill_pools` minimises the sum of these costs: a
greedy start, then CP-SAT on which buffers fit by their bytes alone, whose value
no placement can beat, and, if those cannot be placed, on choice and placement
together.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from jaxmem.graph import ValidationError
from jaxmem.placement.check_placement import validate
from jaxmem.placement.fit import Shelf
from jaxmem.placement.portfolio import place
from jaxmem.placement.problem import (
  LIMIT,
  InfeasiblePlacementError,
  Problem,
  Solution,
  Status,
)
from jaxmem.placement.table import Table
from jaxmem.solver import cpsat

# Deterministic time of each program by default.
_WORK = 0.5
# Deterministic time to place a choice: what is not found soon rarely is at all.
_WORK_TO_PLACE = 0.05
# Where what may be saved is this part of the cost, the second program is not
# worth its time.
_FINEST_SAVING = 1000
# CP-SAT wants room in 64 bits for the sums that it makes.
_MAX_TOTAL = 1 << 53


class Place(NamedTuple):
  """Where a buffer is.

  Attributes:
    pool: Index of its pool.
    offset_bytes: From the start of the pool.
  """

  pool: int
  offset_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolSolution:
  """Which buffers are in pools.

  Attributes:
    places: In the problem's order; None outside of all pools.
    cost: Of the buffers outside.
    lower_bound: No other choice costs less.
    method: What found it: "greedy", "choice" or "cp_sat".
    seconds: Wall time. It decides nothing, and solutions that differ only in it
      are equal.
  """

  places: tuple[Place | None, ...]
  cost: int
  lower_bound: int
  method: str
  seconds: float = dataclasses.field(default=0.0, compare=False)

  def __post_init__(self):
    if self.lower_bound > self.cost:
      raise ValueError(
        "lower_bound must not exceed cost, got"
        f" {self.lower_bound} and {self.cost}."
      )

  @property
  def status(self) -> Status:
    """Whether the cost equals the lower bound: "optimal" then."""
    return "optimal" if self.lower_bound == self.cost else "feasible"


def fill_pools(
  problem: Problem,
  capacities: Sequence[int],
  *,
  max_deterministic_time: float = _WORK,
) -> PoolSolution:
  """Chooses and places buffers so that those left outside cost least.

  Args:
    problem: The buffers, without fixed offsets. Live ranges, alignments and
      gaps count as in `place`; `outside_cost` is what they cost outside.
    capacities: Bytes of each pool. All are equally good.
    max_deterministic_time: Work for each of CP-SAT's two programs, in its unit;
      0 leaves them out.

  Returns:
    The cheapest choice found, with offsets; never worse than greedy.

  Raises:
    ValueError: If there is no pool, a capacity is negative, a buffer has a
      fixed offset, or the costs or sizes add up to 2**53 or more.
  """
  start_s = time.perf_counter()
  _check(problem, capacities)
  table = Table(problem)
  cost_of = functools.partial(_outside_cost, problem)
  best, method, bound = _best_greedy(table, capacities), "greedy", 0
  if max_deterministic_time > 0 and cost_of(best):
    model = _PoolModel(table, capacities, with_offsets=False)
    chosen, bound = model.solve(best, max_deterministic_time)
    if chosen:
      placed = _place_chosen(problem, capacities, chosen)
      placed = placed or _best_greedy(table, capacities, chosen)
      if cost_of(placed) < cost_of(best):
        best, method = placed, "choice"
    if cost_of(best) - bound > cost_of(best) // _FINEST_SAVING:
      model = _PoolModel(table, capacities, with_offsets=True)
      found, proven = model.solve(best, max_deterministic_time)
      bound = max(bound, proven)
      if found and cost_of(found) < cost_of(best):
        best, method = found, "cp_sat"
  return PoolSolution(
    places=tuple(best),
    cost=cost_of(best),
    lower_bound=bound,
    method=method,
    seconds=time.perf_counter() - start_s,
  )


def _outside_cost(problem: Problem, places: Sequence[Place | None]) -> int:
  """Returns what the buffers outside of all pools cost."""
  pairs = zip(_costs(problem), places, strict=True)
  return sum(cost for cost, place in pairs if place is None)


def validate_pools(
  problem: Problem, capacities: Sequence[int], solution: PoolSolution
) -> None:
  """Checks that a solution keeps buffers apart and within their pools.

  Raises:
    ValidationError: Names every fault: a place that is missing, a pool that
      does not exist, what `validate` finds in a pool, or a wrong cost.
  """
  buffers, places = problem.buffers, solution.places
  if len(places) != len(buffers):
    raise ValidationError([f"{len(buffers)} buffers, {len(places)} places"])
  faults = [
    f"{buffer.name!r} is in pool {spot.pool} of {len(capacities)}"
    for buffer, spot in zip(buffers, places, strict=True)
    if spot and not 0 <= spot.pool < len(capacities)
  ]
  for pool, capacity in enumerate(capacities):
    inside = [
      (buffer, spot.offset_bytes)
      for buffer, spot in zip(buffers, places, strict=True)
      if spot and spot.pool == pool
    ]
    if not inside:
      continue
    height = max(offset + b.size_bytes for b, offset in inside)
    part = Solution(
      offsets=tuple(offset for _, offset in inside),
      height_bytes=height,
      lower_bound_bytes=height,
      method=solution.method,
    )
    try:
      validate(Problem(tuple(b for b, _ in inside)), part, capacity)
    except ValidationError as error:
      faults += [f"pool {pool}: {fault}" for fault in error.faults]
  cost = _outside_cost(problem, places)
  if cost != solution.cost:
    faults.append(f"the cost is {cost}, not {solution.cost}")
  if faults:
    raise ValidationError(faults)


def _check(problem: Problem, capacities: Sequence[int]) -> None:
  if not capacities:
    raise ValueError("capacities must name at least one pool, got none.")
  for capacity in capacities:
    if not 0 <= capacity < LIMIT:
      raise ValueError(
        "capacities must be less than 2**63 and not be negative, got"
        f" {capacity}."
      )
  for buffer in problem.buffers:
    if buffer.offset_bytes is not None:
      raise ValueError(f"Pools cannot fix offsets, as {buffer.name!r} has.")
  for what, total in (
    ("costs", sum(_costs(problem))),
    ("sizes", sum(b.size_bytes for b in problem.buffers)),
  ):
    if total >= _MAX_TOTAL:
      raise ValueError(f"All {what} together must be below 2**53, got {total}.")


def _costs(problem: Problem) -> list[int]:
  return [
    b.size_bytes if b.outside_cost is None else b.outside_cost
    for b in problem.buffers
  ]


def _best_greedy(
  table: Table,
  capacities: Sequence[int],
  chosen: Sequence[Place | None] = (),
) -> list[Place | None]:
  """Puts one buffer after another into the first pool that has room.

  The best one of some orders: by cost, by cost for each byte and time, and of
  those chosen before, which come first wherever they are, by size and by area.
  """
  problem = table.problem
  costs = np.array(_costs(problem), float)
  widths = np.array([b.upper - b.lower for b in problem.buffers], float)
  areas = np.maximum(table.sizes_bytes, 1) * widths
  density = costs / areas
  keys = [density, costs]
  is_last = np.zeros(len(costs), bool)
  if chosen:
    keys += [table.sizes_bytes, areas]
    is_last[:] = [spot is None for spot in chosen]
  found = [
    _greedy(table, capacities, np.lexsort((-density, -key, is_last)))
    for key in keys
  ]
  return min(found, key=lambda places: _outside_cost(problem, places))


def _greedy(
  table: Table, capacities: Sequence[int], order: np.ndarray
) -> list[Place | None]:
  shelves = [Shelf(table) for _ in capacities]
  limits = [table.limits(capacity) for capacity in capacities]
  places: list[Place | None] = [None] * table.num_buffers
  for buffer in order.tolist():
    for pool, shelf in enumerate(shelves):
      has_pieces = bool(table.pieces_of(buffer))
      offset = shelf.find(buffer, "first") if has_pieces else 0
      if offset <= limits[pool][buffer]:
        shelf.put(buffer, offset)
        places[buffer] = Place(pool, offset * table.unit)
        break
  return places


def _place_chosen(
  problem: Problem, capacities: Sequence[int], chosen: list[Place | None]
) -> list[Place | None] | None:
  """Replaces the offsets of a choice by real ones; None if one does not fit."""
  placed = list(chosen)
  for pool, capacity in enumerate(capacities):
    indices = [i for i, p in enumerate(chosen) if p and p.pool == pool]
    if not indices:
      continue
    part = Problem(tuple(problem.buffers[i] for i in indices))
    try:
      solution = place(part, capacity, max_deterministic_time=_WORK_TO_PLACE)
    except InfeasiblePlacementError:
      return None
    if not solution.fits(capacity):
      return None
    for i, offset in zip(indices, solution.offsets, strict=True):
      placed[i] = Place(pool, offset)
  return placed


class _PoolModel:
  """The program: each buffer in one pool at most, and the rest pays.

  Without offsets, only the bytes live at once must fit: a relaxation.
  """

  def __init__(
    self, table: Table, capacities: Sequence[int], *, with_offsets: bool
  ):
    self._table = table
    self._capacities = capacities
    self._limits = [table.limits(capacity) for capacity in capacities]
    self._cliques = [*table.cliques()]
    self._model = cp_model.CpModel()
    # Both by pool and buffer: whether it is inside, and at which offset.
    self._inside: dict[tuple[int, int], cp_model.IntVar] = {}
    self._offsets: dict[tuple[int, int], cp_model.IntVar] = {}
    self._add_choices()
    self._add_capacities()
    if with_offsets:
      self._add_offsets()
      self._add_no_overlaps()
    self._add_objective()

  def solve(
    self, first: Sequence[Place | None], max_work: float
  ) -> tuple[list[Place | None] | None, int]:
    """Returns a choice, if one was found in time, and the proven bound.

    Args:
      first: A choice to start from.
      max_work: Deterministic time, in CP-SAT's unit.
    """
    self._add_hint(first)
    solver = cpsat.make_solver(max_work)
    status = cpsat.solve(solver, self._model)
    bound = cpsat.objective_bound(solver)
    if status not in ("optimal", "feasible"):
      return None, max(bound, 0)
    places: list[Place | None] = [None] * self._table.num_buffers
    for (pool, i), literal in self._inside.items():
      if solver.boolean_value(literal):
        units = solver.value(self._offsets.get((pool, i), 0))
        places[i] = Place(pool, units * self._table.unit)
    return places, bound

  def _add_choices(self) -> None:
    literals = collections.defaultdict(list)
    for pool, limits in enumerate(self._limits):
      for i in np.flatnonzero(limits >= 0).tolist():
        self._inside[pool, i] = self._model.new_bool_var("")
        literals[i].append(self._inside[pool, i])
    for _, of_buffer in sorted(literals.items()):
      if len(of_buffer) > 1:
        self._model.add_at_most_one(of_buffer)

  def _add_capacities(self) -> None:
    """Of the bytes live at once; the topmost need not be rounded up."""
    table, inside = self._table, self._inside
    sizes = (table.highs - table.lows).tolist()
    slack = int(table.slack_bytes.max(initial=0))
    for pool, capacity in enumerate(self._capacities):
      room = (capacity + slack) // table.unit
      keys = [(pool, owner) for owner in table.owners.tolist()]
      for pieces in self._cliques:
        found = [p for p in pieces if keys[p] in inside]
        if sum(sizes[p] for p in found) > room:
          terms = [sizes[p] * inside[keys[p]] for p in found]
          self._model.add(sum(terms) <= room)

  def _add_offsets(self) -> None:
    for pool, i in self._inside:
      limit = int(self._limits[pool][i])
      alignment = int(self._table.alignments[i])
      offset = steps = self._model.new_int_var(0, limit // alignment, "")
      if alignment > 1:
        offset = self._model.new_int_var(0, limit, "")
        self._model.add(offset == alignment * steps)
      self._offsets[pool, i] = offset

  def _add_no_overlaps(self) -> None:
    table = self._table
    owners = table.owners.tolist()
    sizes = (table.highs - table.lows).tolist()
    for pool in range(len(self._capacities)):
      intervals = {
        p: self._model.new_optional_fixed_size_interval_var(
          self._offsets[pool, owner] + int(table.lows[p]),
          sizes[p],
          self._inside[pool, owner],
          "",
        )
        for p, owner in enumerate(owners)
        if (pool, owner) in self._inside
      }
      for pieces in self._cliques:
        live = [intervals[p] for p in pieces if p in intervals]
        if len(live) > 1:
          self._model.add_no_overlap(live)

  def _add_objective(self) -> None:
    costs = _costs(self._table.problem)
    # A variable of its own: bounds do not count what is constant.
    total = self._model.new_int_var(0, sum(costs), "outside_cost")
    saved = [costs[i] * literal for (_, i), literal in self._inside.items()]
    self._model.add(total == sum(costs) - sum(saved))
    self._model.minimize(total)

  def _add_hint(self, first: Sequence[Place | None]) -> None:
    for (pool, i), literal in self._inside.items():
      spot = first[i]
      if spot and spot.pool != pool:
        spot = None
      self._model.add_hint(literal, spot is not None)
      if spot and self._offsets:
        units = spot.offset_bytes // self._table.unit
        self._model.add_hint(self._offsets[pool, i], units)
