"""A lower bound on the seconds that a limit costs: a linear program."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from ortools.math_opt.python import mathopt

from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class _Gap:
  """Steps [start, stop) at which a value needs not be there.

  Attributes:
    value: The value.
    start: The first step after the earlier reader.
    stop: The step of the later reader, or the last before which it may run.
    saved_bytes: What the value's death at the earlier reader, step start - 1,
      saves there.
  """

  value: int
  start: int
  stop: int
  saved_bytes: int


def seconds(problem: BudgetProblem, limit_bytes: int) -> float:
  """Returns a lower bound on the cost of fitting a limit; inf if impossible.

  A linear program: x[g] in [0, 1] is the part of gap g over which its value is
  not kept, one row per step over the limit says that enough is not kept there,
  and x[g] costs what one run of the value's unit does, divided among the
  outputs that a run makes. That inputs have to be there is left out.

  Args:
    problem: The problem.
    limit_bytes: The limit.
  """
  live = Profile(problem).memory.live
  over = np.flatnonzero(live > limit_bytes)
  if not over.size:
    return 0.0
  model = mathopt.Model()
  terms: dict[int, list[mathopt.LinearTerm]] = collections.defaultdict(list)
  costs = []
  is_over = live > limit_bytes
  for gap in _gaps(problem):
    if not (is_over[gap.start : gap.stop].any() or gap.saved_bytes):
      continue
    variable = model.add_variable(lb=0.0, ub=1.0)
    unit = problem.units[problem.unit_of[gap.value]]
    num_outputs = sum(1 for v in unit.outputs if problem.values[v].uses)
    costs.append(unit.seconds * 1e6 / num_outputs * variable)
    size = problem.sizes[gap.value] / limit_bytes
    for step in np.flatnonzero(is_over[gap.start : gap.stop]).tolist():
      terms[gap.start + step].append(size * variable)
    if gap.saved_bytes and is_over[gap.start - 1]:
      saved = gap.saved_bytes / limit_bytes
      terms[gap.start - 1].append(saved * variable)
  for step in over.tolist():
    excess = (int(live[step]) - limit_bytes) / limit_bytes
    model.add_linear_constraint(mathopt.fast_sum(terms[step]) >= excess)
  model.minimize(mathopt.fast_sum(costs))
  result = mathopt.solve(model, mathopt.SolverType.GLOP)
  if result.termination.reason == mathopt.TerminationReason.INFEASIBLE:
    return float("inf")
  if result.termination.reason != mathopt.TerminationReason.OPTIMAL:
    return 0.0
  return max(0.0, result.dual_bound()) / 1e6


def _gaps(problem: BudgetProblem) -> Iterator[_Gap]:
  """Yields the gaps of all values that can be made again."""
  saved = _saved_at_death(problem)
  for value, stored in enumerate(problem.values):
    unit = problem.unit_of[value]
    if unit < 0 or not stored.size_bytes or stored.producer is None:
      continue
    points = [stored.producer, *stored.uses]
    for earlier, later in itertools.pairwise(points):
      # If the value is made again as late as it may be, it is there from then
      # on.
      later = min(later, problem.latest_run[unit])
      if later <= earlier:
        continue
      is_dropped = stored.is_droppable and earlier == stored.producer
      yield _Gap(
        value,
        earlier if is_dropped else earlier + 1,
        later,
        0 if is_dropped else saved.get((value, earlier), 0),
      )


def _saved_at_death(problem: BudgetProblem) -> dict[tuple[int, int], int]:
  """(value, step) -> bytes that the step saves more if the value dies there."""
  found = {}
  for index, step in enumerate(problem.steps):
    for operand, output in step.shares:
      if problem.values[operand].uses[-1:] != (index,):
        sizes = problem.sizes[operand], problem.sizes[output]
        found[operand, index] = min(sizes)
  return found
