"""Lower bounds: seconds that a limit costs, and bytes that no plan goes below.

Both are about the problem as it is: its order, its units, its costs.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from ortools.math_opt.python import mathopt

from jaxmem.budget.events import Profile
from jaxmem.budget.problem import BudgetProblem


@dataclasses.dataclass(frozen=True, slots=True)
class _Gap:
  """Steps [start, stop) at which a value needs not be there.

  Attributes:
    value: The value.
    start: The first step after the earlier reader.
    stop: The step of the later reader.
    shared: Step -> bytes that the value's death at the earlier reader saves
      there.
  """

  value: int
  start: int
  stop: int
  shared: dict[int, int]


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
  live = Profile(problem).live
  over = np.flatnonzero(live > limit_bytes)
  if not over.size:
    return 0.0
  model = mathopt.Model()
  terms: dict[int, list[mathopt.LinearTerm]] = collections.defaultdict(list)
  costs = []
  is_over = live > limit_bytes
  for gap in _gaps(problem):
    if not (is_over[gap.start : gap.stop].any() or gap.shared):
      continue
    variable = model.add_variable(lb=0.0, ub=1.0)
    unit = problem.units[problem.unit_of[gap.value]]
    num_outputs = sum(1 for v in unit.outputs if problem.values[v].uses)
    costs.append(unit.seconds * 1e6 / num_outputs * variable)
    size = problem.values[gap.value].size_bytes / limit_bytes
    for step in np.flatnonzero(is_over[gap.start : gap.stop]).tolist():
      terms[gap.start + step].append(size * variable)
    for step, saved in gap.shared.items():
      if is_over[step]:
        terms[step].append(saved / limit_bytes * variable)
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
  shares = _shared_at_death(problem)
  for value, stored in enumerate(problem.values):
    unit = problem.unit_of[value]
    if unit < 0 or not stored.size_bytes or stored.producer is None:
      continue
    points = [stored.producer, *stored.uses]
    for earlier, later in itertools.pairwise(points):
      if later > problem.latest_run[unit]:
        continue
      is_dropped = stored.is_droppable and earlier == stored.producer
      yield _Gap(
        value,
        earlier if is_dropped else earlier + 1,
        later,
        {} if is_dropped else shares.get((value, earlier), {}),
      )


def _shared_at_death(
  problem: BudgetProblem,
) -> dict[tuple[int, int], dict[int, int]]:
  """(value, step) -> what the step saves more if the value dies there."""
  found = {}
  for index, step in enumerate(problem.steps):
    for operand, output in step.shares:
      if problem.values[operand].uses[-1:] != (index,):
        sizes = (problem.values[v].size_bytes for v in (operand, output))
        found[operand, index] = {index: min(sizes)}
  return found


@dataclasses.dataclass(frozen=True, slots=True)
class ByteBound:
  """Bytes that no plan goes below, and what forces them.

  Attributes:
    num_bytes: The bound.
    step: Where.
    values: Those that have to be there then, largest first.
  """

  num_bytes: int
  step: int
  values: tuple[int, ...]


def unavoidable_bytes(
  problem: BudgetProblem, may_leave: frozenset[int] = frozenset()
) -> ByteBound:
  """Returns the most bytes that some step needs in every plan.

  These are its operands and outputs, its extra bytes, and values on their way
  from an earlier to a later step that cannot be made again.

  Args:
    problem: The problem.
    may_leave: Values that can go to the host and come back.
  """
  needed: list[set[int]] = [set() for _ in problem.steps]
  passing = np.zeros(problem.num_steps + 1, np.int64)
  spans: list[tuple[int, int, int]] = []
  end = problem.num_steps
  for value, stored in enumerate(problem.values):
    if not stored.size_bytes:
      continue
    first = -1 if stored.producer is None else stored.producer
    points = [first, *stored.uses, *[end] * stored.is_result]
    for point in points:
      if 0 <= point < end and not (stored.is_droppable and point == first):
        needed[point].add(value)
    unit = problem.unit_of[value]
    for earlier, later in itertools.pairwise(points):
      is_made = unit >= 0 and later <= problem.latest_run[unit]
      if not is_made and value not in may_leave:
        passing[earlier + 1] += stored.size_bytes
        passing[later] -= stored.size_bytes
        spans.append((value, earlier, later))
  totals = np.cumsum(passing)[:-1] + problem.extra_bytes
  for step, values in enumerate(needed):
    totals[step] += sum(problem.values[v].size_bytes for v in values)
    totals[step] -= _most_shared(problem, step)
  if not totals.size:
    return ByteBound(0, 0, ())
  worst = int(totals.argmax())
  forced = needed[worst] | {v for v, a, b in spans if a < worst < b}
  return ByteBound(
    int(totals[worst]),
    worst,
    tuple(sorted(forced, key=lambda v: (-problem.values[v].size_bytes, v))),
  )


def _most_shared(problem: BudgetProblem, step: int) -> int:
  """A bound on what a step's outputs share with operands, in any plan."""
  best: dict[int, int] = {}
  for operand, output in problem.steps[step].shares:
    size = min(problem.values[v].size_bytes for v in (operand, output))
    best[output] = max(best.get(output, 0), size)
  return sum(best.values())
