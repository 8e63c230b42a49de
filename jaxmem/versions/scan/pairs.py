"""Pairs of loops, forward and backward, and the residuals between them.

Autodiff turns a `scan` into two: the forward one stacks what each iteration of
the backward one will read. `find_pairs` finds such loops in a jaxpr, whoever
wrote them, and which of the stacked values the backward loop could make anew.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Atom, flatten, internals, memory
from jaxmem.versions.mapped import in_pieces
from jaxmem.versions.rules import may_run_again
from jaxmem.versions.scan.hoisted import Hoisted, find_hoisted
from jaxmem.versions.values import Values, num_bytes, variables

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
  def needed(self) -> list[core.Var]:
    """What has to be made anew if it is dropped: nothing for a literal."""
    return variables([self.value])

  @property
  def readable(self) -> list[core.Var]:
    """The value, if the backward loop has slices of the stack as they are."""
    return [] if all(read.chain for read in self.reads) else self.needed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """A forward loop and the backward loop that reads its stacks.

  Attributes:
    name: Of the forward loop, unique within a program.
    forward: The forward loop's equation in the level's jaxpr.
    backward: The backward loop's.
    body: The forward body, flat.
    carries: The inputs of the forward body that are carried.
    length: How many iterations the loops have.
    residuals: Those that could be dropped.
    kept: Stacks that stay and that the backward loop may read for nothing: the
      value in the forward body, and the stack.
    input_bytes: What it takes to have an input of the forward body in the
      backward loop: the stack of a carry; or an operand that would have to live
      longer. Operands that live until then anyway are not listed.
    forbidden: Equations of the body that must not run twice.
    hoisted: Broadcasts that the loops could do themselves.
  """

  name: str
  forward: int
  backward: int
  body: Values
  carries: tuple[core.Var, ...]
  length: int
  residuals: tuple[Residual, ...]
  kept: Mapping[core.Var, core.Var]
  input_bytes: Mapping[core.Var, int]
  forbidden: frozenset[int]
  hoisted: tuple[Hoisted, ...]

  @property
  def saved_bytes(self) -> int:
    """What dropping all residuals saves, extra stacks not counted."""
    return sum(each.size_bytes for each in (*self.residuals, *self.hoisted))

  def readable_stacks(
    self, dropped: Collection[str]
  ) -> dict[core.Var, core.Var]:
    """Returns what backward loops read without some: values, their stacks."""
    stays = [r for r in self.residuals if r.name not in dropped]
    return {**self.kept, **{v: r.stack for r in stays for v in r.readable}}

  def stack_name(self, var: core.Var) -> str:
    """Returns what a stack of a result in the forward body is called."""
    eqn = self.body.definers[var]
    return f"{self.name}[{eqn}.{self.body.eqns[eqn].outvars.index(var)}]"

  def is_possible(self, residual: Residual) -> bool:
    """Whether the backward loop could make a residual anew, alone."""
    # The stacked carry is what other residuals are recomputed from.
    if any(residual.value is var for var in self.carries):
      return False
    same = {r.name for r in self.residuals if r.value is residual.value}
    readable = self.readable_stacks(same)
    eqns, _ = self.body.remake(residual.needed, readable.__contains__)
    return self.forbidden.isdisjoint(eqns)


def find_pairs(
  jaxpr: core.Jaxpr, where: str = "", *, is_mapped: bool = False
) -> tuple[Pair, ...]:
  """Finds the pairs of loops on one level of a flat jaxpr.

  A loop takes part in one pair at most: in the one with most to save. When
  that is rewritten, another look finds the next. Loops within loops are not
  looked into.

  Args:
    jaxpr: The jaxpr.
    where: Is prefixed to all names.
    is_mapped: Whether it is within a `shard_map`: if not, those in bodies of
      loops are cut into pieces.
  """
  values = Values(jaxpr)
  found = [
    pair
    for index, eqn in enumerate(jaxpr.eqns)
    if eqn.primitive.name == "scan"
    for pair in _pairs_of(values, index, where, is_mapped)
  ]
  taken: set[int] = set()
  chosen = []
  for pair in sorted(found, key=lambda pair: -pair.saved_bytes):
    if pair.saved_bytes and taken.isdisjoint((pair.forward, pair.backward)):
      taken |= {pair.forward, pair.backward}
      chosen.append(pair)
  return tuple(sorted(chosen, key=lambda pair: pair.forward))


def _pairs_of(
  values: Values, index: int, where: str, is_mapped: bool
) -> Iterator[Pair]:
  """Pairs one forward loop with each loop that reads its stacks."""
  eqn = values.eqns[index]
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
  if len(groups) > 1 and not is_mapped:
    body = in_pieces(body)  # With the same inputs and results.
  carries = body.invars[num_consts:][:num_carry]
  for backward, residuals in groups.items():
    if backward is None:
      continue
    others = [r for b, group in groups.items() if b != backward for r in group]
    pair = Pair(
      name=name,
      forward=index,
      backward=backward,
      body=Values(body),
      carries=tuple(carries),
      length=eqn.params["length"],
      residuals=tuple(residuals),
      kept={
        var: r.stack
        for r in others
        if values.last_reader(r.stack) >= backward
        for var in r.needed
      },
      input_bytes=_input_bytes(values, eqn, body, backward),
      forbidden=frozenset(
        number for number, e in enumerate(body.eqns) if not may_run_again(e)
      ),
      hoisted=find_hoisted(values, name, (index, backward)),
    )
    possible = tuple(r for r in residuals if pair.is_possible(r))
    kept = pair.readable_stacks({residual.name for residual in possible})
    yield dataclasses.replace(pair, residuals=possible, kept=kept)


def _input_bytes(
  values: Values, eqn: core.JaxprEqn, body: core.Jaxpr, backward: int
) -> dict[core.Var, int]:
  """Returns `Pair.input_bytes` of a forward loop."""
  num_consts, num_carry = internals.scan_counts(eqn)
  found = {}
  for number, (var, atom) in enumerate(
    zip(body.invars, eqn.invars, strict=True)
  ):
    if num_consts <= number < num_consts + num_carry:
      found[var] = eqn.params["length"] * num_bytes(var)
    elif any(
      v in values.definers and values.last_reader(v) < backward
      for v in variables([atom])
    ):
      found[var] = memory.size_bytes(atom.aval)
  return found


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
  is_reverse = values.eqns[forward].params["reverse"]
  pending: list[tuple[core.Var, tuple[core.JaxprEqn, ...]]] = [(stack, ())]
  while pending:
    var, chain = pending.pop()
    if values.last_reader(var) == len(values.eqns):
      return nothing
    for index in values.readers.get(var, ()):
      eqn = values.eqns[index]
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
