"""Which residuals to drop: an exact choice of the cheapest set.

Dropping a residual saves its bytes and asks for the equation that defines it
to run again. That equation asks for its operands, each of which is read, if it
is stacked and stays, or computed, or stacked in addition. Equations that
several residuals need run once. Saving enough bytes in the fewest seconds is
then a small covering problem:

  minimise    sum of seconds w[i] - sum of relief d[i]
  subject to  saved bytes of the drops, less bytes of the work, >= the target
              trigger -> some stack that stays, or some work that serves it

where drops d and works w are 0 or 1, and triggers are drops and works.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from jaxmem.solver import cpsat

# CP-SAT counts in integers.
_PICOSECONDS_PER_S = 1e12
_MAX_DETERMINISTIC_TIME = 20.0
# More than a kernel takes in all iterations, so that a drop is made.
_ALWAYS_S = 0.1
# The same step is asked about several times while a version of it is chosen.
_MAX_CHOICES_REMEMBERED = 8


class Drop(NamedTuple):
  """A residual that may go.

  Attributes:
    size_bytes: What that saves.
    relief_s: What writing and reading it took.
    name: What it is called, if it has a name.
    is_product: Whether it is the result of a product, or of as heavy a kernel.
  """

  size_bytes: int
  relief_s: float = 0.0
  name: str = ""
  is_product: bool = False


class Work(NamedTuple):
  """Something that has to be done so that residuals may go.

  Attributes:
    seconds: What it takes, over all iterations.
    size_bytes: What it needs memory for, all the while.
    name: What it is called, if whether it is done does not follow from the
      drops.
    is_product: Whether it is a product, or as heavy a kernel, that runs again.
  """

  seconds: float
  size_bytes: int = 0
  name: str = ""
  is_product: bool = False


class Need(NamedTuple):
  """What a drop or a work asks for.

  Attributes:
    is_drop: Whether the trigger is a drop.
    trigger: Index of the drop or work.
    stays: Drops; it is enough that one of them is not made.
    works: The works that serve otherwise, any one of them. At most one has no
      name.
  """

  is_drop: bool
  trigger: int
  stays: tuple[int, ...]
  works: tuple[int, ...]


class DropProblem(NamedTuple):
  """What can be dropped, what drops may ask for, and which asks for what."""

  drops: tuple[Drop, ...]
  works: tuple[Work, ...]
  needs: tuple[Need, ...]

  @property
  def named_works(self) -> list[int]:
    """The works that have names."""
    return [index for index, work in enumerate(self.works) if work.name]

  def names(
    self, chosen: Sequence[int]
  ) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of drops, and those of works, that `choose` chose."""
    number = len(self.drops)
    drops = tuple(self.drops[i].name for i in chosen if i < number)
    works = tuple(self.works[i - number].name for i in chosen if i >= number)
    return drops, works

  def keeping_products(self) -> "DropProblem":
    """Returns the choice to drop all for which no product has to run again.

    It has the same drops and works, and so the same answers.
    """
    drops = tuple(
      d if d.is_product else d._replace(relief_s=_ALWAYS_S) for d in self.drops
    )
    # Nothing serves what a product would need.
    never = tuple(
      Need(False, index, (), ())
      for index, work in enumerate(self.works)
      if work.is_product
    )
    return DropProblem(drops, self.works, (*self.needs, *never))

  def seconds(self, chosen: Sequence[int]) -> float:
    """Returns what a choice that `choose` made takes, its relief deducted."""
    number = len(self.drops)
    drops = {i for i in chosen if i < number}
    works = {i - number for i in chosen if i >= number}
    needs: dict[tuple[bool, int], list[Need]] = {}
    for need in self.needs:
      needs.setdefault((need.is_drop, need.trigger), []).append(need)
    pending = [(True, drop) for drop in drops]
    while pending:
      for need in needs.get(pending.pop(), ()):
        if drops.issuperset(need.stays) and works.isdisjoint(need.works):
          # What has no name is done where nothing else serves.
          again = next(w for w in need.works if not self.works[w].name)
          works.add(again)
          pending.append((False, again))
    relief_s = sum(self.drops[drop].relief_s for drop in sorted(drops))
    return sum(self.works[work].seconds for work in sorted(works)) - relief_s


