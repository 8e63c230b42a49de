"""Recomputes the blocks of a step in its backward pass: what to call."""

import dataclasses
import functools
from collections.abc import Callable

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.jaxpr import CUSTOM_DERIVATIVES, flatten
from jaxmem.versions.blocks.find import find_blocks
from jaxmem.versions.blocks.fused import fused_seconds
from jaxmem.versions.blocks.keep import again_seconds, choose_kept
from jaxmem.versions.blocks.recipe import (
  crossing_bytes,
  make_groups,
  make_recipe,
)
from jaxmem.versions.blocks.rewrite import rewrite
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
    rewrite: Writes the step anew.
  """

  num_dropped: int
  dropped_bytes: int
  kept_bytes: int
  again_s: float
  fused_s: float
  rewrite: Callable[[], core.Jaxpr] = dataclasses.field(
    repr=False, compare=False
  )

  @functools.cached_property
  def closed_jaxpr(self) -> core.Jaxpr:
    """The step, written anew."""
    return self.rewrite()


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

  def recompute(self, choice: BlockChoice, rates: Rates) -> Recomputed:
    """Lets the backward pass of the step recompute blocks of its forward pass.

    Args:
      choice: How.
      rates: Of the device that will run the step; they decide what is kept.

    Returns:
      The step, with equal results; unchanged where it has no blocks.

    Raises:
      ValueError: If there are fewer groups than one.
    """
    if choice.num_groups < 1:
      raise ValueError(f"num_groups must be positive, got {choice.num_groups}.")
    found = self._recompute(choice, rates)
    if found.num_dropped:
      return found
    return dataclasses.replace(found, rewrite=lambda: self._given)

  def _describe(self) -> Blocks:
    if self._blocks:
      number = len(self._blocks)
      groups = make_groups(self._values, self._blocks, number)
      total = sum(crossing_bytes(group) for group in groups)
      return Blocks(number=number, crossing_bytes=total // number)
    none = Blocks(number=0, crossing_bytes=0)
    inner = [loop.blocks for loop in self._loops.values()]
    return max([none, *inner], key=lambda found: found.number)

  def _recompute(self, choice: BlockChoice, rates: Rates) -> Recomputed:
    if not self._blocks:
      return self._recompute_loops(choice, rates)
    groups = make_groups(self._values, self._blocks, choice.num_groups)
    kept = choose_kept(groups, choice.keep_bytes, rates)
    made = [make_recipe(group, kept) for group in groups]
    recipes = [recipe for recipe in made if recipe is not None]
    dropped = [var for recipe in recipes for var in recipe.dropped]
    return Recomputed(
      num_dropped=len(dropped),
      dropped_bytes=sum(num_bytes(v) for v in dropped),
      kept_bytes=sum(num_bytes(v) for v in kept),
      again_s=self._runs * again_seconds(recipes, rates),
      fused_s=self._runs * sum(fused_seconds(r, rates) for r in recipes),
      rewrite=lambda: rewrite(self._values, recipes),
    )

  def _recompute_loops(self, choice: BlockChoice, rates: Rates) -> Recomputed:
    loops = {i: s._recompute(choice, rates) for i, s in self._loops.items()}

    def rewritten() -> core.Jaxpr:
      eqns = [*self._values.eqns]
      for index, loop in loops.items():
        params = {**eqns[index].params, "jaxpr": loop.closed_jaxpr}
        eqns[index] = eqns[index].replace(params=params)
      return self._values.jaxpr.replace(eqns=eqns)

    return Recomputed(
      num_dropped=sum(loop.num_dropped for loop in loops.values()),
      dropped_bytes=sum(loop.dropped_bytes for loop in loops.values()),
      kept_bytes=sum(loop.kept_bytes for loop in loops.values()),
      again_s=sum(loop.again_s for loop in loops.values()),
      fused_s=sum(loop.fused_s for loop in loops.values()),
      rewrite=rewritten,
    )
