"""What the backward loop needs to make dropped residuals anew."""

import dataclasses
from collections.abc import Collection, Mapping

from jax.extend import core

from jaxmem.versions.scan.pairs import Pair, Residual


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a backward loop recomputes the residuals that were dropped.

  Attributes:
    dropped: The residuals.
    eqns: Equations of the forward body, in program order.
    operands: Inputs of the forward body that the forward loop is given: its
      constants and slices.
    carries: Carries that the forward loop has to stack in addition.
    stacks: Stacks that stay and are read: value in the body, stack outside.
    extra_bytes: Of the additional stacks and of operands that live longer.
  """

  dropped: tuple[Residual, ...]
  eqns: tuple[int, ...]
  operands: tuple[core.Var, ...]
  carries: tuple[core.Var, ...]
  stacks: Mapping[core.Var, core.Var]
  extra_bytes: int

  @property
  def saved_bytes(self) -> int:
    """What the drop saves, extra bytes deducted."""
    return sum(r.size_bytes for r in self.dropped) - self.extra_bytes


def make_recipe(pair: Pair, dropped: Collection[str]) -> Recipe:
  """Says how to recompute some residuals of a pair from everything else.

  A value that is stacked is read; anything else is computed from what it
  depends on. So the residuals that are dropped determine the rest.

  Args:
    pair: The loops.
    dropped: Names of residuals of the pair; other names do not matter. None may
      need an equation that must not run twice.
  """
  gone = tuple(r for r in pair.residuals if r.name in dropped)
  readable = pair.readable_stacks(dropped)
  wanted = [var for residual in gone for var in residual.needed]
  eqns, read = pair.body.remake(wanted, readable.__contains__)
  assert pair.forbidden.isdisjoint(eqns)
  given = {*read} - {*readable}
  inputs = [var for var in pair.body.jaxpr.invars if var in given]
  return Recipe(
    dropped=gone,
    eqns=eqns,
    operands=tuple(var for var in inputs if var not in pair.carries),
    carries=tuple(var for var in inputs if var in pair.carries),
    stacks={var: readable[var] for var in read if var in readable},
    extra_bytes=sum(pair.input_bytes.get(var, 0) for var in inputs),
  )