@functools.lru_cache(maxsize=_MAX_CHOICES_REMEMBERED)
def choose(
  problem: DropProblem,
  save_bytes: int | None,
  max_deterministic_time: float = _MAX_DETERMINISTIC_TIME,
  *,
  is_free: bool = False,
) -> tuple[int, ...]:
  """Chooses the cheapest drops that save enough.

  Args:
    problem: What can be dropped.
    save_bytes: What to save; None for as much as possible. If it is more than
      that, as much as possible is saved, in the fewest seconds.
    max_deterministic_time: CP-SAT's work on each of two questions.
    is_free: Whether to drop what saves time although no bytes need be saved.

  Returns:
    Indices of the drops, ascending, and behind them those of named works, which
    are counted behind all drops; deterministic. The cheapest that could be
    found, if CP-SAT ran out of time.
  """
  asks_nothing = save_bytes is not None and save_bytes <= 0
  if not problem.drops or (asks_nothing and not is_free):
    return ()
  model = cp_model.CpModel()
  drops = [model.new_bool_var(f"d{i}") for i in range(len(problem.drops))]
  works = [model.new_bool_var(f"w{i}") for i in range(len(problem.works))]
  for need in problem.needs:
    trigger = (drops if need.is_drop else works)[need.trigger]
    served = [drops[drop].negated() for drop in need.stays]
    served += [works[work] for work in need.works]
    model.add_bool_or([trigger.negated(), *served])
  sizes = [drop.size_bytes for drop in problem.drops]
  sizes += [-work.size_bytes for work in problem.works]
  saving = cp_model.LinearExpr.weighted_sum([*drops, *works], sizes)
  model.maximize(saving)
  solver = _solve(model, max_deterministic_time)
  most_bytes = round(solver.objective_value) if solver else 0
  if most_bytes <= 0:
    return ()
  least_bytes = most_bytes if save_bytes is None else save_bytes
  model.add(saving >= min(least_bytes, most_bytes))
  costs = [round(work.seconds * _PICOSECONDS_PER_S) for work in problem.works]
  relief = [round(drop.relief_s * _PICOSECONDS_PER_S) for drop in problem.drops]
  named = problem.named_works
  # Of equally cheap choices the one with fewest drops and named works is the
  # least, so that none serves nothing.
  scale = len(drops) + len(named) + 1
  weights = [scale * cost for cost in costs]
  for work in named:
    weights[work] += 1
  weights += [1 - scale * each for each in relief]
  model.minimize(cp_model.LinearExpr.weighted_sum([*works, *drops], weights))
  solver = _solve(model, max_deterministic_time)
  if solver is None:
    return ()
  chosen = [i for i, drop in enumerate(drops) if solver.boolean_value(drop)]
  chosen += [len(drops) + w for w in named if solver.boolean_value(works[w])]
  return tuple(chosen)


class Chooser:
  """Chooses drops for one problem after another.

  Args:
    known: What was chosen for the first problems before, if it was; that is not
      chosen again.

  Attributes:
    answers: What was chosen for all problems so far.
  """

  def __init__(self, known: Sequence[tuple[int, ...]] = ()):
    self.answers: list[tuple[int, ...]] = []
    self._known = known

  def drops(
    self,
    problem: DropProblem,
    save_bytes: int | None,
    max_deterministic_time: float = _MAX_DETERMINISTIC_TIME,
    *,
    is_free: bool = False,
  ) -> tuple[int, ...]:
    """Returns what `choose` chooses: drops, and named works."""
    number = len(self.answers)
    if number < len(self._known):
      drops = self._known[number]
    else:
      drops = choose(
        problem, save_bytes, max_deterministic_time, is_free=is_free
      )
    self.answers.append(drops)
    return drops


def _solve(
  model: cp_model.CpModel, max_deterministic_time: float
) -> cp_model.CpSolver | None:
  """Returns the solver with its solution; None if it found none."""
  solver = cpsat.make_solver(max_deterministic_time)
  is_solved = cpsat.solve(solver, model) in ("optimal", "feasible")
  return solver if is_solved else None
