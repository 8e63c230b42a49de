"""Pairs of loops, forward and backward, and the residuals between them.

Autodiff turns a `scan` into two: the forward one stacks what each iteration of
the backward one will read. `find_pairs` finds such loops in a jaxpr, whoever
wrote them, and which of the stacked values the backward loop could make anew.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Atom, flatten, internals, memory
from jaxmem.versions.rules import may_run_again
from jaxmem.versions.scan.hoisted import Hoisted, find_hoisted
from jaxmem.versions.values import Values, operands

# Applied to a stack, they do to each slice what they do to the whole.
_SLICEWISE = frozenset(
  "convert_element_type copy copy_p name neg reduce_precision stop_gradient"
  " not".split()
)


class Read(NamedTuple):
  """One operand of the backward loop that is a stack.

  Attributes:
    position: Among the operands that the backward loop scans.
    chain: Equations between the two loops, each acting on slices alike;
      optimization barriers are left out.
  """

  position: int
  chain: tuple[core.JaxprEqn, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Residual:
  """A value that the forward loop stacks for the backward loop.

  Attributes:
    name: Unique within a program: which loop, and which of its stacks.
    position: Among the stacks of the forward loop.
    value: What is stacked, in the forward body.
    stack: The stack, outside.
    reads: Where the backward loop reads it.
    size_bytes: Of the stack.
  """

  name: str
  position: int
  value: Atom
  stack: core.Var
  reads: tuple[Read, ...]
  size_bytes: int

  @property
  def is_read_directly(self) -> bool:
    """Whether the backward loop has slices of the stack as they are."""
    return any(not read.chain for read in self.reads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """A forward loop and the backward loop that reads its stacks.

  Attributes:
    forward: The forward loop's equation in the level's jaxpr.
    backward: The backward loop's.
    body: The forward body, flat.
    num_consts: The first inputs of the forward body.
    num_carry: The next ones; the rest are slices.
    length: How many iterations the loops have.
    residuals: Those that could be dropped.
    kept: Stacks that stay and that the backward loop may read for nothing: the
      value in the forward body, and the stack.
    extended_bytes: Of operands of the forward loop that would have to live
      longer to be read by the backward loop. Operands that live until then
      anyway are not listed.
    forbidden: Equations of the body that must not run twice.
    hoisted: Broadcasts that the loops could do themselves.
  """

  forward: int
  backward: int
  body: core.Jaxpr
  num_consts: int
  num_carry: int
  length: int
  residuals: tuple[Residual, ...]
  kept: Mapping[core.Var, core.Var]
  extended_bytes: Mapping[int, int]
  forbidden: Collection[int]
  hoisted: tuple[Hoisted, ...]

  @functools.cached_property
  def definers(self) -> dict[core.Var, int]:
    """The equation of the forward body that makes each of its values."""
    return Values(self.body).definers

  @property
  def saved_bytes(self) -> int:
    """What dropping all residuals saves, extra stacks not counted."""
    return sum(each.size_bytes for each in (*self.residuals, *self.hoisted))

  def is_carry(self, number: int) -> bool:
    """Whether an input of the forward body is carried."""
    return 0 <= number - self.num_consts < self.num_carry

  def carry_bytes(self, number: int) -> int:
    """Returns what stacking a carry takes."""
    return self.length * memory.size_bytes(self.body.invars[number].aval)

  def readable_stacks(
    self, dropped: Collection[str]
  ) -> dict[core.Var, core.Var]:
    """Returns what the backward loop can read: values, and their stacks.

    Args:
      dropped: Names of residuals that are not stacked any more.
    """
    readable = dict(self.kept)
    for residual in self.residuals:
      is_kept = residual.name not in dropped and residual.is_read_directly
      if is_kept and isinstance(residual.value, core.Var):
        readable[residual.value] = residual.stack
    return readable


def find_pairs(jaxpr: core.Jaxpr, where: str = "") -> tuple[Pair, ...]:
  """Finds the pairs of loops on one level of a flat jaxpr.

  A loop takes part in one pair at most: in the one with most to save. When
  that is rewritten, another look finds the next.

  Args:
    jaxpr: Flat; loops within its loops are not looked into.
    where: Prefixed to all names.
  """
  values = Values(jaxpr)
  found = [
    pair
    for index, eqn in enumerate(jaxpr.eqns)
    if eqn.primitive.name == "scan"
    for pair in _pairs_of(values, index, where)
  ]
  taken: set[int] = set()
  chosen = []
  for pair in sorted(found, key=lambda pair: -pair.saved_bytes):
    if pair.saved_bytes and taken.isdisjoint((pair.forward, pair.backward)):
      taken |= {pair.forward, pair.backward}
      chosen.append(pair)
  return tuple(sorted(chosen, key=lambda pair: pair.forward))


def _pairs_of(values: Values, index: int, where: str) -> Iterator[Pair]:
  """Pairs one forward loop with each loop that reads its stacks."""
  eqn = values.jaxpr.eqns[index]
  num_consts, num_carry = internals.scan_counts(eqn)
  body = flatten(eqn.params["jaxpr"], keep=CUSTOM_DERIVATIVES)
  # What a mutable array holds may be another by the time of the backward loop.
  is_mutable = any("Ref" in type(v.aval).__name__ for v in body.invars)
  if is_mutable or eqn.params["length"] <= 1:
    return
  name = f"{where}scan.{index}"
  # The residuals that each backward loop reads; under None, all other stacks.
  groups: dict[int | None, list[Residual]] = {None: []}
  for position, stack in enumerate(eqn.outvars[num_carry:]):
    backward, reads = _only_reader(values, stack, index)
    residual = Residual(
      name=f"{name}[{position}]",
      position=position,
      value=body.outvars[num_carry + position],
      stack=stack,
      reads=reads,
      size_bytes=memory.size_bytes(stack.aval),
    )
    groups.setdefault(backward, []).append(residual)
  forbidden = frozenset(
    number for number, e in enumerate(body.eqns) if not may_run_again(e)
  )
  for backward, residuals in groups.items():
    if backward is None:
      continue
    others = [r for b, group in groups.items() if b != backward for r in group]
    pair = Pair(
      forward=index,
      backward=backward,
      body=body,
      num_consts=num_consts,
      num_carry=num_carry,
      length=eqn.params["length"],
      residuals=tuple(residuals),
      kept={
        r.value: r.stack
        for r in others
        if isinstance(r.value, core.Var)
        and values.last_reader(r.stack) >= backward
      },
      extended_bytes={
        position: memory.size_bytes(atom.aval)
        for position, atom in enumerate(eqn.invars)
        if not num_consts <= position < num_consts + num_carry
        and not values.is_live_at(atom, backward)
      },
      forbidden=forbidden,
      hoisted=find_hoisted(values, name, (index, backward)),
    )
    yield _without_impossible(pair)


def _only_reader(
  values: Values, stack: core.Var, forward: int
) -> tuple[int | None, tuple[Read, ...]]:
  """Follows a stack to the one loop that reads its slices, and nothing else.

  Returns:
    The loop, which must run in the opposite direction, and where it reads; None
    if there is no such loop, or anything else reads the stack.
  """
  nothing = None, ()
  reads: dict[int, list[Read]] = {}
  is_reverse = values.jaxpr.eqns[forward].params["reverse"]
  pending: list[tuple[core.Var, tuple[core.JaxprEqn, ...]]] = [(stack, ())]
  while pending:
    var, chain = pending.pop()
    if values.is_returned(var):
      return nothing
    for index in values.readers.get(var, ()):
      eqn = values.jaxpr.eqns[index]
      name = eqn.primitive.name
      positions = [p for p, atom in enumerate(eqn.invars) if atom is var]
      if name == "scan":
        first_slice = sum(internals.scan_counts(eqn))
        # A constant or a carry is read whole.
        if positions[0] < first_slice or eqn.params["reverse"] == is_reverse:
          return nothing
        found = reads.setdefault(index, [])
        found += [Read(p - first_slice, chain) for p in positions]
      elif name == "optimization_barrier":
        pending += [(eqn.outvars[p], chain) for p in positions]
      elif name in _SLICEWISE and len(eqn.invars) == len(eqn.outvars) == 1:
        pending.append((eqn.outvars[0], (*chain, eqn)))
      else:
        return nothing
  if len(reads) != 1:
    return nothing
  ((backward, found),) = reads.items()
  return backward, tuple(found)


def _without_impossible(pair: Pair) -> Pair:
  """Takes residuals out that could not be made anew even from all others."""
  possible = tuple(r for r in pair.residuals if _is_possible(pair, r))
  kept = pair.readable_stacks({residual.name for residual in possible})
  return dataclasses.replace(pair, residuals=possible, kept=kept)


def _is_possible(pair: Pair, residual: Residual) -> bool:
  """Whether the backward loop could make a residual anew, if it alone went."""
  carry = pair.body.invars[pair.num_consts :][: pair.num_carry]
  # The stacked carry is what other residuals are recomputed from.
  if any(residual.value is var for var in carry):
    return False
  readable = pair.readable_stacks(())
  pending = [a for a in (residual.value,) if isinstance(a, core.Var)]
  seen = set()
  while pending:
    var = pending.pop()
    if var not in pair.definers or var in seen:
      continue
    seen.add(var)
    if var in readable and (var is not residual.value or var in pair.kept):
      continue
    index = pair.definers[var]
    if index in pair.forbidden:
      return False
    pending += operands(pair.body.eqns[index])
  return True
