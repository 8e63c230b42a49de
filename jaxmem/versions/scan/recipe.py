"""What the backward loop needs to make dropped residuals anew."""

import dataclasses
from collections.abc import Collection

from jax.extend import core

from jaxmem.jaxpr import Atom, memory
from jaxmem.versions.scan.pairs import Pair, Residual, definers_of


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
    dropped: Names of residuals of the pair; other names do not matter.

  Raises:
    ValueError: If a residual needs an equation that must not run twice.
  """
  definers = definers_of(pair.body)
  inputs = {var: number for number, var in enumerate(pair.body.invars)}
  gone = tuple(r for r in pair.residuals if r.name in dropped)
  readable = readable_stacks(pair, {r.name for r in gone})
  eqns: set[int] = set()
  operands: set[int] = set()
  carries: set[int] = set()
  stacks: dict[core.Var, core.Var] = {}
  pending: list[Atom] = [residual.value for residual in gone]
  while pending:
    atom = pending.pop()
    if not isinstance(atom, core.Var):
      continue
    if atom in readable:
      stacks[atom] = readable[atom]
    elif atom in inputs:
      number = inputs[atom]
      (carries if is_carry(pair, number) else operands).add(number)
    elif atom in definers and definers[atom] not in eqns:
      index = definers[atom]
      if index in pair.forbidden:
        raise ValueError(
          f"Residuals of {pair.name} cannot be recomputed without others:"
          f" {pair.forbidden[index]}. Drop fewer of them."
        )
      eqns.add(index)
      pending += pair.body.eqns[index].invars
  extended = sum(pair.extended_bytes.get(number, 0) for number in operands)
  stacked = sum(carry_bytes(pair, number) for number in carries)
  return Recipe(
    dropped=gone,
    eqns=tuple(sorted(eqns)),
    operands=tuple(sorted(operands)),
    carries=tuple(sorted(carries)),
    stacks=tuple(stacks.items()),
    extra_bytes=extended + stacked,
  )


def readable_stacks(
  pair: Pair, gone: Collection[str]
) -> dict[core.Var, core.Var]:
  """Returns what the backward loop can read: values, and their stacks."""
  readable = dict(pair.kept)
  for residual in pair.residuals:
    is_kept = residual.name not in gone and residual.is_read_directly
    if is_kept and isinstance(residual.value, core.Var):
      readable[residual.value] = residual.stack
  return readable


def is_carry(pair: Pair, number: int) -> bool:
  """Whether an input of the forward body is carried."""
  return 0 <= number - pair.num_consts < pair.num_carry


def carry_bytes(pair: Pair, number: int) -> int:
  """Returns what stacking a carry takes."""
  return pair.length * memory.size_bytes(pair.body.invars[number].aval)
