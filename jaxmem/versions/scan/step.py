"""Drops residuals of the loops of a step: what to call."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jax.extend import core

from jaxmem.cost import Rates
from jaxmem.versions.knapsack import Chooser
from jaxmem.versions.scan.levels import make_level
from jaxmem.versions.scan.problem import make_problem
from jaxmem.versions.scan.rewrite import rewrite_level

SaveBytes = int | Literal["all", "but products"]

# A rewritten loop may hold further pairs, one level deeper.
_MAX_ROUNDS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewritten:
  """A step without some of its stacked residuals.

  Attributes:
    closed_jaxpr: The step; the one that was given if nothing is dropped.
    dropped: Which loops, and which of their stacks or constants were dropped.
    stacked: Likewise, which values they stack in place of these.
    saved_bytes: Estimate of what is saved, stacks that had to be added
      deducted. It adds what may not be live at once, such as loops one after
      the other.
    again_s: Estimated seconds that the step takes more: what is made again,
      less what storing took.
    answers: What was chosen, to be done again without choosing.
  """

  closed_jaxpr: core.Jaxpr
  dropped: tuple[str, ...]
  stacked: tuple[str, ...]
  saved_bytes: int
  again_s: float = 0.0
  answers: tuple[tuple[int, ...], ...] = ()


def droppable_bytes(closed_jaxpr: core.Jaxpr) -> int:
  """Returns the bytes of all that loops of a step stack and could make anew.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
      As everywhere here, its bytes are those of all devices together.
  """
  pairs = make_level(closed_jaxpr).walk()
  return sum(level.num_shards * pair.saved_bytes for pair, level in pairs)


def rewrite_step(
  closed_jaxpr: core.Jaxpr,
  save_bytes: SaveBytes,
  rates: Rates,
  *,
  keep_bits: bool = True,
  known: Sequence[tuple[int, ...]] = (),
) -> Rewritten:
  """Drops stacked residuals; the backward loops recompute them.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
    save_bytes: How many bytes to save, at the least cost in time; "all" to
      save as much as possible, "but products" for all that is made again
      without a product, whose results are stacked instead. If the bytes cannot
      be saved, as much as possible is.
    rates: Of the device that will run the step.
    keep_bits: Whether XLA is kept from fusing recomputed residuals with what
      reads them, and from simplifying across. That takes time, since each is
      written to memory; without, the last bits of gradients may differ, as with
      `jax.checkpoint`.
    known: The answers of another process, for the same step and rates.

  Returns:
    The step, with equal results.
  """
  keeps_products = save_bytes == "but products"
  remaining = save_bytes if isinstance(save_bytes, int) else None
  result = Rewritten(
    closed_jaxpr=closed_jaxpr, dropped=(), stacked=(), saved_bytes=0
  )
  chooser = Chooser(known)
  for _ in range(_MAX_ROUNDS):
    level = make_level(result.closed_jaxpr)
    problem = make_problem(level, rates, is_fused=not keep_bits)
    if keeps_products:
      chosen = chooser.drops(problem.keeping_products(), 0, is_free=True)
    else:
      chosen = chooser.drops(problem, remaining)
    dropped, stacked = problem.names(chosen)
    if not dropped:
      break
    changed, saved_bytes = rewrite_level(
      level, {*dropped, *stacked}, keep_bits=keep_bits
    )
    result = Rewritten(
      closed_jaxpr=changed,
      dropped=result.dropped + dropped,
      stacked=result.stacked + stacked,
      saved_bytes=result.saved_bytes + saved_bytes,
      again_s=result.again_s + problem.seconds(chosen),
    )
    if remaining is not None:
      remaining -= saved_bytes
  return dataclasses.replace(result, answers=tuple(chooser.answers))
