"""What a group of blocks has to make anew for its backward pass, from what."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from jax.extend import core

from jaxmem.versions.rules import may_run_again
from jaxmem.versions.values import Values, num_bytes, operands, results


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
  """A part of a forward pass.

  Attributes:
    start: Its first equation.
    stop: One past its last equation.
    end: One past the last equation of its forward pass.
  """

  start: int
  stop: int
  end: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
  """Neighbouring blocks that are recomputed together.

  Attributes:
    start: The first equation.
    stop: One past the last equation.
    end: One past the last equation of their forward pass.
    residuals: What the backward pass reads and could make anew, in order.
    needs: What may be needed for that: value -> the equation that makes it.
  """

  start: int
  stop: int
  end: int
  residuals: tuple[core.Var, ...]
  needs: dict[core.Var, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a group makes residuals anew.

  Attributes:
    dropped: The residuals, in order.
    eqns: The equations that run again, ascending.
    operands: What they read that does not come from them, in order.
    before: The first equation that reads one of the residuals.
  """

  dropped: tuple[core.Var, ...]
  eqns: tuple[int, ...]
  operands: tuple[core.Var, ...]
  before: int


def make_groups(
  values: Values, blocks: Sequence[Block], num_groups: int
) -> tuple[Group, ...]:
  """Divides blocks into groups of nearly equal numbers of them.

  Larger groups come first: their backward pass runs last, when little else is
  live.

  Args:
    values: Of the jaxpr.
    blocks: Its blocks.
    num_groups: How many groups, at most one per block; blocks of different
      forward passes are not put together.
  """
  groups = []
  number = len(blocks)
  num_groups = min(num_groups, number)
  sizes = [
    number // num_groups + (index < number % num_groups)
    for index in range(num_groups)
  ]
  position = 0
  for size in sizes:
    part = blocks[position : position + size]
    position += size
    for end in dict.fromkeys(block.end for block in part):
      inside = [block for block in part if block.end == end]
      groups.append(_make_group(values, inside))
  return tuple(groups)


def make_recipe(
  values: Values, group: Group, kept: Collection[core.Var]
) -> Recipe | None:
  """Says how a group makes anew what is not kept.

  Args:
    values: Of the jaxpr.
    group: The group.
    kept: Values that stay from the forward pass.

  Returns:
    The recipe, or None if everything is kept.
  """
  dropped = tuple(v for v in group.residuals if v not in kept)
  if not dropped:
    return None
  eqns: set[int] = set()
  pending = [*dropped]
  while pending:
    eqn = group.needs[pending.pop()]
    if eqn not in eqns:
      eqns.add(eqn)
      pending += [
        v
        for v in operands(values.jaxpr.eqns[eqn])
        if v in group.needs and v not in kept
      ]
  ordered = tuple(sorted(eqns))
  made = {v for e in ordered for v in results(values.jaxpr.eqns[e])}
  made -= {*kept}
  read = dict.fromkeys(
    v for e in ordered for v in operands(values.jaxpr.eqns[e]) if v not in made
  )
  before = min(
    reader
    for var in dropped
    for reader in values.readers[var]
    if reader >= group.end
  )
  return Recipe(
    dropped=dropped, eqns=ordered, operands=tuple(read), before=before
  )


def crossing_bytes(values: Values, group: Group) -> int:
  """Returns the bytes that a group makes for later parts of its pass."""
  return sum(
    num_bytes(var)
    for index in range(group.start, group.stop)
    for var in results(values.jaxpr.eqns[index])
    if any(group.stop <= r < group.end for r in values.readers.get(var, ()))
  )


def _make_group(values: Values, blocks: Sequence[Block]) -> Group:
  start, stop, end = blocks[0].start, blocks[-1].stop, blocks[-1].end
  inner = {
    var: index
    for index in range(start, stop)
    if may_run_again(values.jaxpr.eqns[index])
    for var in results(values.jaxpr.eqns[index])
    if _stays_inside(values, var, stop, end)
  }
  residuals = tuple(v for v in inner if values.last_reader(v) >= end)
  needs = dict(_needed(values, inner, residuals))
  return Group(
    start=start, stop=stop, end=end, residuals=residuals, needs=needs
  )


def _stays_inside(values: Values, var: core.Var, stop: int, end: int) -> bool:
  """Whether nothing but the group and the backward pass reads a value."""
  last = len(values.jaxpr.eqns)
  return not any(
    stop <= reader < end or reader == last
    for reader in values.readers.get(var, ())
  )


def _needed(
  values: Values, inner: dict[core.Var, int], residuals: Sequence[core.Var]
) -> Iterator[tuple[core.Var, int]]:
  """Yields what residuals need in turn, with what makes it."""
  pending = [*residuals]
  seen = set(residuals)
  while pending:
    var = pending.pop()
    yield var, inner[var]
    for operand in operands(values.jaxpr.eqns[inner[var]]):
      if operand in inner and operand not in seen:
        seen.add(operand)
        pending.append(operand)
