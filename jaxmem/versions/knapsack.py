"""Which residuals to drop: an exact choice of the cheapest set.

Dropping a residual saves its bytes and asks for the equation that defines it
to run again. That equation asks for its operands, each of which is read, if it
is stacked and stays, or computed. Equations that several residuals need run
once. Saving enough bytes in the fewest seconds is then a small covering
problem:

  minimise    sum of seconds w[i] - sum of relief d[i]
  subject to  saved bytes of the drops, less bytes of the work, >= the target
              trigger -> some stack that stays, or the work that computes it

where drops d and works w are 0 or 1, and triggers are drops and works.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from jaxmem.solver import cpsat

# CP-SAT counts in integers.
_PICOSECONDS_PER_S = 1e12
_MAX_DETERMINISTIC_TIME = 20.0
# The same step is asked about several times while a version of it is chosen.
_MAX_CHOICES_REMEMBERED = 8


class Work(NamedTuple):
  """Something that has to be done so that residuals may go.

  Attributes:
    seconds: What it takes, over all iterations.
    size_bytes: What it needs memory for, all the while.
  """

  seconds: float
  size_bytes: int


class Need(NamedTuple):
  """What a drop or a work asks for.

  Attributes:
    is_drop: Whether the trigger is a drop.
    trigger: Index of the drop or work.
    stays: Drops; it is enough that one of them is not made.
    work: The work that serves otherwise; None if there is none.
  """

  is_drop: bool
  trigger: int
  stays: tuple[int, ...]
  work: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropProblem:
  """What can be dropped, and what that takes.

  Attributes:
    saved_bytes: Per drop.
    works: What drops may ask for.
    needs: Which drop or work asks for what.
    relief_s: Per drop, what writing and reading it took; nothing if empty.
  """

  saved_bytes: tuple[int, ...]
  works: tuple[Work, ...]
  needs: tuple[Need, ...]
  relief_s: tuple[float, ...] = ()

  @property
  def relief(self) -> tuple[float, ...]:
    """Seconds per drop."""
    return self.relief_s or (0.0,) * len(self.saved_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropChoice:
  """A set of drops.

  Attributes:
    drops: Indices, ascending.
    saved_bytes: What they save, the bytes of the work deducted.
    seconds: What the work takes, less what the drops took: it can be negative.
    is_optimal: Whether nothing cheaper saves the bytes asked for; where they
      cannot be saved, whether nothing saves more, or as much for less.
  """

  drops: tuple[int, ...]
  saved_bytes: int
  seconds: float
  is_optimal: bool


@functools.lru_cache(maxsize=_MAX_CHOICES_REMEMBERED)
def choose(
  problem: DropProblem,
  save_bytes: int | None,
  max_deterministic_time: float = _MAX_DETERMINISTIC_TIME,
) -> DropChoice:
  """Chooses the cheapest drops that save enough.

  Args:
    problem: What can be dropped.
    save_bytes: What to save; None for as much as possible. If it is more than
      that, as much as possible is saved, in the fewest seconds.
    max_deterministic_time: CP-SAT's work on each of two questions.

  Returns:
    The choice; deterministic.
  """
  empty = DropChoice(drops=(), saved_bytes=0, seconds=0.0, is_optimal=True)
  if not problem.saved_bytes or (save_bytes is not None and save_bytes <= 0):
    return empty
  most = _Model(problem, max_deterministic_time)
  reached, proved = most.maximise_saving()
  if reached <= 0:
    return dataclasses.replace(empty, is_optimal=proved)
  target = reached if save_bytes is None else min(save_bytes, reached)
  # A target that a first solution passes does not depend on the maximum.
  is_bounded = save_bytes is not None and save_bytes <= reached
  model = _Model(problem, max_deterministic_time)
  choice = model.minimise_seconds(target)
  is_optimal = choice.is_optimal and (proved or is_bounded)
  return dataclasses.replace(choice, is_optimal=is_optimal)


class Chooser:
  """Chooses drops for one problem after another.

  Args:
    known: The drops of the first problems, if they were chosen before; they are
      not chosen again.

  Attributes:
    answers: The drops of all problems so far.
  """

  def __init__(self, known: Sequence[tuple[int, ...]] = ()):
    self.answers: list[tuple[int, ...]] = []
    self._known = known

  def drops(
    self,
    problem: DropProblem,
    save_bytes: int | None,
    max_deterministic_time: float = _MAX_DETERMINISTIC_TIME,
  ) -> tuple[int, ...]:
    """Returns the drops that `choose` chooses."""
    number = len(self.answers)
    if number < len(self._known):
      drops = self._known[number]
    else:
      drops = choose(problem, save_bytes, max_deterministic_time).drops
    self.answers.append(drops)
    return drops


class _Model:
  """The 0-1 program."""

  def __init__(self, problem: DropProblem, max_deterministic_time: float):
    self._problem = problem
    self._work = max_deterministic_time
    self._model = cp_model.CpModel()
    self._drops = [
      self._model.new_bool_var(f"d{i}") for i in range(len(problem.saved_bytes))
    ]
    self._works = [
      self._model.new_bool_var(f"w{i}") for i in range(len(problem.works))
    ]
    self._add_needs()

  def maximise_saving(self) -> tuple[int, bool]:
    """Returns the most bytes that can be saved, and whether it is proved."""
    self._model.maximize(self._saving())
    solver = cpsat.make_solver(self._work)
    status = cpsat.solve(solver, self._model)
    if status not in ("optimal", "feasible"):
      return 0, False
    return round(solver.objective_value), status == "optimal"

  def minimise_seconds(self, save_bytes: int) -> DropChoice:
    """Returns the cheapest choice that saves enough, which must exist."""
    self._model.add(self._saving() >= save_bytes)
    costs = [round(w.seconds * _PICOSECONDS_PER_S) for w in self._problem.works]
    relief = [round(s * _PICOSECONDS_PER_S) for s in self._problem.relief]
    # Of equally cheap choices the one with fewest drops is the least, so that
    # no drop serves nothing.
    scale = len(self._drops) + 1
    self._model.minimize(
      cp_model.LinearExpr.weighted_sum(
        [*self._works, *self._drops],
        [*(scale * cost for cost in costs), *(1 - scale * r for r in relief)],
      )
    )
    solver = cpsat.make_solver(self._work)
    status = cpsat.solve(solver, self._model)
    if status not in ("optimal", "feasible"):
      return DropChoice(drops=(), saved_bytes=0, seconds=0.0, is_optimal=False)
    return self._to_choice(solver, status == "optimal")

  def _add_needs(self) -> None:
    for need in self._problem.needs:
      triggers = self._drops if need.is_drop else self._works
      literals = [self._drops[drop].negated() for drop in need.stays]
      if need.work is not None:
        literals.append(self._works[need.work])
      self._model.add_bool_or([triggers[need.trigger].negated(), *literals])

  def _saving(self) -> cp_model.LinearExprT:
    sizes = [-work.size_bytes for work in self._problem.works]
    return cp_model.LinearExpr.weighted_sum(
      [*self._drops, *self._works], [*self._problem.saved_bytes, *sizes]
    )

  def _to_choice(
    self, solver: cp_model.CpSolver, is_optimal: bool
  ) -> DropChoice:
    drops = [i for i, d in enumerate(self._drops) if solver.boolean_value(d)]
    works = [
      self._problem.works[i]
      for i, w in enumerate(self._works)
      if solver.boolean_value(w)
    ]
    saved = sum(self._problem.saved_bytes[i] for i in drops)
    return DropChoice(
      drops=tuple(drops),
      saved_bytes=saved - sum(work.size_bytes for work in works),
      seconds=sum(work.seconds for work in works)
      - sum(self._problem.relief[i] for i in drops),
      is_optimal=is_optimal,
    )
