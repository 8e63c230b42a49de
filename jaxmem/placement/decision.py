"""Whether a placement of a given height exists: CP-SAT, branching like a floor.

OLLA's equations 6 and 7 say that of two buffers that are live together one is
above the other. Here each section of the time line has one no-overlap
constraint instead, over all pieces that are live in it, and sections whose
pieces are all live in another one are left out.

What makes it fast on hard instances is the search: no presolve, and the next
buffer to fix is always the one whose lowest possible offset is lowest, to that
offset, with a static order to break ties. So the first dive is the lowest-floor
decoder, and what goes wrong in it is learnt from.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from jaxmem.placement.fit import Shelf
from jaxmem.placement.problem import Problem
from jaxmem.placement.table import Table
from jaxmem.solver import cpsat

# Above, building the model takes longer than it could be worth.
_MAX_ENTRIES = 1_000_000
# CP-SAT wants room in 64 bits for the sums that it makes.
_MAX_HEIGHT = 1 << 50
# Deterministic time of an order's first turn, and how much longer each of its
# next turns is.
_FIRST_SLICE = 0.01
_SLICE_GROWTH = 3
# How many orders take turns at first; another joins after so many turns each.
_FIRST_ORDERS = 3
_TURNS_PER_ORDER = 4
# Up to so many buffers CP-SAT's own search goes first, and none is left out.
_FEW_BUFFERS = 64
# Standard deviations by which random mixtures of orders are shaken, as parts of
# their length; one is drawn for each mixture.
_SHAKES = (0.0, 0.05, 0.2)
# Buffers below this fraction of the height are left out at first: bounds that
# move by a few bytes at a time take CP-SAT minutes, which its limit on work
# does not count.
_FINEST = 8192


class Answer(NamedTuple):
  """What is known after a search.

  Attributes:
    status: "optimal" and "feasible" both mean that there is a placement.
    offsets: int64 `[num_buffers]`, in units, or None.
    work: Deterministic time that was spent.
    cost: Propagations, which say better than `work` how long it took.
  """

  status: cpsat.CpStatus
  offsets: np.ndarray | None
  work: float
  cost: int


def is_tractable(table: Table) -> bool:
  """Whether the model is small enough to be worth it."""
  total = table.sizes_bytes.sum() + table.fixed.max(initial=0) * table.unit
  sections = table.maximal_sections()
  # How many pieces all no-overlap constraints have together.
  entries = np.searchsorted(sections, table.ends)
  entries -= np.searchsorted(sections, table.starts)
  is_low = int(total) // table.unit < _MAX_HEIGHT
  return is_low and int(entries.sum()) <= _MAX_ENTRIES


class DecisionModel:
  """Placements of at most a given height.

  Args:
    table: The problem.
    height_bytes: At least the size of every buffer, and the end of every fixed
      one.
  """

  def __init__(self, table: Table, height_bytes: int):
    self._table = table
    self._model = cp_model.CpModel()
    self._offsets: dict[int, cp_model.IntVar] = {}
    self._add_offsets(table.limits(height_bytes))
    self._add_no_overlaps()

  def solve(self, order: np.ndarray | None, max_work: float) -> Answer:
    """Searches for a placement.

    Args:
      order: The buffers that have pieces; decides between equal floors. None
        leaves the search to CP-SAT: better at small problems and at proofs.
      max_work: Deterministic time, in CP-SAT's unit.
    """
    model = self._model.clone()
    solver = cpsat.make_solver(max_work)
    if order is not None:
      parameters = solver.parameters
      parameters.search_branching = parameters.FIXED_SEARCH
      parameters.cp_model_presolve = False
      parameters.linearization_level = 0
      # The model has no precedences, and to look for them takes a tenth.
      parameters.use_precedences_in_disjunctive_constraint = False
      indices = [self._offsets[i].index for i in order.tolist()]
      model.add_decision_strategy(
        [model.get_int_var_from_proto_index(i) for i in indices],
        cp_model.CHOOSE_LOWEST_MIN,
        cp_model.SELECT_MIN_VALUE,
      )
    status = cpsat.solve(solver, model)
    response = solver.response_proto
    work, cost = response.deterministic_time, response.num_integer_propagations
    if status not in ("optimal", "feasible"):
      return Answer(status, None, work, cost)
    offsets = np.maximum(self._table.fixed, 0)
    for i, variable in self._offsets.items():
      offsets[i] = solver.value(variable)
    return Answer(status, offsets, work, cost)

  def _add_offsets(self, limits: np.ndarray) -> None:
    for i in np.unique(self._table.owners).tolist():
      fixed = int(self._table.fixed[i])
      low, high = (fixed, fixed) if fixed >= 0 else (0, int(limits[i]))
      self._offsets[i] = self._model.new_int_var(low, high, "")
    for i, offset in self._offsets.items():
      alignment = int(self._table.alignments[i])
      if alignment > 1:
        quotient = self._model.new_int_var(0, _MAX_HEIGHT // alignment, "")
        self._model.add(offset == alignment * quotient)

  def _add_no_overlaps(self) -> None:
    """Equations 6 and 7, for all buffers of a section at once."""
    table = self._table
    rows = np.stack([table.owners, table.lows, table.highs], axis=1).tolist()
    intervals = [
      self._model.new_fixed_size_interval_var(
        self._offsets[owner] + low, high - low, ""
      )
      for owner, low, high in rows
    ]
    for pieces in table.cliques():
      if len(pieces) > 1:
        self._model.add_no_overlap([intervals[p] for p in pieces])


def decide(table: Table, height_bytes: int, max_work: float) -> Answer:
  """Looks for a placement of a given height.

  The smallest buffers join when the others are placed, wherever there is room.
  If there is not, or if the time is up, the answer is "unknown".

  Args:
    table: The problem.
    height_bytes: At least `table.max_live_bytes`.
    max_work: Deterministic time to spend, in CP-SAT's unit.
  """
  buffers = table.problem.buffers
  coarse = [
    i
    for i, b in enumerate(buffers)
    if b.size_bytes * _FINEST >= height_bytes or b.offset_bytes is not None
  ]
  if len(coarse) in (0, len(buffers)) or len(buffers) <= _FEW_BUFFERS:
    return _decide_all(table, height_bytes, max_work)
  sub = Table(Problem(tuple(buffers[i] for i in coarse)))
  answer = _decide_all(sub, height_bytes, max_work)
  if answer.offsets is None:
    return answer
  offsets = fill(table, coarse, answer.offsets * sub.unit // table.unit)
  top_bytes = int((offsets * table.unit + table.sizes_bytes).max())
  if top_bytes > height_bytes:
    return answer._replace(status="unknown", offsets=None)
  return answer._replace(offsets=offsets)


def fill(
  table: Table, placed: Sequence[int], offsets: np.ndarray
) -> np.ndarray:
  """Places the rest of the buffers, large ones first, as low as there is room.

  Args:
    table: The problem.
    placed: Indices of the buffers that are placed; all fixed ones are.
    offsets: Their offsets, in units.

  Returns:
    The offsets of all buffers, in units.
  """
  shelf = Shelf(table)
  for buffer, offset in zip(placed, offsets.tolist(), strict=True):
    shelf.put(buffer, offset)
  rest = table.static_orders["size"]
  return shelf.place(rest[~np.isin(rest, placed)].tolist(), "first")


def _decide_all(table: Table, height_bytes: int, max_work: float) -> Answer:
  """Searches with all buffers, under several orders in turns.

  A search that goes wrong early rarely recovers, and which order goes wrong
  differs. So the order that has cost least so far goes next, for longer than
  last time, and now and then a new order joins.
  """
  model = DecisionModel(table, height_bytes)
  orders = _orders(table)
  # (cost, tie breaker, slice of the next turn, order)
  lanes = [(0, i, _FIRST_SLICE, next(orders)) for i in range(_FIRST_ORDERS)]
  work = 0.0
  for turn in itertools.count(len(lanes)):
    cost, _, slice_work, order = heapq.heappop(lanes)
    answer = model.solve(order, min(slice_work, max_work - work))
    work += answer.work
    if answer.status != "unknown" or work >= max_work:
      return answer._replace(work=work)
    slice_work *= _SLICE_GROWTH
    heapq.heappush(lanes, (cost + answer.cost, turn, slice_work, order))
    if turn % (_TURNS_PER_ORDER * len(lanes)) == 0:
      heapq.heappush(lanes, (cost, -turn, _FIRST_SLICE, next(orders)))
  raise AssertionError("There is always another turn.")


def _orders(table: Table) -> Iterator[np.ndarray | None]:
  """Yields the static orders, CP-SAT's own, and random mixtures."""
  orders = table.static_orders
  is_small = table.num_buffers <= _FEW_BUFFERS
  yield from [None, *orders.values()] if is_small else [*orders.values(), None]
  rank = np.argsort(np.stack(list(orders.values())), axis=1)
  generator = np.random.default_rng(0)
  buffers = np.sort(orders["size"])
  while True:
    # Scores are mean ranks under random weights, slightly shaken.
    weights = generator.dirichlet(np.ones(len(rank)) / 2)
    shake = generator.standard_normal(rank.shape[1]) * generator.choice(_SHAKES)
    score = weights @ rank + shake * rank.shape[1]
    yield buffers[np.argsort(score, kind="stable")]
