"""A jaxpr and the bodies of its loops and branches, each with its pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.jaxpr import CUSTOM_DERIVATIVES, flatten
from jaxmem.versions.equation_cost import equation_seconds
from jaxmem.versions.knapsack import DropProblem, Need, Work
from jaxmem.versions.scan.pairs import (
  Pair,
  Skipped,
  definers_of,
  find_pairs,
  iter_inner,
)
from jaxmem.versions.scan.recipe import carry_bytes, is_carry


class Inner(NamedTuple):
  """A body within an equation.

  Attributes:
    equation: The equation's position.
    parameter: Which of its parameters holds the body.
    branch: Where in the parameter, if that is a tuple.
    level: The body.
  """

  equation: int
  parameter: str
  branch: int | None
  level: Level


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
  """A flat jaxpr.

  Attributes:
    jaxpr: The jaxpr, flat.
    pairs: Its pairs of loops.
    inner: Bodies in which there are pairs; not those of the loops of a pair,
      which change.
    skipped: What stays, in this level and within.
    num_runs: How often the level runs in one step; `while` counts as once.
    num_scans: How many scans there are, in this level and within.
  """

  jaxpr: core.Jaxpr
  pairs: tuple[Pair, ...]
  inner: tuple[Inner, ...]
  skipped: tuple[Skipped, ...]
  num_runs: int
  num_scans: int

  def walk(self) -> Iterator[tuple[Pair, int]]:
    """Yields each pair with the number of times it runs in one step."""
    for pair in self.pairs:
      yield pair, self.num_runs
    for inner in self.inner:
      yield from inner.level.walk()


def make_level(jaxpr: core.Jaxpr, where: str = "", num_runs: int = 1) -> Level:
  """Finds the pairs of a jaxpr and of all bodies within.

  Args:
    jaxpr: Any; it is flattened.
    where: Prefixed to all names.
    num_runs: How often it runs in one step.
  """
  flat = flatten(jaxpr, keep=CUSTOM_DERIVATIVES)
  pairs, skipped = find_pairs(flat, where)
  paired = {index for pair in pairs for index in (pair.forward, pair.backward)}
  inner = []
  num_scans = 0
  for index, eqn in enumerate(flat.eqns):
    is_scan = eqn.primitive.name == "scan"
    num_scans += is_scan
    for parameter, branch, body in iter_inner(eqn):
      suffix = "" if branch is None else f".{branch}"
      level = make_level(
        body,
        f"{where}{eqn.primitive.name}.{index}{suffix}/",
        num_runs * (eqn.params["length"] if is_scan else 1),
      )
      num_scans += level.num_scans
      if index in paired:
        continue
      skipped += level.skipped
      if level.pairs or level.inner:
        inner.append(Inner(index, parameter, branch, level))
  return Level(
    jaxpr=flat,
    pairs=tuple(pairs),
    inner=tuple(inner),
    skipped=tuple(skipped),
    num_runs=num_runs,
    num_scans=num_scans,
  )


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
  builder = _ProblemBuilder(rates, is_fused)
  for pair, num_runs in level.walk():
    builder.add(pair, num_runs)
  problem = DropProblem(
    saved_bytes=tuple(builder.saved_bytes),
    works=tuple(builder.works),
    needs=tuple(builder.needs),
    relief_s=tuple(builder.relief_s),
  )
  return problem, builder.names


def stack_seconds(size_bytes: int, num_runs: int, rates: Rates) -> float:
  """Returns what writing a stack and reading it again takes in one step."""
  once = rates.seconds({}, 0.0, 2.0 * size_bytes) - rates.launch_s
  return num_runs * once


def hoisted_seconds(
  pair: Pair, size_bytes: int, num_runs: int, rates: Rates, *, is_fused: bool
) -> float:
  """Returns what a broadcast before the loops takes, less one within them.

  It is written once and read in every iteration of both loops. A broadcast
  within an iteration takes nothing if it is fused with what reads it, and
  otherwise about as much.
  """
  if not is_fused:
    return 0.0
  num_bytes = (1.0 + 2.0 * pair.length) * size_bytes
  return num_runs * (rates.seconds({}, 0.0, num_bytes) - rates.launch_s)


def recompute_seconds(
  pair: Pair,
  eqns: tuple[int, ...],
  num_runs: int,
  rates: Rates,
  *,
  is_fused: bool,
) -> float:
  """Returns what some equations of the forward body take in one step."""
  once = sum(
    equation_seconds(pair.body.eqns[index], rates, is_fused=is_fused)
    for index in eqns
  )
  return num_runs * pair.length * once


class _ProblemBuilder:
  """Collects the drops, works and needs of one pair after another."""

  def __init__(self, rates: Rates, is_fused: bool):
    self.saved_bytes: list[int] = []
    self.relief_s: list[float] = []
    self.names: list[str] = []
    self.works: list[Work] = []
    self.needs: list[Need] = []
    self.rates = rates
    self.is_fused = is_fused

  def add(self, pair: Pair, num_runs: int) -> None:
    """Adds the drops of a pair and all that they may ask for."""
    stays: dict[core.Var, tuple[int, ...]] = {}
    first = len(self.names)
    for residual in pair.residuals:
      if residual.is_read_directly and isinstance(residual.value, core.Var):
        others = stays.get(residual.value, ())
        stays[residual.value] = (*others, len(self.names))
      self.names.append(residual.name)
      self.saved_bytes.append(residual.size_bytes)
      self.relief_s.append(
        stack_seconds(residual.size_bytes, num_runs, self.rates)
      )
    serves = _Service(self, pair, num_runs, stays)
    for drop, residual in enumerate(pair.residuals, first):
      serves.need(True, drop, residual.value)
    serves.finish()
    for hoisted in pair.hoisted:  # They ask for nothing.
      self.names.append(hoisted.name)
      self.saved_bytes.append(hoisted.size_bytes)
      self.relief_s.append(
        hoisted_seconds(
          pair,
          hoisted.size_bytes,
          num_runs,
          self.rates,
          is_fused=self.is_fused,
        )
      )


class _Service:
  """Says for each value of a forward body what provides it."""

  def __init__(
    self,
    builder: _ProblemBuilder,
    pair: Pair,
    num_runs: int,
    stays: dict[core.Var, tuple[int, ...]],
  ):
    self._builder = builder
    self._pair = pair
    self._num_runs = num_runs
    self._stays = stays
    self._definers = definers_of(pair.body)
    self._inputs = {v: number for number, v in enumerate(pair.body.invars)}
    self._work_of: dict[tuple[str, int], int] = {}
    self._pending: list[tuple[int, int]] = []

  def need(self, is_drop: bool, trigger: int, atom: object) -> None:
    """Adds what a drop or a work needs to have one of its values."""
    if not isinstance(atom, core.Var) or atom in self._pair.kept:
      return
    stays = self._stays.get(atom, ())
    if atom in self._inputs:
      number = self._inputs[atom]
      if not is_carry(self._pair, number):
        extended = self._pair.extended_bytes.get(number, 0)
        if not extended:
          return
        work = self._work("input", number, 0.0, extended)
      else:
        size = carry_bytes(self._pair, number)
        # A stack of its own would only replace the one that is there.
        work = None if stays else self._work("input", number, 0.0, size)
    elif atom in self._definers:
      work = self._equation(self._definers[atom])
    else:
      return  # A constant of the body.
    self._builder.needs.append(Need(is_drop, trigger, stays, work))

  def finish(self) -> None:
    """Adds what the works need, and the works that these need."""
    while self._pending:
      work, index = self._pending.pop()
      for atom in dict.fromkeys(
        a for a in self._pair.body.eqns[index].invars if isinstance(a, core.Var)
      ):
        self.need(False, work, atom)

  def _equation(self, index: int) -> int | None:
    if index in self._pair.forbidden:
      return None
    is_new = ("equation", index) not in self._work_of
    seconds = recompute_seconds(
      self._pair,
      (index,),
      self._num_runs,
      self._builder.rates,
      is_fused=self._builder.is_fused,
    )
    work = self._work("equation", index, seconds, 0)
    if is_new:
      self._pending.append((work, index))
    return work

  def _work(self, kind: str, number: int, seconds: float, size: int) -> int:
    if (kind, number) not in self._work_of:
      self._work_of[kind, number] = len(self._builder.works)
      self._builder.works.append(Work(seconds, size))
    return self._work_of[kind, number]
