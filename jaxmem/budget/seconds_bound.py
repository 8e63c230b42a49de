"""A lower bound on the seconds that a limit costs: a linear program.

For each span over which a value need not be there, one variable says which part
of it is bridged by making the value again, and another by moving it to the host
and back. What runs need as inputs is left out, and so is that a value goes as a
whole, so that no plan costs less. To make a value later, and not where it was
made before if nobody reads it there, costs nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from ortools.math_opt.python import mathopt

from jaxmem.budget.offload import OffloadRates
from jaxmem.budget.problem import BudgetProblem
from jaxmem.budget.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class _Gap:
  """Steps at which a value need not be there, from `start` on.

  Attributes:
    value: The value.
    start: The first step after the earlier reader.
    made_by: The step before which it has to be made again at the latest; None
      if it cannot be.
    back_by: The step before which it has to be back from the host; None if it
      cannot go there.
    saved_bytes: What the value's death at the earlier reader, step start - 1,
      saves there.
  """

  value: int
  start: int
  made_by: int | None
  back_by: int | None
  saved_bytes: int


def least_seconds(
  problem: BudgetProblem,
  limit_bytes: int,
  link: OffloadRates | None = None,
  most_s: float = math.inf,
) -> float:
  """Returns seconds that every plan for a limit adds; inf if there is none.

  Args:
    problem: The problem.
    limit_bytes: The limit, slots included.
    link: Of the link to the host; None if nothing may go there.
    most_s: Plans that add more are not looked at, so that copies have no more
      time than that besides the step's own. The most that is returned.
  """
  program = _Program(problem, limit_bytes, link, most_s)
  return min(most_s, program.solve())


class _Program:
  """The linear program: bytes as shares of the limit, microseconds."""

  def __init__(
    self,
    problem: BudgetProblem,
    limit_bytes: int,
    link: OffloadRates | None,
    most_s: float,
  ):
    self._problem = problem
    self._limit = limit_bytes
    self._live = Profile(problem).memory.live
    self._is_over = self._live > limit_bytes
    self._model = mathopt.Model()
    self._costs: list[mathopt.LinearTerm] = []
    # By step, what is not there since it is made again, or since it moved.
    self._made: dict[int, list[mathopt.LinearTerm]] = collections.defaultdict(
      list
    )
    self._moved: dict[int, list[mathopt.LinearTerm]] = collections.defaultdict(
      list
    )
    for gap in _gaps(problem, with_host=link is not None):
      self._add_gap(gap)
    if link is not None:
      self._limit_moves(link, most_s)

  def solve(self) -> float:
    """Returns the bound in seconds."""
    model = self._model
    over = np.flatnonzero(self._is_over)
    for step in over.tolist():
      excess = self._share(int(self._live[step]) - self._limit)
      gone = [*self._made[step], *self._moved[step]]
      model.add_linear_constraint(mathopt.fast_sum(gone) >= excess)
    model.minimize(mathopt.fast_sum(self._costs))
    result = mathopt.solve(model, mathopt.SolverType.GLOP)
    if result.termination.reason == mathopt.TerminationReason.INFEASIBLE:
      return math.inf
    if result.termination.reason != mathopt.TerminationReason.OPTIMAL:
      return 0.0
    return max(0.0, result.dual_bound()) / 1e6

  def _share(self, num_bytes: int) -> float:
    return num_bytes / max(1, self._limit)

  def _add_gap(self, gap: _Gap) -> None:
    """Adds what may bridge a gap, each only if it is of use anywhere."""
    made = self._add_part(gap, gap.made_by, self._made)
    stored = self._problem.values[gap.value]
    is_moved_back = stored.is_droppable and gap.start == stored.producer
    if made is not None and not is_moved_back:
      unit = self._problem.units[self._problem.unit_of[gap.value]]
      values = self._problem.values
      num_outputs = sum(1 for v in unit.outputs if values[v].uses)
      self._costs.append(unit.seconds * 1e6 / num_outputs * made)
    moved = self._add_part(gap, gap.back_by, self._moved)
    if made is not None and moved is not None:
      self._model.add_linear_constraint(made + moved <= 1.0)

  def _add_part(
    self,
    gap: _Gap,
    stop: int | None,
    terms: dict[int, list[mathopt.LinearTerm]],
  ) -> mathopt.Variable | None:
    """Adds the part of a gap that is bridged in one of the two ways.

    Args:
      gap: The gap.
      stop: The step before which the value has to be there again.
      terms: Of the ways, by step; what the part frees is added.
    """
    if stop is None:
      return None
    over = gap.start + np.flatnonzero(self._is_over[gap.start : stop])
    is_saving = gap.saved_bytes and self._is_over[gap.start - 1]
    if not (over.size or is_saving):
      return None
    part = self._model.add_variable(lb=0.0, ub=1.0)
    size = self._share(self._problem.sizes[gap.value])
    for step in over.tolist():
      terms[step].append(size * part)
    if is_saving:
      terms[gap.start - 1].append(self._share(gap.saved_bytes) * part)
    return part

  def _limit_moves(self, link: OffloadRates, most_s: float) -> None:
    """What moved by a step has left before it, and comes back after it."""
    seconds = [step.seconds for step in self._problem.steps]
    begin_s = np.cumsum([0.0, *seconds])
    # Originals that are left out make room for as many more seconds.
    most_s += sum(
      self._problem.units[self._problem.unit_of[v]].seconds
      for v, stored in enumerate(self._problem.values)
      if stored.is_droppable and self._problem.unit_of[v] >= 0
    )
    for step, moved in self._moved.items():
      out_s = float(begin_s[step]) + most_s
      back_s = float(begin_s[-1] - begin_s[step]) + most_s
      most_bytes = min(
        link.to_host_bytes_per_s * out_s, link.from_host_bytes_per_s * back_s
      )
      gone = self._model.add_variable(lb=0.0, ub=most_bytes / self._limit)
      self._model.add_linear_constraint(gone <= mathopt.fast_sum(moved))
      self._moved[step] = [1.0 * gone]


def _gaps(problem: BudgetProblem, with_host: bool) -> Iterator[_Gap]:
  """Yields the gaps of all values that can be made again, or can move."""
  saved = _saved_at_death(problem)
  for value, stored in enumerate(problem.values):
    if not stored.size_bytes or stored.producer is None:
      continue
    unit = problem.unit_of[value]
    may_move = (
      with_host and stored.moves_as is not None and not stored.is_result
    )
    for earlier, later in itertools.pairwise([stored.producer, *stored.uses]):
      # If the value is made again as late as it may be, it is there from then
      # on.
      made_by = None if unit < 0 else min(later, problem.latest_run[unit])
      if made_by is not None and made_by <= earlier:
        made_by = None
      is_dropped = stored.is_droppable and earlier == stored.producer
      yield _Gap(
        value=value,
        start=earlier if is_dropped else earlier + 1,
        made_by=made_by,
        back_by=later if may_move else None,
        saved_bytes=0 if is_dropped else saved.get((value, earlier), 0),
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
