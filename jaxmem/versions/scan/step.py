"""Drops residuals of the loops of a step: what to call."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any, Literal

from jax.extend import core

from jaxmem import units
from jaxmem.cost import Rates
from jaxmem.jaxpr import wrap
from jaxmem.versions.knapsack import choose
from jaxmem.versions.scan.levels import (
  Level,
  hoisted_seconds,
  make_level,
  make_problem,
  recompute_seconds,
  stack_seconds,
)
from jaxmem.versions.scan.pairs import Pair, Skipped
from jaxmem.versions.scan.recipe import Recipe, make_recipe
from jaxmem.versions.scan.rewrite import rewrite_level

SaveBytes = int | Literal["all"] | Collection[str]

# A rewritten loop may hold further pairs, one level deeper.
_MAX_ROUNDS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanCandidate:
  """A stacked residual, or a broadcast before the loops, that can be dropped.

  Attributes:
    name: Which loop, and which of its stacks.
    source: The line of the user's program, or the name scope.
    size_bytes: What goes with it.
    extra_bytes: What has to be stacked or kept longer to recompute it alone.
    seconds: What recomputing it alone takes in one step, less what writing
      and reading the stack took.
  """

  name: str
  source: str
  size_bytes: int
  extra_bytes: int
  seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewritten:
  """A step without some of its stacked residuals.

  Attributes:
    closed_jaxpr: The step; the one that was given if nothing is dropped.
    dropped: What was dropped.
    skipped: What stays, with reasons; the program itself if it has no pair of
      loops.
    saved_bytes: Estimate of what is saved, stacks that had to be added
      deducted. It adds what may not be live at once, such as loops one after
      the other.
    extra_seconds: Estimate of what the recomputation takes, less what writing
      and reading the stacks took.
    is_optimal: Whether no other drops save as much in less time by the cost
      model; bodies within the loops of a pair are chosen for after it.
  """

  closed_jaxpr: core.Jaxpr
  dropped: tuple[ScanCandidate, ...]
  skipped: tuple[Skipped, ...]
  saved_bytes: int
  extra_seconds: float
  is_optimal: bool

  @property
  def is_changed(self) -> bool:
    """Whether anything was dropped."""
    return bool(self.dropped)

  def summary(self) -> str:
    """Returns what was dropped and what was not, for people."""
    lines = [
      f"{len(self.dropped)} stacked residuals dropped:"
      f" {units.format_bytes(self.saved_bytes)} for"
      f" {self.extra_seconds * 1e3:.3f} ms"
    ]
    lines += [
      f"  stays: {each.name} ({units.format_bytes(each.size_bytes)}):"
      f" {each.reason}"
      for each in self.skipped
    ]
    return "\n".join(lines)


def find_candidates(
  closed_jaxpr: core.Jaxpr, rates: Rates
) -> tuple[tuple[ScanCandidate, ...], tuple[Skipped, ...]]:
  """Finds the stacked residuals of a step that can be dropped.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
    rates: Of the device that will run the step.

  Returns:
    The candidates, and what cannot be dropped, with reasons.
  """
  level = make_level(closed_jaxpr)
  candidates = _candidates(level, rates, keep_bits=True)
  return tuple(candidates.values()), _skipped(level)


def rewrite_step(
  closed_jaxpr: core.Jaxpr,
  save_bytes: SaveBytes,
  rates: Rates,
  *,
  keep_bits: bool = True,
) -> Rewritten:
  """Drops stacked residuals; the backward loops recompute them.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
    save_bytes: How many bytes to save, at the least cost in time; "all" to
      save as much as possible; or the names of the candidates to drop. If the
      bytes cannot be saved, as much as possible is.
    rates: Of the device that will run the step.
    keep_bits: Whether XLA is kept from fusing recomputed residuals with what
      reads them, and from simplifying across. That takes time, since each is
      written to memory; without, the last bits of gradients may differ, as with
      `jax.checkpoint`.

  Returns:
    The step, with equal results.

  Raises:
    ValueError: If names are given of which one is not a candidate, or that
      cannot be recomputed together.
  """
  if not isinstance(save_bytes, int | str):
    names = frozenset(save_bytes)
    return _drop_names(closed_jaxpr, names, rates, keep_bits)
  if isinstance(save_bytes, str) and save_bytes != "all":
    raise ValueError(f"save_bytes must be bytes or 'all', got {save_bytes!r}.")
  remaining = None if isinstance(save_bytes, str) else save_bytes
  result = _unchanged(closed_jaxpr)
  for _ in range(_MAX_ROUNDS):
    level = make_level(result.closed_jaxpr)
    result = dataclasses.replace(result, skipped=_skipped(level))
    problem, names = make_problem(level, rates, is_fused=not keep_bits)
    choice = choose(problem, remaining)
    if not choice.drops:
      break
    dropped = frozenset(names[drop] for drop in choice.drops)
    saved = result.saved_bytes
    result = _drop(result, level, dropped, rates, keep_bits)
    is_optimal = result.is_optimal and choice.is_optimal
    result = dataclasses.replace(result, is_optimal=is_optimal)
    if remaining is not None:
      remaining -= result.saved_bytes - saved
  return result


def drop_scan_residuals(
  fun: Callable[..., Any],
  save_bytes: SaveBytes = "all",
  *,
  rates: Rates,
  keep_bits: bool = True,
  on_rewritten: Callable[[Rewritten], None] | None = None,
) -> Callable[..., Any]:
  """Wraps a function so that its loops drop stacked residuals.

  Jit the result: `jax.jit(drop_scan_residuals(step, ...), donate_argnums=0)`;
  see `jaxmem.jaxpr.wrap`.

  Derivatives that are taken of the result from outside are right, but the
  residuals are chosen for the step itself.

  Args:
    fun: A function that takes gradients, not jitted.
    save_bytes: See `rewrite_step`.
    rates: See `rewrite_step`.
    keep_bits: See `rewrite_step`.
    on_rewritten: Called with the result at each trace.
  """
  drop = functools.partial(
    rewrite_step, save_bytes=save_bytes, rates=rates, keep_bits=keep_bits
  )
  return wrap.rewritten(fun, drop, on_rewritten)


def _unchanged(closed_jaxpr: core.Jaxpr) -> Rewritten:
  return Rewritten(
    closed_jaxpr=closed_jaxpr,
    dropped=(),
    skipped=(),
    saved_bytes=0,
    extra_seconds=0.0,
    is_optimal=True,
  )


def _drop_names(
  closed_jaxpr: core.Jaxpr,
  names: frozenset[str],
  rates: Rates,
  keep_bits: bool,
) -> Rewritten:
  level = make_level(closed_jaxpr)
  unknown = sorted(
    names - _candidates(level, rates, keep_bits=keep_bits).keys()
  )
  if unknown:
    raise ValueError(
      f"{unknown[0]!r} is not a residual that can be dropped here; see"
      " find_candidates for those that are."
    )
  unchanged = _unchanged(closed_jaxpr)
  unchanged = dataclasses.replace(unchanged, skipped=_skipped(level))
  if not names:
    return unchanged
  return _drop(unchanged, level, names, rates, keep_bits)


def _drop(
  result: Rewritten,
  level: Level,
  names: frozenset[str],
  rates: Rates,
  keep_bits: bool,
) -> Rewritten:
  """Adds one round of drops to a result."""
  saved, seconds = result.saved_bytes, result.extra_seconds
  for pair, num_runs in level.walk():
    recipe = make_recipe(pair, names)
    saved += recipe.saved_bytes
    for hoisted in (h for h in pair.hoisted if h.name in names):
      saved += hoisted.size_bytes
      seconds -= hoisted_seconds(
        pair, hoisted.size_bytes, num_runs, rates, is_fused=not keep_bits
      )
    seconds += _extra_seconds(
      pair, recipe, num_runs, rates, keep_bits=keep_bits
    )
  candidates = _candidates(level, rates, keep_bits=keep_bits)
  chosen = tuple(each for name, each in candidates.items() if name in names)
  return dataclasses.replace(
    result,
    closed_jaxpr=rewrite_level(level, names, keep_bits=keep_bits),
    dropped=(*result.dropped, *chosen),
    saved_bytes=saved,
    extra_seconds=seconds,
  )


def _extra_seconds(
  pair: Pair, recipe: Recipe, num_runs: int, rates: Rates, *, keep_bits: bool
) -> float:
  stacks = sum(
    stack_seconds(residual.size_bytes, num_runs, rates)
    for residual in recipe.dropped
  )
  again = recompute_seconds(
    pair, recipe.eqns, num_runs, rates, is_fused=not keep_bits
  )
  return again - stacks


def _candidates(
  level: Level, rates: Rates, *, keep_bits: bool
) -> dict[str, ScanCandidate]:
  found = {}
  for pair, num_runs in level.walk():
    for residual in pair.residuals:
      recipe = make_recipe(pair, (residual.name,))
      found[residual.name] = ScanCandidate(
        name=residual.name,
        source=residual.source,
        size_bytes=residual.size_bytes,
        extra_bytes=recipe.extra_bytes,
        seconds=_extra_seconds(
          pair, recipe, num_runs, rates, keep_bits=keep_bits
        ),
      )
    for hoisted in pair.hoisted:
      found[hoisted.name] = ScanCandidate(
        name=hoisted.name,
        source=hoisted.source,
        size_bytes=hoisted.size_bytes,
        extra_bytes=0,
        seconds=-hoisted_seconds(
          pair, hoisted.size_bytes, num_runs, rates, is_fused=not keep_bits
        ),
      )
  return found


def _skipped(level: Level) -> tuple[Skipped, ...]:
  if level.num_scans:
    return level.skipped
  return (Skipped(name="the step", size_bytes=0, reason="it has no scan"),)
