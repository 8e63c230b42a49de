"""The cheapest plan whose events come from a given pool, by CP-SAT.

The program is about retention intervals over a fixed order, as in Checkmate
(Jain et al., MLSys 2020, arXiv:1910.02653) and Moccasin (Bartan et al., ICML
2023, arXiv:2304.14463), with a literal per event of the pool instead of one per
step and value.

Variables: R[e], whether event e happens. The points of a value are the keys at
which it is made or read, originally or by an event of the pool;
S[v, j] says whether v is kept over the open interval from its point j to the
next.

1. A reader finds its value: S before an original reader is true, and
   R[e] implies S before a point where e reads.
2. What is kept is there: S[v, j] implies S[v, j - 1] or R[e] if e makes v at
   point j; the two exclude each other.
3. The bytes of what is present at a key, its extra bytes added and what its
   outputs share with dying operands subtracted, meet the limit.
4. Minimise the seconds of the events that happen; or, where the smallest plan
   is looked for, the limit.

Rows of events that do not happen hold whenever their neighbours do.
"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from jaxmem.budget import greedy
from jaxmem.budget.pool_points import PoolPoints, ValuePoints
from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Event, Profile, Transfer
from jaxmem.solver import cpsat

# The program counts in integers: so many make up the limit of bytes, and so
# many the seconds of the dearest event.
_NUM_BYTE_STEPS = 1 << 20
_NUM_COST_STEPS = 1_000_000

# A Boolean variable, its negation, or a known truth value.
_Literal = Any


def choose_from_pool(
  problem: BudgetProblem,
  limit_bytes: int,
  pool: Sequence[Event],
  work: float,
  hint: Profile | None = None,
  transfers: Sequence[Transfer] = (),
  most_terms: int | None = None,
) -> Profile | None:
  """Finds the cheapest plan that fits, with events of a pool only.

  Args:
    problem: The problem.
    limit_bytes: The limit.
    pool: Events to choose from.
    work: CP-SAT's deterministic time, roughly seconds.
    hint: A plan to start from.
    transfers: What goes to the host and back in every plan.
    most_terms: A program whose rows have more terms is not solved.

  Returns:
    The plan; None if there is none, or none was found.
  """
  program = _Program(problem, limit_bytes, pool, transfers)
  if most_terms is not None and program.rows.num_terms > most_terms:
    return None
  return program.solve(work, hint)


def smallest_from_pool(
  problem: BudgetProblem,
  floor_bytes: int,
  pool: Sequence[Event],
  work: float,
  hint: Profile,
) -> Profile | None:
  """Finds the plan with the lowest peak, with events of a pool only.

  Args:
    problem: The problem.
    floor_bytes: No plan's peak is lower.
    pool: Events to choose from.
    work: CP-SAT's deterministic time, roughly seconds.
    hint: A plan; the result's peak is no higher.

  Returns:
    The plan, whatever it costs; None if none was found.
  """
  limit = hint.peak_bytes
  program = _Program(problem, limit, pool, floor_bytes=floor_bytes)
  return program.solve(work, hint)


class _Program:
  """A program; its rows, which take the most time, are added to be solved.

  Attributes:
    rows: What must fit, with the literals that count.
  """

  def __init__(
    self,
    problem: BudgetProblem,
    limit_bytes: int,
    pool: Sequence[Event],
    transfers: Sequence[Transfer] = (),
    floor_bytes: int | None = None,
  ):
    self._points = PoolPoints(problem, pool, transfers)
    self._limit = limit_bytes
    self._model = cp_model.CpModel()
    # R[e]; the last one stands for copies back from the host, which always
    # happen.
    self._runs: list[_Literal] = [
      *(self._model.new_bool_var("") for _ in self._points.events),
      True,
    ]
    self._byte_unit = max(1, limit_bytes // _NUM_BYTE_STEPS)
    # Rows that never hold more need no constraint.
    self._floor = limit_bytes if floor_bytes is None else floor_bytes
    self._peak: cp_model.IntVar | None = None
    if floor_bytes is not None:
      lowest, unit = floor_bytes // self._byte_unit, self._byte_unit
      self._peak = self._model.new_int_var(lowest, -(-limit_bytes // unit), "")
    # S[v, j]: each value has a literal for each interval between its points.
    self._kept: dict[int, list[_Literal]] = {}
    for value, points in self._points.of_value.items():
      self._kept[value] = self._new_intervals(points)
      self._add_retention(points, self._kept[value])
    self.rows = self._find_rows()

  def solve(self, work: float, hint: Profile | None) -> Profile | None:
    """Runs CP-SAT; see `choose_from_pool`."""
    for row in self.rows:
      self._add_row(*row)
    self._add_objective()
    if hint is not None:
      self._add_hint(hint)
    solver = cpsat.make_solver(work)
    # The relaxation is nearly integral once it knows the clauses, too.
    solver.parameters.linearization_level = 2
    # The search gains more from the same work than a longer presolve does.
    solver.parameters.max_presolve_iterations = 1
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    status = cpsat.solve(solver, self._model)
    if status in ("infeasible", "unknown"):
      return None
    chosen = [e for e, run in self._choices() if solver.boolean_value(run)]
    empty = self._points.empty
    profile = Profile(empty.problem, chosen, empty.transfers.values())
    greedy.clean(profile)
    return profile if profile.peak_bytes <= self._limit else None

  def _choices(self) -> Iterator[tuple[Event, _Literal]]:
    """Yields the events that may happen, each with its R."""
    return zip(self._points.events, self._runs, strict=False)

  # Rules 1 and 2.

  def _add_retention(self, points: ValuePoints, kept: list[_Literal]) -> None:
    for j in range(1, len(points.keys)):
      before = kept[j - 1]
      after = kept[j] if j < len(kept) else False
      maker, reader = points.made_by[j], points.read_by[j]
      if reader >= 0:
        self._imply(self._runs[reader], before)
      if maker >= 0:
        self._imply(after, before, self._runs[maker])
        self._imply(before, _negated(self._runs[maker]))
      else:
        self._imply(after, before)

  def _new_intervals(self, points: ValuePoints) -> list[_Literal]:
    """Makes S: true where an original reader leaves no choice."""
    kept: list[_Literal] = []
    is_forced = False
    for maker, reader in zip(
      reversed(points.made_by[1:]), reversed(points.read_by[1:]), strict=True
    ):
      if maker >= 0:
        is_forced = False
      elif reader < 0:
        is_forced = True
      kept.append(True if is_forced else self._model.new_bool_var(""))
    return kept[::-1]

  def _imply(self, premise: _Literal, *any_of: _Literal) -> None:
    """Adds: the premise implies one of the others."""
    if premise is False or any(x is True for x in any_of):
      return
    clause = [] if premise is True else [_negated(premise)]
    clause += [x for x in any_of if x is not False]
    self._model.add_bool_or(clause)

  # Rule 3.

  def _find_rows(self) -> _Rows:
    fixed = self._points.fixed_bytes()
    terms: list[_Term] = []
    for value, points in self._points.of_value.items():
      for term in self._presence(value, points):
        if term.literal is True:
          fixed[term.start : term.stop] += term.size_bytes
        elif term.literal is not False and term.stop > term.start:
          terms.append(term)
    savings = self._savings(fixed)
    return _Rows(fixed, terms, savings, self._floor)

  def _add_row(
    self, fixed: int, terms: Sequence[_Term], savings: Sequence[_Term]
  ) -> None:
    unit = self._byte_unit
    room: cp_model.LinearExprT = (self._limit - fixed) // unit
    if self._peak is not None:
      room = self._peak - -(-fixed // unit)
    weights = [-(-t.size_bytes // unit) for t in terms]
    weights += [-(t.size_bytes // unit) for t in savings]
    literals = [t.literal for t in (*terms, *savings)]
    present = cp_model.LinearExpr.weighted_sum(literals, weights)
    self._model.add(present <= room)

  def _presence(self, value: int, points: ValuePoints) -> Iterator[_Term]:
    """Yields literals of a value's presence, over rows."""
    stored = self._points.empty.problem.values[value]
    size, kept = stored.size_bytes, self._kept[value]
    if not size:
      return
    arrival = self._points.arrival(value)
    if arrival is not None:
      yield _Term(*arrival, size, True)
    all_rows = self._points.rows
    rows = [self._points.row(k) for k in points.keys]
    for j, (key, row) in enumerate(zip(points.keys, rows, strict=True)):
      # Copies end, and values are there at the start, between rows.
      is_row = row < len(all_rows) and all_rows[row] == key
      before: _Literal = kept[j - 1] if j else True
      if j == 0 and stored.is_droppable:
        before = kept[0]
      if is_row:
        yield _Term(row, row + 1, size, before)
        if points.made_by[j] >= 0:
          yield _Term(row, row + 1, size, self._runs[points.made_by[j]])
      if j < len(kept):
        yield _Term(row + is_row, rows[j + 1], size, kept[j])

  def _savings(self, fixed: np.ndarray) -> dict[int, list[_Term]]:
    """What outputs share with operands that die, by row.

    Subtracts at once what is shared in every plan.
    """
    empty = self._points.empty
    sizes = empty.problem.sizes
    found: dict[int, list[_Term]] = {}
    for row, key in enumerate(self._points.rows):
      by_value: dict[int, list[_Literal]] = collections.defaultdict(list)
      for operand, output in empty.line.pairs_at(key):
        size = min(sizes[operand], sizes[output])
        conditions = [self._dies(operand, key), self._starts(output, key)]
        if not size or any(c is False for c in conditions):
          continue
        literal: _Literal = True
        if not all(c is True for c in conditions):
          literal = self._model.new_bool_var("")
          for condition in conditions:
            self._imply(literal, condition)
        elif any(x is True for v in (operand, output) for x in by_value[v]):
          continue
        for value in (operand, output):
          by_value[value].append(literal)
        if literal is True:
          fixed[row] -= size
        else:
          found.setdefault(row, []).append(_Term(row, row + 1, size, literal))
      for literals in by_value.values():
        if len(literals) > 1:
          self._model.add_at_most_one(literals)
    return found

  def _dies(self, value: int, key: int) -> _Literal:
    """Whether the version that is read at a key is not kept any longer."""
    points = self._points.of_value.get(value)
    if points is None:
      uses = self._points.empty.uses[value]
      return bool(uses) and uses[-1] == key
    j = bisect.bisect_left(points.keys, key)
    if j == len(points.keys) or points.keys[j] != key:
      return False
    kept = self._kept[value]
    return j == len(kept) or _negated(kept[j])

  def _starts(self, value: int, key: int) -> _Literal:
    """Whether a version begins at a key."""
    points = self._points.of_value.get(value)
    if points is None:
      return True
    j = bisect.bisect_left(points.keys, key)
    if points.made_by[j] >= 0:
      return self._runs[points.made_by[j]]
    stored = self._points.empty.problem.values[value]
    return self._kept[value][0] if stored.is_droppable else True

  # Rule 4.

  def _add_objective(self) -> None:
    if self._peak is not None:
      self._model.minimize(self._peak)
      return
    units = self._points.empty.problem.units
    seconds = [units[u].seconds for u, _ in self._points.events]
    unit = max(seconds, default=0.0) / _NUM_COST_STEPS or 1.0
    costs = [max(1, round(s / unit)) for s in seconds]
    runs = self._runs[: len(costs)]
    self._model.minimize(cp_model.LinearExpr.weighted_sum(runs, costs))

  def _add_hint(self, hint: Profile) -> None:
    for event, run in self._choices():
      self._model.add_hint(run, hint.has(*event))
    for value, points in self._points.of_value.items():
      spans = itertools.pairwise(points.keys)
      for kept, (start, end) in zip(self._kept[value], spans, strict=True):
        if not isinstance(kept, bool):
          is_kept = any(
            s <= start and end <= e for s, e in hint.intervals[value]
          )
          self._model.add_hint(kept, is_kept)


