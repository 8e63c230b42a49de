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


def describe_blocks(closed_jaxpr: core.Jaxpr) -> Blocks:
  """Says which blocks a step has.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.

  Returns:
    The blocks of the step; if it has none, those of the loop within that has
    most, such as one over parts of a batch.
  """
  values = _values(closed_jaxpr)
  blocks = find_blocks(values)
  if blocks:
    groups = make_groups(values, blocks, len(blocks))
    total = sum(crossing_bytes(values, group) for group in groups)
    return Blocks(number=len(blocks), crossing_bytes=total // len(blocks))
  reason = "no part of a forward pass repeats, or there is no backward pass"
  none = Blocks(number=0, crossing_bytes=0, reason=reason)
  inner = [
    describe_blocks(eqn.params["jaxpr"])
    for eqn in values.jaxpr.eqns
    if eqn.primitive.name == "scan"
  ]
  return max([none, *inner], key=lambda found: found.number)


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
  if choice.num_groups < 1:
    raise ValueError(f"num_groups must be positive, got {choice.num_groups}.")
  totals = _Totals()
  changed = _rewritten(closed_jaxpr, choice, rates, totals)
  return Recomputed(
    closed_jaxpr=changed if totals.dropped else closed_jaxpr,
    num_dropped=len(totals.dropped),
    dropped_bytes=sum(num_bytes(v) for v in totals.dropped),
    kept_bytes=totals.kept_bytes,
    again_s=totals.again_s,
  )


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


@dataclasses.dataclass(kw_only=True)
class _Totals:
  """What was changed so far."""

  dropped: list[core.Var] = dataclasses.field(default_factory=list)
  kept_bytes: int = 0
  again_s: float = 0.0


def _rewritten(
  jaxpr: core.Jaxpr, choice: BlockChoice, rates: Rates, totals: _Totals
) -> core.Jaxpr:
  """Rewrites a jaxpr, or the loops in it; adds to the totals."""
  values = _values(jaxpr)
  blocks = find_blocks(values)
  if blocks:
    groups = make_groups(values, blocks, choice.num_groups)
    kept = choose_kept(values, groups, choice.keep_bytes, rates)
    recipes = [make_recipe(values, group, kept) for group in groups]
    found = [recipe for recipe in recipes if recipe is not None]
    totals.dropped += [v for recipe in found for v in recipe.dropped]
    totals.kept_bytes += sum(num_bytes(v) for v in kept)
    totals.again_s += again_seconds(values, found, rates)
    return rewrite(values, found)
  eqns = []
  for eqn in values.jaxpr.eqns:
    if eqn.primitive.name == "scan":
      body = _rewritten(eqn.params["jaxpr"], choice, rates, totals)
      eqn = eqn.replace(params={**eqn.params, "jaxpr": body})
    eqns.append(eqn)
  return values.jaxpr.replace(eqns=eqns)


def _values(closed_jaxpr: core.Jaxpr) -> Values:
  return Values(flatten(closed_jaxpr, keep=CUSTOM_DERIVATIVES))
