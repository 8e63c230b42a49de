"""What the backward loop needs to make dropped residuals anew."""

import dataclasses
from collections.abc import Collection

from jax.extend import core

from jaxmem.versions.scan.pairs import Pair, Residual
from jaxmem.versions.values import operands


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a backward loop recomputes the residuals that were dropped.

  Attributes:
    dropped: The residuals.
    eqns: Equations of the forward body, in program order.
    operands: Inputs of the forward body that the forward loop is given: its
      constants and slices, by position.
    carries: Carries, by position among the inputs of the forward body, that
      the forward loop has to stack in addition.
    stacks: Stacks that stay and are read: value in the body, stack outside.
    extra_bytes: Of the additional stacks and of operands that live longer.
  """

  dropped: tuple[Residual, ...]
  eqns: tuple[int, ...]
  operands: tuple[int, ...]
  carries: tuple[int, ...]
  stacks: tuple[tuple[core.Var, core.Var], ...]
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
  inputs = {var: number for number, var in enumerate(pair.body.invars)}
  gone = tuple(r for r in pair.residuals if r.name in dropped)
  readable = pair.readable_stacks(dropped)
  eqns: set[int] = set()
  given: set[int] = set()
  carries: set[int] = set()
  stacks: dict[core.Var, core.Var] = {}
  pending = [r.value for r in gone if isinstance(r.value, core.Var)]
  while pending:
    var = pending.pop()
    if var in readable:
      stacks[var] = readable[var]
    elif var in inputs:
      number = inputs[var]
      (carries if pair.is_carry(number) else given).add(number)
    elif var in pair.definers and pair.definers[var] not in eqns:
      index = pair.definers[var]
      assert index not in pair.forbidden
      eqns.add(index)
      pending += operands(pair.body.eqns[index])
  extended = sum(pair.extended_bytes.get(number, 0) for number in given)
  stacked = sum(pair.carry_bytes(number) for number in carries)
  return Recipe(
    dropped=gone,
    eqns=tuple(sorted(eqns)),
    operands=tuple(sorted(given)),
    carries=tuple(sorted(carries)),
    stacks=tuple(stacks.items()),
    extra_bytes=extended + stacked,
  )