class _Term(NamedTuple):
  """Bytes that count over rows [start, stop) if a literal holds."""

  start: int
  stop: int
  size_bytes: int
  literal: _Literal


class _Rows:
  """Rows where the literals that count, or what is fixed, differ.

  Of neighbouring rows with the same literals only the fullest is needed, and
  none that never holds more than the floor.

  Args:
    fixed: What is there in every plan, at each row: int64, `[num_rows]`.
    terms: What counts if its literal holds.
    savings: What is subtracted if its literal holds, by row.
    floor_bytes: Rows that never hold more are left out.

  Attributes:
    num_terms: Of all rows, savings not counted.
  """

  def __init__(
    self,
    fixed: np.ndarray,
    terms: Sequence[_Term],
    savings: Mapping[int, Sequence[_Term]],
    floor_bytes: int,
  ):
    self._terms = terms
    self._savings = savings
    edges = {0, len(fixed)}
    edges |= {e for term in terms for e in (term.start, term.stop)}
    edges |= {row + d for row in savings for d in (0, 1)}
    self._edges = sorted(edges)
    starts = np.searchsorted(self._edges, [t.start for t in terms])
    stops = np.searchsorted(self._edges, [t.stop for t in terms])
    sizes = np.array([t.size_bytes for t in terms], np.int64)
    counts = np.zeros(len(edges), np.int64)
    held = np.zeros(len(edges), np.int64)
    for sign, at in ((1, starts), (-1, stops)):
      np.add.at(counts, at, sign)
      np.add.at(held, at, sign * sizes)
    self._fullest = np.maximum.reduceat(fixed, self._edges[:-1])
    self._is_needed = self._fullest + held.cumsum()[:-1] > floor_bytes
    self.num_terms = int(counts.cumsum()[:-1][self._is_needed].sum())

  def __iter__(self) -> Iterator[tuple[int, list[_Term], Sequence[_Term]]]:
    """Yields rows: bytes that are fixed, terms, and savings."""
    starts: dict[int, list[_Term]] = collections.defaultdict(list)
    stops: dict[int, list[_Term]] = collections.defaultdict(list)
    for term in self._terms:
      starts[term.start].append(term)
      stops[term.stop].append(term)
    active: dict[int, _Term] = {}
    for edge, fullest, is_needed in zip(
      self._edges, self._fullest.tolist(), self._is_needed, strict=False
    ):
      for term in stops[edge]:
        del active[id(term)]
      active.update((id(term), term) for term in starts[edge])
      if is_needed:
        yield fullest, [*active.values()], self._savings.get(edge, ())


def _negated(literal: _Literal) -> _Literal:
  return not literal if isinstance(literal, bool) else ~literal
