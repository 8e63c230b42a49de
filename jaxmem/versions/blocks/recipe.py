"""What a group of blocks has to make anew for its backward pass, from what."""

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from jax.extend import core

from jaxmem.versions.rules import may_run_again
from jaxmem.versions.values import (
  VIEWS,
  Values,
  num_bytes,
  operands,
  results,
  walk,
)

# Of the largest value that a block makes: what a small one takes at most.
_SMALL_SHARE = 0.01


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
class Group(Block):
  """Neighbouring blocks that are recomputed together.

  Attributes:
    values: Of the jaxpr.
    residuals: What the backward pass reads and could make anew, in order.
    needs: What may be needed for that: value -> the equation that makes it.
  """

  values: Values
  residuals: tuple[core.Var, ...]
  needs: dict[core.Var, int]

  def sources(self, var: core.Var) -> list[core.Var]:
    """Returns what one of `needs` is made of, as far as it is among them."""
    read = operands(self.values.eqns[self.needs[var]])
    return [v for v in read if v in self.needs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a group makes residuals anew.

  Attributes:
    group: The group.
    dropped: The residuals, in order.
    eqns: The equations that run again, ascending.
    operands: What they read that does not come from them, in order.
    before: The equation of the backward pass that they run before.
    trigger: A value of the backward pass that is there by then, if any.
  """

  group: Group
  dropped: tuple[core.Var, ...]
  eqns: tuple[int, ...]
  operands: tuple[core.Var, ...]
  before: int
  trigger: core.Var | None


def make_groups(
  values: Values, blocks: Sequence[Block], num_groups: int
) -> tuple[Group, ...]:
  """Divides blocks into groups of nearly equal numbers of them.

  There is at most one group per block, and blocks of different forward passes
  are not put together. Larger groups come first: their backward pass runs last,
  when little else is live.
  """
  num_groups = min(num_groups, len(blocks))
  size, larger = divmod(len(blocks), num_groups)
  # For each block, its number among the groups.
  numbers = [n for n in range(num_groups) for _ in range(size + (n < larger))]
  numbered = zip(blocks, numbers, strict=True)
  parts = itertools.groupby(numbered, key=lambda each: (each[1], each[0].end))
  return tuple(_make_group(values, [b for b, _ in part]) for _, part in parts)


def make_recipe(group: Group, kept: Collection[core.Var]) -> Recipe | None:
  """Says how a group makes anew what is not kept; None if everything is."""
  dropped = tuple(v for v in group.residuals if v not in kept)
  if not dropped:
    return None
  values = group.values
  indices, _ = values.remake(
    dropped, lambda v: v in kept or v not in group.needs
  )
  eqns = [values.eqns[index] for index in indices]
  made = {v for eqn in eqns for v in results(eqn)} - {*kept}
  read = dict.fromkeys(v for eqn in eqns for v in operands(eqn))
  readers = [r for var in dropped for r in values.readers[var]]
  before = min(reader for reader in readers if reader >= group.end)
  trigger = _trigger(values, before)
  if trigger is not None:
    # The gradient of a bias, say, is taken before anything else is read. Behind
    # the barrier XLA makes one kernel of it and of others.
    earlier = [r for r in values.readers[trigger] if r < before]
    before = min([before, *(r for r in earlier if values.is_backward[r])])
  return Recipe(
    group=group,
    dropped=dropped,
    eqns=indices,
    operands=tuple(v for v in read if v not in made),
    before=before,
    trigger=trigger,
  )


def _trigger(values: Values, before: int) -> core.Var | None:
  """Returns a gradient that is there by then, if any is."""
  for index in reversed(range(before + 1)):
    if not values.is_backward[index]:
      return None
    read = filter(num_bytes, operands(values.eqns[index]))
    found = [v for v in (_origin(values, var) for var in read) if v is not None]
    if found:
      return max(found, key=num_bytes)
  return None


def _origin(values: Values, var: core.Var) -> core.Var | None:
  """Returns the gradient that a value is, or is a view of; None of others.

  Each reader of a view makes it anew, and with it all that XLA fuses into it:
  so what it is a view of has to pass the barrier. Views of weights, or of what
  the forward pass makes, wait for nothing.
  """
  while values.is_of_backward_pass(var):
    eqn = values.eqns[values.definers[var]]
    read = operands(eqn)
    if eqn.primitive.name not in VIEWS or len(read) != 1:
      return var
    (var,) = read
  return None


def crossing_bytes(group: Group) -> int:
  """Returns the bytes that a group makes for later parts of its pass."""
  values = group.values
  return sum(
    num_bytes(var)
    for eqn in values.eqns[group.start : group.stop]
    for var in results(eqn)
    if any(group.stop <= r < group.end for r in values.readers.get(var, ()))
  )


def _make_group(values: Values, blocks: Sequence[Block]) -> Group:
  start, stop, end = blocks[0].start, blocks[-1].stop, blocks[0].end
  last = len(values.eqns)
  of_few_weights = _functions_of_few_weights(values, start, stop)
  # What nothing but the group and the backward pass reads. Behind a barrier,
  # XLA would make anew at each run of a loop what it makes once before it.
  inner = {
    var: index
    for index in range(start, stop)
    if may_run_again(values.eqns[index])
    for var in results(values.eqns[index])
    if var not in values.hoisted
    and var not in of_few_weights
    and not any(
      stop <= reader < end or reader == last
      for reader in values.readers.get(var, ())
    )
  }
  group = Group(start, stop, end, values, (), inner)
  residuals = tuple(v for v in inner if values.last_reader(v) >= end)
  needs = {var: inner[var] for var in walk(residuals, group.sources)}
  return dataclasses.replace(group, residuals=residuals, needs=needs)


def _functions_of_few_weights(
  values: Values, start: int, stop: int
) -> set[core.Var]:
  """Returns exponentials of few weights, and the like, that blocks do not drop.

  Behind a barrier XLA would fuse one into what reads it, and so take it for
  each element of that.
  """
  if not values.of_weights:
    return set()
  made = [v for eqn in values.eqns[start:stop] for v in results(eqn)]
  small_bytes = _SMALL_SHARE * max(map(num_bytes, made), default=0)
  return {
    v for v in made if v in values.of_weights and num_bytes(v) <= small_bytes
  }
