"""Recomputes the blocks of a step in its backward pass: what to call."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from jax.extend import core

from jaxmem import units
from jaxmem.blocks.find import find_blocks
from jaxmem.blocks.keep import again_seconds, choose_kept
from jaxmem.blocks.recipe import crossing_bytes, make_groups, make_recipe
from jaxmem.blocks.rewrite import rewrite
from jaxmem.blocks.values import Values, num_bytes
from jaxmem.cost.rates import Rates
from jaxmem.jaxpr import wrap
from jaxmem.jaxpr.flatten import CUSTOM_DERIVATIVES, flatten


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
    reason: Why there is none, or "".
  """

  number: int
  crossing_bytes: int
  reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recomputed:
  """A step that recomputes blocks.

  Attributes:
    closed_jaxpr: The step.
    num_dropped: How many values do not stay for the backward pass any more.
    dropped_bytes: Their bytes in the jaxpr. XLA would not have kept them all:
      it recomputes much by itself, where it fuses.
    kept_bytes: Of what groups keep besides.
    again_s: Estimated seconds of the products and other heavy equations that
      run again.
  """

  closed_jaxpr: core.Jaxpr
  num_dropped: int
  dropped_bytes: int
  kept_bytes: int
  again_s: float

  def summary(self) -> str:
    """Returns what was done, for people."""
    size = units.format_bytes(self.dropped_bytes)
    return f"{self.num_dropped} residuals of blocks dropped: {size}"


@dataclasses.dataclass(kw_only=True)
class _Totals:
  """What was changed so far."""

  dropped: list[core.Var] = dataclasses.field(default_factory=list)
  kept_bytes: int = 0
  again_s: float = 0.0


class BlockStep:
  """A step and its blocks, which are found once.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.

  Attributes:
    blocks: The blocks of the step; if it has none, those of the loop within
      that has most, such as one over parts of a batch.
  """

  def __init__(self, closed_jaxpr: core.Jaxpr):
    self._given = closed_jaxpr
    self._values = Values(flatten(closed_jaxpr, keep=CUSTOM_DERIVATIVES))
    self._blocks = find_blocks(self._values)
    # Equation -> the loop that it is.
    self._loops: dict[int, BlockStep] = {}
    if not self._blocks:
      self._loops = {
        index: BlockStep(eqn.params["jaxpr"])
        for index, eqn in enumerate(self._values.jaxpr.eqns)
        if eqn.primitive.name == "scan"
      }
    self.blocks = self._describe()

  def recompute(self, choice: BlockChoice, rates: Rates) -> Recomputed:
    """Lets the backward pass recompute blocks; see `recompute_step`."""
    if choice.num_groups < 1:
      raise ValueError(f"num_groups must be positive, got {choice.num_groups}.")
    totals = _Totals()
    changed = self._rewritten(choice, rates, totals)
    return Recomputed(
      closed_jaxpr=changed if totals.dropped else self._given,
      num_dropped=len(totals.dropped),
      dropped_bytes=sum(num_bytes(v) for v in totals.dropped),
      kept_bytes=totals.kept_bytes,
      again_s=totals.again_s,
    )

  def _describe(self) -> Blocks:
    if self._blocks:
      values, number = self._values, len(self._blocks)
      groups = make_groups(values, self._blocks, number)
      total = sum(crossing_bytes(values, group) for group in groups)
      return Blocks(number=number, crossing_bytes=total // number)
    reason = "no part of a forward pass repeats, or there is no backward pass"
    none = Blocks(number=0, crossing_bytes=0, reason=reason)
    inner = [loop.blocks for loop in self._loops.values()]
    return max([none, *inner], key=lambda found: found.number)

  def _rewritten(
    self, choice: BlockChoice, rates: Rates, totals: _Totals
  ) -> core.Jaxpr:
    """Rewrites the jaxpr, or the loops in it; adds to the totals."""
    values = self._values
    if self._blocks:
      groups = make_groups(values, self._blocks, choice.num_groups)
      kept = choose_kept(values, groups, choice.keep_bytes, rates)
      recipes = [make_recipe(values, group, kept) for group in groups]
      found = [recipe for recipe in recipes if recipe is not None]
      totals.dropped += [v for recipe in found for v in recipe.dropped]
      totals.kept_bytes += sum(num_bytes(v) for v in kept)
      totals.again_s += again_seconds(values, found, rates)
      return rewrite(values, found)
    eqns = [*values.jaxpr.eqns]
    for index, loop in self._loops.items():
      body = loop._rewritten(choice, rates, totals)
      params = {**eqns[index].params, "jaxpr": body}
      eqns[index] = eqns[index].replace(params=params)
    return values.jaxpr.replace(eqns=eqns)


def describe_blocks(closed_jaxpr: core.Jaxpr) -> Blocks:
  """Says which blocks a step has; see `BlockStep`."""
  return BlockStep(closed_jaxpr).blocks


def recompute_step(
  closed_jaxpr: core.Jaxpr, choice: BlockChoice, rates: Rates
) -> Recomputed:
  """Lets the backward pass of a step recompute blocks of its forward pass.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
    choice: How.
    rates: Of the device that will run the step; they decide what is kept.

  Returns:
    The step, with equal results; unchanged where it has no blocks.

  Raises:
    ValueError: If there are fewer groups than one.
  """
  return BlockStep(closed_jaxpr).recompute(choice, rates)


def recompute_blocks(
  fun: Callable[..., Any],
  choice: BlockChoice,
  *,
  rates: Rates,
  on_recomputed: Callable[[Recomputed], None] | None = None,
) -> Callable[..., Any]:
  """Wraps a function so that its backward pass recomputes blocks.

  Jit the result; see `jaxmem.jaxpr.wrap`.

  Args:
    fun: A function that takes gradients, not jitted.
    choice: See `recompute_step`.
    rates: See `recompute_step`.
    on_recomputed: Called with the result at each trace.
  """
  recompute = functools.partial(recompute_step, choice=choice, rates=rates)
  return wrap.rewritten(fun, recompute, on_recomputed)
