"""States which residuals of a step could be dropped, and what that takes."""

import functools
from collections.abc import Callable

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.versions.equation_cost import equation_seconds
from jaxmem.versions.knapsack import DropProblem, Need, Work
from jaxmem.versions.scan.levels import Level
from jaxmem.versions.scan.pairs import Pair
from jaxmem.versions.values import operands


def make_problem(
  level: Level, rates: Rates, *, is_fused: bool
) -> tuple[DropProblem, list[str]]:
  """States the choice among all residuals of a level and within.

  Bytes of pairs at different places count as if they were live together.

  Args:
    level: The level.
    rates: Of the device that will run it.
    is_fused: Whether what is recomputed may be fused with what reads it.

  Returns:
    The problem, and the residual that each of its drops stands for.
  """
  builder = _Builder(rates, is_fused)
  for pair, num_runs in level.walk():
    builder.add(pair, num_runs)
  problem = DropProblem(
    saved_bytes=tuple(builder.saved_bytes),
    works=tuple(builder.works),
    needs=tuple(builder.needs),
    relief_s=tuple(builder.relief_s),
  )
  return problem, builder.names


class _Builder:
  """Collects the drops, works and needs of one pair after another."""

  def __init__(self, rates: Rates, is_fused: bool):
    self.saved_bytes: list[int] = []
    self.relief_s: list[float] = []
    self.names: list[str] = []
    self.works: list[Work] = []
    self.needs: list[Need] = []
    self._rates = rates
    self._is_fused = is_fused

  def add(self, pair: Pair, num_runs: int) -> None:
    """Adds the drops of a pair and all that they may ask for.

    Args:
      pair: The loops.
      num_runs: How often they run in one step.
    """
    stays: dict[core.Var, tuple[int, ...]] = {}
    first = len(self.names)
    for residual in pair.residuals:
      if residual.is_read_directly and isinstance(residual.value, core.Var):
        others = stays.get(residual.value, ())
        stays[residual.value] = (*others, len(self.names))
      relief_s = num_runs * self._transfer_seconds(2.0 * residual.size_bytes)
      self._add_drop(residual.name, residual.size_bytes, relief_s)
    seconds_of = functools.partial(self._seconds_of, pair, num_runs)
    sources = _Sources(self, pair, stays, seconds_of)
    for drop, residual in enumerate(pair.residuals, first):
      if isinstance(residual.value, core.Var):
        sources.need(True, drop, residual.value)
    sources.finish()
    for hoisted in pair.hoisted:  # They ask for nothing.
      # It is written once and read in every iteration of both loops. A
      # broadcast within an iteration takes nothing if it is fused with what
      # reads it, and otherwise about as much.
      num_bytes = (1.0 + 2.0 * pair.length) * hoisted.size_bytes
      relief_s = num_runs * self._transfer_seconds(num_bytes)
      self._add_drop(
        hoisted.name, hoisted.size_bytes, relief_s if self._is_fused else 0.0
      )

  def _add_drop(self, name: str, size_bytes: int, relief_s: float) -> None:
    self.names.append(name)
    self.saved_bytes.append(size_bytes)
    self.relief_s.append(relief_s)

  def _transfer_seconds(self, num_bytes: float) -> float:
    return self._rates.seconds({}, 0.0, num_bytes) - self._rates.launch_s

  def _seconds_of(self, pair: Pair, num_runs: int, index: int) -> float:
    """Returns what an equation of the forward body takes in one step."""
    once = equation_seconds(
      pair.body.eqns[index], self._rates, is_fused=self._is_fused
    )
    return num_runs * pair.length * once


class _Sources:
  """Says for each value of a forward body what provides it.

  Args:
    builder: Collects the works and needs.
    pair: The loops.
    stays: Values that are stacked -> the drops of their stacks.
    seconds_of: Returns what an equation of the body takes.
  """

  def __init__(
    self,
    builder: _Builder,
    pair: Pair,
    stays: dict[core.Var, tuple[int, ...]],
    seconds_of: Callable[[int], float],
  ):
    self._builder = builder
    self._pair = pair
    self._stays = stays
    self._seconds_of = seconds_of
    self._inputs = {v: number for number, v in enumerate(pair.body.invars)}
    # By the position of an input or equation of the body, the work for it.
    self._work_of_input: dict[int, int] = {}
    self._work_of_equation: dict[int, int] = {}
    self._pending: list[tuple[int, int]] = []

  def need(self, is_drop: bool, trigger: int, var: core.Var) -> None:
    """Adds what a drop or a work needs to have one of its values."""
    if var in self._pair.kept:
      return
    stays = self._stays.get(var, ())
    if var in self._inputs:
      number = self._inputs[var]
      if not self._pair.is_carry(number):
        extended_bytes = self._pair.extended_bytes.get(number, 0)
        if not extended_bytes:
          return
        work = self._input(number, extended_bytes)
      elif stays:
        # A stack of its own would only replace the one that is there.
        work = None
      else:
        work = self._input(number, self._pair.carry_bytes(number))
    elif var in self._pair.definers:
      work = self._equation(self._pair.definers[var])
    else:
      return  # A constant of the body.
    self._builder.needs.append(Need(is_drop, trigger, stays, work))

  def finish(self) -> None:
    """Adds what the works need, and the works that these need."""
    while self._pending:
      work, index = self._pending.pop()
      for var in operands(self._pair.body.eqns[index]):
        self.need(False, work, var)

  def _input(self, number: int, size_bytes: int) -> int:
    if number not in self._work_of_input:
      self._work_of_input[number] = self._add(Work(0.0, size_bytes))
    return self._work_of_input[number]

  def _equation(self, index: int) -> int | None:
    if index in self._pair.forbidden:
      return None
    if index not in self._work_of_equation:
      work = self._add(Work(self._seconds_of(index), 0))
      self._work_of_equation[index] = work
      self._pending.append((work, index))
    return self._work_of_equation[index]

  def _add(self, work: Work) -> int:
    self._builder.works.append(work)
    return len(self._builder.works) - 1
