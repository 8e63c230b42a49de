"""A lower bound on the seconds that a limit costs, by branching.

`lower_bound.seconds` leaves out what runs read. Here that counts, to any depth,
and values are there or not, while time is coarse: only a few moments of the
order have a limit, and between two of them, in a window, everything fits and
the order of things does not matter.

Variables: R[u, k], whether unit u runs again in window k; P[v, k], whether
value v is there at the moment that ends window k. That moment belongs to the
window.

1. What is there at the end of window k, what a step reads in it, and what a run
   reads in it, was there at its start, is made in it by the original, or is
   made again in it: P[v, k - 1] + R[u(v), k] >= 1 (of an original reader),
   P[v, k], or R[w, k] of each unit w that reads v.
2. At each moment the bytes of what is there, with its extra bytes, and less
   what its outputs can share at most, meet the limit.
3. So do, at a run, what it reads and makes, and what stays: S[v, k] >=
   P[v, k - 1] + P[v, k] - 1 - R[u(v), k], the values that are there at both
   ends of a window and are not made again in it.
4. Minimise the seconds of the runs.

Every plan gives a solution that costs no more: R[u, k] = 1 if it runs u before
a step of window k, once or more often, and P from its live values. Small values
are free to come and go: of them only what every plan has at a moment counts.
Runs of units that read and make little have no row 3.

More moments make a better bound of the integer program, but a worse one of its
linear relaxation, as half a run in each of two windows then serves for a whole
one. So few moments are best: the highest steps, with valleys between them.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from ortools.math_opt.python import mathopt

from jaxmem.budget import lower_bound
from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Profile

# Of the limit: how deep valleys between moments are. The first that leads to a
# program with no more variables than this is taken.
_VALLEYS = (0.05, 0.07, 0.1, 0.2, 0.5)
_MAX_VARIABLES = 2000
_MAX_NODES = 2000
_GAP = 2e-3
# Of the limit: values up to this size come and go freely.
_SMALL = 1e-4
# Of the limit: units whose inputs and outputs take less have no row 3.
_LARGE = 0.2
# Of the limit and of the bound: what floating point may get wrong.
_SLACK = 1e-6

# A variable, or known to be true.
_Presence = mathopt.Variable | Literal[True]


def seconds(problem: BudgetProblem, limit_bytes: int) -> float:
  """Returns a lower bound on the cost of fitting a limit; inf if impossible.

  At least `lower_bound.seconds`, and mostly much more where runs feed each
  other or values are large, in a few seconds of work. Like that it is about
  recomputes alone, on the given order. It does not depend on the clock.

  Args:
    problem: The problem.
    limit_bytes: The limit.
  """
  relaxed = lower_bound.seconds(problem, limit_bytes)
  live = Profile(problem).live
  if live.max(initial=0) <= limit_bytes:
    return relaxed
  for valley in _VALLEYS:
    moments = _moments(live, limit_bytes, valley)
    program = _Program(problem, limit_bytes, moments)
    if program.num_variables <= _MAX_VARIABLES:
      return max(relaxed, program.solve())
  return relaxed


def seconds_at(
  problem: BudgetProblem, limit_bytes: int, moments: Sequence[int]
) -> float:
  """Returns the bound of one choice of moments; inf if it proves impossible.

  Args:
    problem: The problem.
    limit_bytes: The limit.
    moments: Steps at which the limit counts, ascending.
  """
  return _Program(problem, limit_bytes, moments).solve()


def _moments(
  live: np.ndarray, limit_bytes: int, valley: float
) -> tuple[int, ...]:
  """Returns the highest steps over a limit, one between any two valleys.

  Args:
    live: Bytes at each step.
    limit_bytes: The limit.
    valley: How far below its neighbours a valley lies, as a part of the limit.
  """
  depth = valley * limit_bytes
  found: list[int] = []
  peak: int | None = None
  lowest = 0.0
  for step, level in enumerate(live.tolist()):
    if peak is None:
      lowest = min(lowest, level)
      if level > limit_bytes and level - lowest >= depth:
        peak = step
    elif level > live[peak]:
      peak = step
    elif live[peak] - level >= depth:
      found.append(peak)
      peak, lowest = None, level
  if peak is not None:
    found.append(peak)
  return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True)
class _Useful:
  """The last step at which something helps, -1 if never.

  Attributes:
    value: For each value, that it is there.
    unit: For each unit, that it has run again before it.
  """

  value: tuple[int, ...]
  unit: tuple[int, ...]


class _Program:
  def __init__(
    self, problem: BudgetProblem, limit_bytes: int, moments: Sequence[int]
  ):
    self._problem = problem
    self._limit = max(1, limit_bytes)
    self._moments = moments
    self._tracked = problem.size_bytes > _SMALL * limit_bytes
    self._useful = _find_useful(problem, self._tracked)
    self._model = mathopt.Model()
    self._runs: dict[tuple[int, int], mathopt.Variable] = {}
    self._present: dict[tuple[int, int], _Presence] = {}
    self._add_runs()
    self._add_presence()
    self._add_needs()
    self._add_moments()
    self._add_large_runs()
    self._unit_s = self._add_objective()

  @property
  def num_variables(self) -> int:
    """How large the program is."""
    return self._model.get_num_variables()

  def solve(self) -> float:
    """Returns the proven bound, in seconds."""
    result = mathopt.solve(
      self._model,
      mathopt.SolverType.HIGHS,
      params=mathopt.SolveParameters(
        relative_gap_tolerance=_GAP, node_limit=_MAX_NODES, random_seed=0
      ),
    )
    reasons = mathopt.TerminationReason
    if result.termination.reason in (
      reasons.INFEASIBLE,
      # No cost is negative.
      reasons.INFEASIBLE_OR_UNBOUNDED,
    ):
      return math.inf
    bound = result.termination.objective_bounds.dual_bound
    if not math.isfinite(bound):
      return 0.0
    return max(0.0, bound * (1.0 - _SLACK) - _SLACK) * self._unit_s

  # Windows.

  def _window(self, step: int) -> int:
    return bisect.bisect_left(self._moments, step)

  def _first_step(self, window: int) -> int:
    return self._moments[window - 1] + 1 if window else 0

  # Variables.

  def _add_runs(self) -> None:
    for unit, made in enumerate(self._problem.units):
      first, last = made.step + 1, self._useful.unit[unit]
      if first <= last:
        for window in range(self._window(first), self._window(last) + 1):
          self._runs[unit, window] = self._model.add_binary_variable()

  def _add_presence(self) -> None:
    for value in np.flatnonzero(self._tracked).tolist():
      made_at = _made_at(self._problem, value)
      last = self._useful.value[value]
      for window, moment in enumerate(self._moments):
        if _is_forced(self._problem, value, moment):
          self._present[value, window] = True
        elif made_at <= moment <= last:
          self._present[value, window] = self._model.add_binary_variable()

  # Rule 1.

  def _add_needs(self) -> None:
    for (value, window), is_present in self._present.items():
      self._need(value, window, is_present)
    for value in np.flatnonzero(self._tracked).tolist():
      uses = self._problem.values[value].uses
      for window in sorted({self._window(s) for s in uses}):
        self._need(value, window, True)
    for (unit, window), run in self._runs.items():
      for value in self._problem.units[unit].inputs:
        if self._tracked[value]:
          self._need(value, window, run)

  def _need(self, value: int, window: int, by: _Presence) -> None:
    """Adds: `by` implies that a value was there, or is made, in a window."""
    kept = self._present.get((value, window - 1))
    is_new = _made_at(self._problem, value) >= self._first_step(window)
    if window == 0 or is_new or kept is True:
      return
    again = self._runs.get((self._problem.unit_of[value], window))
    sources = [x for x in (kept, again) if x is not None]
    needed = 1.0 if by is True else by
    self._model.add_linear_constraint(mathopt.fast_sum(sources) >= needed)

  # Rule 2.

  def _add_moments(self) -> None:
    terms: dict[int, list[tuple[int, mathopt.Variable]]]
    terms = collections.defaultdict(list)
    for (value, window), is_present in self._present.items():
      if is_present is not True:
        size = self._problem.values[value].size_bytes
        terms[window].append((size, is_present))
    for window, moment in enumerate(self._moments):
      room = self._limit - _fixed_bytes(self._problem, moment)
      self._model.add_linear_constraint(
        mathopt.fast_sum(s / self._limit * x for s, x in terms[window])
        <= room / self._limit + _SLACK
      )

  # Rule 3.

  def _add_large_runs(self) -> None:
    stays: dict[int, list[tuple[int, mathopt.LinearTypes]]] = {}
    for (unit, window), run in self._runs.items():
      own_bytes = self._own_bytes(unit)
      # Of the first and the last window one end is not known.
      is_between = 0 < window < len(self._moments)
      if not is_between or own_bytes < _LARGE * self._limit:
        continue
      if window not in stays:
        stays[window] = list(self._staying(window))
      made = self._problem.units[unit]
      others = mathopt.fast_sum(
        part
        for value, part in stays[window]
        if value not in made.inputs and value not in made.outputs
      )
      self._model.add_linear_constraint(
        own_bytes / self._limit * run + others <= 1.0 + _SLACK
      )

  def _own_bytes(self, unit: int) -> int:
    """Returns what a run of a unit needs for itself in every plan."""
    made = self._problem.units[unit]
    own = frozenset((*made.inputs, *made.outputs))
    total = sum(self._problem.values[v].size_bytes for v in own)
    return total - lower_bound.most_shared(self._problem, made.shares, own)

  def _staying(self, window: int) -> Iterator[tuple[int, mathopt.LinearTypes]]:
    """Yields values that may stay over a window, and their part of the limit.

    Adds S.
    """
    for value in np.flatnonzero(self._tracked).tolist():
      before = self._present.get((value, window - 1))
      after = self._present.get((value, window))
      if before is None or after is None:
        continue
      again = self._runs.get((self._problem.unit_of[value], window))
      size = self._problem.values[value].size_bytes / self._limit
      if before is True and after is True and again is None:
        yield value, size
        continue
      stays = self._model.add_variable(lb=0.0, ub=1.0)
      ends = [1.0 if x is True else x for x in (before, after)]
      anew = 0.0 if again is None else again
      self._model.add_linear_constraint(
        stays + anew >= mathopt.fast_sum(ends) - 1.0
      )
      yield value, size * stays

  # Rule 4.

  def _add_objective(self) -> float:
    """Adds the cost; returns the seconds of one of its units."""
    costs = [u.seconds for u in self._problem.units]
    unit_s = max(costs, default=0.0) or 1.0
    self._model.minimize(
      mathopt.fast_sum(
        costs[unit] / unit_s * run for (unit, _), run in self._runs.items()
      )
    )
    return unit_s


def _find_useful(problem: BudgetProblem, tracked: np.ndarray) -> _Useful:
  """Finds until when values and runs help anyone who needs a tracked value."""
  last_use = [max(v.uses, default=-1) for v in problem.values]
  last_run = [-1] * len(problem.units)
  # Whatever reads an output comes later, as a step and as a run.
  for unit in reversed(range(len(problem.units))):
    made = problem.units[unit]
    if not any(tracked[v] for v in made.outputs):
      continue
    last = max(last_use[v] for v in made.outputs if tracked[v])
    last_run[unit] = min(last, problem.latest_run[unit])
    for value in made.inputs:
      last_use[value] = max(last_use[value], last_run[unit])
  return _Useful(tuple(last_use), tuple(last_run))


def _made_at(problem: BudgetProblem, value: int) -> int:
  producer = problem.values[value].producer
  return -1 if producer is None else producer


def _is_forced(problem: BudgetProblem, value: int, step: int) -> bool:
  """Whether a value is there at a step in every plan."""
  stored = problem.values[value]
  if step == stored.producer:
    return not stored.is_droppable
  return step in stored.uses or _is_pinned(problem, value, step)


def _is_pinned(problem: BudgetProblem, value: int, step: int) -> bool:
  """Whether a value is there at a step, and stays, in every plan."""
  stored = problem.values[value]
  return (
    problem.unit_of[value] < 0
    and _made_at(problem, value) < step
    and (stored.is_result or max(stored.uses, default=-1) > step)
  )


def _fixed_bytes(problem: BudgetProblem, step: int) -> int:
  """Returns what a step needs in every plan, less all that it may share."""
  forced = [
    v for v in range(len(problem.values)) if _is_forced(problem, v, step)
  ]
  mortal = frozenset(range(len(problem.values))) - {
    v for v in forced if _is_pinned(problem, v, step)
  }
  shares = problem.steps[step].shares
  shared = lower_bound.most_shared(problem, shares, mortal)
  own = sum(problem.values[v].size_bytes for v in forced)
  return own + problem.steps[step].extra_bytes - shared
