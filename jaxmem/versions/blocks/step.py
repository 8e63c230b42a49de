"""Recomputes the blocks of a step in its backward pass: what to call."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.jaxpr import CUSTOM_DERIVATIVES, flatten
from jaxmem.versions.blocks.find import find_blocks
from jaxmem.versions.blocks.fused import fused_seconds
from jaxmem.versions.blocks.keep import again_seconds, choose_kept
from jaxmem.versions.blocks.recipe import (
  Group,
  Recipe,
  crossing_bytes,
  make_groups,
  make_recipe,
)
from jaxmem.versions.blocks.rewrite import rewrite
from jaxmem.versions.knapsack import Chooser
from jaxmem.versions.values import Values, num_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockChoice:
  """How the blocks of a step are recomputed.

  Attributes:
    num_groups: How many groups the blocks are divided into, at most one per
      block: each is recomputed at once, from what crosses into it.
    keep_bytes: Most bytes that the groups keep besides.
  """

  num_groups: int
  keep_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blocks:
  """The blocks of a step.

  Attributes:
    number: How many there are; 0 where nothing repeats.
    crossing_bytes: What the next block reads of a block, on average.
  """

  number: int
  crossing_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recomputed:
  """A step that recomputes blocks.

  Attributes:
    num_dropped: How many values do not stay for the backward pass any more.
    dropped_bytes: Their bytes in the jaxpr. XLA would not have kept them all:
      it recomputes much by itself, where it fuses.
    kept_bytes: Of what groups keep besides.
    again_s: Estimated seconds of the products and other heavy equations that
      run again.
    fused_s: Estimated seconds of the kernels between them; see `blocks.fused`.
    answers: What was chosen to be kept, to be done again without choosing.
    rewrite: Returns the step, written anew; the same at each call.
  """

  num_dropped: int
  dropped_bytes: int
  kept_bytes: int
  again_s: float
  fused_s: float
  answers: tuple[tuple[int, ...], ...]
  rewrite: Callable[[], core.Jaxpr] = dataclasses.field(
    repr=False, compare=False
  )

  @property
  def closed_jaxpr(self) -> core.Jaxpr:
    """The step."""
    return self.rewrite()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Chosen:
  """What is made again in a step, or in a loop in it.

  Attributes:
    values: Of its jaxpr.
    runs: How many times it runs.
    kept: What stays of the blocks.
    recipes: How the others are made again, with the groups they are for.
    loops: Equation -> the loop that it is, if there are no blocks around it.
  """

  values: Values
  runs: int
  kept: frozenset[core.Var]
  recipes: tuple[tuple[Group, Recipe], ...]
  loops: dict[int, "_Chosen"]

  def walk(self) -> Iterator["_Chosen"]:
    """Yields this and the loops within."""
    yield self
    for loop in self.loops.values():
      yield from loop.walk()

  def again_s(self, rates: Rates) -> float:
    """Returns the seconds of heavy equations, loops within left out."""
    recipes = [recipe for _, recipe in self.recipes]
    return self.runs * again_seconds(self.values, recipes, rates)

  def fused_s(self, rates: Rates) -> float:
    """Returns the seconds of other kernels, loops within left out."""
    return self.runs * sum(
      fused_seconds(self.values, group, recipe, rates)
      for group, recipe in self.recipes
    )

  def rewritten(self) -> core.Jaxpr:
    """Returns the jaxpr that makes values again."""
    jaxpr = self.values.jaxpr
    if self.recipes:
      return rewrite(self.values, [recipe for _, recipe in self.recipes])
    eqns = [*jaxpr.eqns]
    for index, loop in self.loops.items():
      params = {**eqns[index].params, "jaxpr": loop.rewritten()}
      eqns[index] = eqns[index].replace(params=params)
    return jaxpr.replace(eqns=eqns)


class BlockStep:
  """A step and its blocks, which are found once.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
    runs: How many times it runs; estimates of seconds are for all.

  Attributes:
    blocks: The blocks of the step; if it has none, those of the loop within
      that has most, such as one over parts of a batch.
  """

  def __init__(self, closed_jaxpr: core.Jaxpr, *, runs: int = 1):
    self._given = closed_jaxpr
    self._runs = runs
    self._values = Values(flatten(closed_jaxpr, keep=CUSTOM_DERIVATIVES))
    self._blocks = find_blocks(self._values)
    # By equation, the loop that it is.
    self._loops: dict[int, BlockStep] = {}
    if not self._blocks:
      self._loops = {
        index: BlockStep(eqn.params["jaxpr"], runs=runs * eqn.params["length"])
        for index, eqn in enumerate(self._values.jaxpr.eqns)
        if eqn.primitive.name == "scan"
      }
    self.blocks = self._describe()

  def recompute(
    self,
    choice: BlockChoice,
    rates: Rates,
    known: Sequence[tuple[int, ...]] = (),
  ) -> Recomputed:
    """Lets the backward pass of the step recompute blocks of its forward pass.

    Args:
      choice: How.
      rates: Of the device that will run the step; they decide what is kept.
      known: The answers of another process, for the same step and rates.

    Returns:
      The step, with equal results; unchanged where it has no blocks.

    Raises:
      ValueError: If there are fewer groups than one.
    """
    if choice.num_groups < 1:
      raise ValueError(f"num_groups must be positive, got {choice.num_groups}.")
    chooser = Chooser(known)
    chosen = self._choose(choice, rates, chooser)
    every = [*chosen.walk()]
    dropped = [v for c in every for _, r in c.recipes for v in r.dropped]
    return Recomputed(
      num_dropped=len(dropped),
      dropped_bytes=sum(num_bytes(v) for v in dropped),
      kept_bytes=sum(num_bytes(v) for c in every for v in c.kept),
      again_s=sum(c.again_s(rates) for c in every),
      fused_s=sum(c.fused_s(rates) for c in every),
      answers=tuple(chooser.answers),
      rewrite=functools.cache(
        chosen.rewritten if dropped else lambda: self._given
      ),
    )

  def _describe(self) -> Blocks:
    if self._blocks:
      values, number = self._values, len(self._blocks)
      groups = make_groups(values, self._blocks, number)
      total = sum(crossing_bytes(values, group) for group in groups)
      return Blocks(number=number, crossing_bytes=total // number)
    none = Blocks(number=0, crossing_bytes=0)
    inner = [loop.blocks for loop in self._loops.values()]
    return max([none, *inner], key=lambda found: found.number)

  def _choose(
    self, choice: BlockChoice, rates: Rates, chooser: Chooser
  ) -> _Chosen:
    values, kept, recipes = self._values, frozenset(), []
    if self._blocks:
      groups = make_groups(values, self._blocks, choice.num_groups)
      kept = choose_kept(values, groups, choice.keep_bytes, rates, chooser)
      for group in groups:
        recipe = make_recipe(values, group, kept)
        if recipe is not None:
          recipes.append((group, recipe))
    return _Chosen(
      values=values,
      runs=self._runs,
      kept=kept,
      recipes=tuple(recipes),
      loops={
        index: loop._choose(choice, rates, chooser)
        for index, loop in self._loops.items()
      },
    )
