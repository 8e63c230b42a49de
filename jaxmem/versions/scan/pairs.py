"""Pairs of loops, forward and backward, and the residuals between them.

Autodiff turns a `scan` into two: the forward one stacks what each iteration of
the backward one will read. `find_pairs` finds such loops in a jaxpr, whoever
wrote them, and says of each stacked value whether the backward loop could make
it anew.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Atom, flatten, internals, memory
from jaxmem.versions.rules import why_not_again
from jaxmem.versions.scan.hoisted import Hoisted, gain_bytes

# Applied to a stack, they do to each slice what they do to the whole.
_SLICEWISE = frozenset(
  "convert_element_type copy copy_p name neg reduce_precision stop_gradient"
  " not".split()
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skipped:
  """What was left alone.

  Attributes:
    name: The residual or the program, for people.
    size_bytes: What dropping it would have saved.
    reason: Why it stays.
  """

  name: str
  size_bytes: int
  reason: str


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
    source: The line of the user's program, or the name scope.
  """

  name: str
  position: int
  value: Atom
  stack: core.Var
  reads: tuple[Read, ...]
  size_bytes: int
  source: str = ""

  @property
  def is_read_directly(self) -> bool:
    """Whether the backward loop has slices of the stack as they are."""
    return any(not read.chain for read in self.reads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """A forward loop and the backward loop that reads its stacks.

  Attributes:
    name: Where it is, for people.
    forward: The forward loop's equation in the level's jaxpr.
    backward: The backward loop's.
    body: The forward body, flat.
    num_consts: The first inputs of the forward body.
    num_carry: The next ones; the rest are slices.
    residuals: Those that could be dropped; none if empty.
    kept: Stacks that stay and that the backward loop may read for nothing: the
      value in the forward body, and the stack.
    extended_bytes: Of operands of the forward loop that would have to live
      longer to be read by the backward loop. Operands that live until then
      anyway are not listed.
    forbidden: Equations of the body that must not run twice, and why.
    hoisted: Broadcasts that the loops could do themselves.
  """

  name: str
  forward: int
  backward: int
  body: core.Jaxpr
  num_consts: int
  num_carry: int
  length: int
  residuals: tuple[Residual, ...]
  kept: Mapping[core.Var, core.Var]
  extended_bytes: Mapping[int, int]
  forbidden: Mapping[int, str]
  hoisted: tuple[Hoisted, ...] = ()

  @property
  def saved_bytes(self) -> int:
    """What dropping all residuals saves, extra stacks not counted."""
    return sum(each.size_bytes for each in (*self.residuals, *self.hoisted))


class Uses:
  """Where each variable of a flat jaxpr is read.

  Attributes:
    last: The last equation that reads or keeps a variable.
  """

  def __init__(self, jaxpr: core.Jaxpr):
    self.jaxpr = jaxpr
    self._readers: dict[core.Var, list[tuple[int, int]]] = {}
    self.last: dict[core.Var, int] = {}
    end = len(jaxpr.eqns)
    for index, eqn in enumerate(jaxpr.eqns):
      for position, atom in enumerate(eqn.invars):
        if isinstance(atom, core.Var):
          self._readers.setdefault(atom, []).append((index, position))
          self.last[atom] = index
    self._definers = definers_of(jaxpr)
    self._results = {v for v in jaxpr.outvars if isinstance(v, core.Var)}
    for var in (*self._results, *jaxpr.invars, *jaxpr.constvars):
      self.last[var] = end

  def is_live_at(self, atom: Atom, index: int) -> bool:
    """Whether an equation could read an atom without keeping it longer."""
    return not isinstance(atom, core.Var) or self.last.get(atom, -1) >= index

  def definition(self, var: core.Var) -> core.JaxprEqn | None:
    """Returns the equation that defines it, if it is not an input."""
    index = self._definers.get(var)
    return None if index is None else self.jaxpr.eqns[index]

  def is_result(self, var: core.Var) -> bool:
    """Whether the jaxpr returns it."""
    return var in self._results

  def readers(self, var: core.Var) -> list[tuple[int, int]]:
    """Returns the equations that read it, and at which operand."""
    return self._readers.get(var, [])


def find_pairs(
  jaxpr: core.Jaxpr, where: str = ""
) -> tuple[list[Pair], list[Skipped]]:
  """Finds the pairs of loops on one level of a flat jaxpr.

  A loop takes part in one pair at most: in the one with most to save. When
  that is rewritten, another look finds the next.

  Args:
    jaxpr: Flat; loops within its loops are not looked into.
    where: Prefixed to all names.
  """
  uses = Uses(jaxpr)
  found, skipped = [], []
  for index, eqn in enumerate(jaxpr.eqns):
    if eqn.primitive.name == "scan":
      pairs, stay = _pairs_of(uses, index, where)
      found += pairs
      skipped += stay
  taken: set[int] = set()
  chosen = []
  for pair in sorted(found, key=lambda pair: -pair.saved_bytes):
    if pair.saved_bytes and taken.isdisjoint((pair.forward, pair.backward)):
      taken |= {pair.forward, pair.backward}
      chosen.append(pair)
  return sorted(chosen, key=lambda pair: pair.forward), skipped


class _Destination(NamedTuple):
  """Where the slices of a stack go: a loop, or nowhere, with the reason."""

  reads: dict[int, list[Read]]
  reason: str


def _pairs_of(
  uses: Uses, index: int, where: str
) -> tuple[list[Pair], list[Skipped]]:
  """Pairs one forward loop with each loop that reads its stacks."""
  eqn = uses.jaxpr.eqns[index]
  num_consts, num_carry = internals.scan_counts(eqn)
  body = flatten(eqn.params["jaxpr"], keep=CUSTOM_DERIVATIVES)
  mutable = any("Ref" in type(v.aval).__name__ for v in body.invars)
  name = f"{where}scan.{index}"
  length = eqn.params["length"]
  groups: dict[int, list[Residual]] = {}
  kept: list[tuple[core.Var, Residual]] = []
  skipped = []
  sources = _sources(body)
  for position, stack in enumerate(eqn.outvars[num_carry:]):
    destination = _follow(uses, stack, index)
    value = body.outvars[num_carry + position]
    residual = Residual(
      name=f"{name}[{position}]",
      position=position,
      value=value,
      stack=stack,
      reads=(),
      size_bytes=memory.size_bytes(stack.aval),
      source=sources.get(value, "") if isinstance(value, core.Var) else "",
    )
    readers = [*destination.reads]
    reason = destination.reason
    if not reason and len(readers) > 1:
      reason = "it is read by more than one loop"
    if not reason and length <= 1:
      reason = "its loop runs once"
    if not reason and mutable:
      reason = "its loop reads or writes mutable arrays"
    if reason:
      if any(_is_opposite(uses, index, reader) for reader in readers):
        skipped.append(_skip(residual, reason))
      if isinstance(value, core.Var):
        kept.append((value, residual))
    elif readers:
      reads = tuple(destination.reads[readers[0]])
      group = groups.setdefault(readers[0], [])
      group.append(dataclasses.replace(residual, reads=reads))
  pairs = []
  for backward, residuals in groups.items():
    others = [r for b, group in groups.items() if b != backward for r in group]
    stays = [*kept, *((r.value, r) for r in others)]
    pair = Pair(
      name=f"{name}->scan.{backward}",
      forward=index,
      backward=backward,
      body=body,
      num_consts=num_consts,
      num_carry=num_carry,
      length=length,
      residuals=tuple(residuals),
      kept={
        value: residual.stack
        for value, residual in stays
        if isinstance(value, core.Var)
        and uses.is_live_at(residual.stack, backward)
      },
      extended_bytes=_extended_bytes(
        uses, eqn, backward, num_consts, num_carry
      ),
      forbidden={
        number: reason
        for number, inner in enumerate(body.eqns)
        if (reason := why_not_again(inner))
      },
    )
    if not mutable and length > 1:
      hoisted = _hoisted(uses, name, (index, backward))
      pair = dataclasses.replace(pair, hoisted=hoisted)
    pair, stay = _without_impossible(pair)
    pairs.append(pair)
    skipped += stay
  return pairs, skipped


def _hoisted(
  uses: Uses, name: str, loops: tuple[int, int]
) -> tuple[Hoisted, ...]:
  """Finds the broadcasts that are constants of two loops and nothing else."""
  constants: dict[core.Var, None] = {}
  for loop in loops:
    eqn = uses.jaxpr.eqns[loop]
    num_consts, _ = internals.scan_counts(eqn)
    for atom in eqn.invars[:num_consts]:
      if isinstance(atom, core.Var):
        constants[atom] = None
  found = []
  for var in constants:
    definition = uses.definition(var)
    if definition is None or uses.is_result(var):
      continue
    gain = gain_bytes(definition)
    is_elsewhere = any(
      index not in loops
      or position >= internals.scan_counts(uses.jaxpr.eqns[index])[0]
      for index, position in uses.readers(var)
    )
    if gain and not is_elsewhere:
      found.append(
        Hoisted(
          name=f"{name}:constant[{len(found)}]",
          eqn=definition,
          size_bytes=gain,
          source=internals.source(definition),
        )
      )
  return tuple(found)


def _skip(residual: Residual, reason: str) -> Skipped:
  return Skipped(
    name=f"{residual.name} {residual.source}".strip(),
    size_bytes=residual.size_bytes,
    reason=reason,
  )


def _sources(body: core.Jaxpr) -> dict[core.Var, str]:
  return {v: internals.source(e) for e in body.eqns for v in e.outvars}


def _follow(uses: Uses, stack: core.Var, forward: int) -> _Destination:
  """Follows a stack to the loops that scan it."""
  reads: dict[int, list[Read]] = {}
  reasons = []
  pending: list[tuple[core.Var, tuple[core.JaxprEqn, ...]]] = [(stack, ())]
  while pending:
    var, chain = pending.pop()
    if uses.is_result(var):
      reasons.append("it is a result as well")
    for index, position in uses.readers(var):
      eqn = uses.jaxpr.eqns[index]
      name = eqn.primitive.name
      if name == "scan":
        scanned = position - sum(internals.scan_counts(eqn))
        if scanned < 0:
          reasons.append("a loop reads it whole")
          continue
        reads.setdefault(index, []).append(Read(scanned, chain))
        if not _is_opposite(uses, forward, index):
          reasons.append("a loop of the same direction reads it")
      elif name == "optimization_barrier":
        pending.append((eqn.outvars[position], chain))
      elif name in _SLICEWISE and len(eqn.invars) == len(eqn.outvars) == 1:
        pending.append((eqn.outvars[0], (*chain, eqn)))
      else:
        reasons.append(f"{name} reads it outside of loops")
  return _Destination(reads, reasons[0] if reasons else "")


def _is_opposite(uses: Uses, forward: int, backward: int) -> bool:
  one, other = uses.jaxpr.eqns[forward], uses.jaxpr.eqns[backward]
  return one.params["reverse"] != other.params["reverse"]


def _extended_bytes(
  uses: Uses,
  eqn: core.JaxprEqn,
  backward: int,
  num_consts: int,
  num_carry: int,
) -> dict[int, int]:
  """Returns what constants and slices cost that die before `backward`."""
  return {
    position: memory.size_bytes(atom.aval)
    for position, atom in enumerate(eqn.invars)
    if not num_consts <= position < num_consts + num_carry
    and not uses.is_live_at(atom, backward)
  }


def _without_impossible(pair: Pair) -> tuple[Pair, list[Skipped]]:
  """Takes residuals out that could not be made anew even from all others."""
  definers = definers_of(pair.body)
  stays = {
    r.value
    for r in pair.residuals
    if r.is_read_directly and isinstance(r.value, core.Var)
  }
  possible, skipped = [], []
  for residual in pair.residuals:
    reason = _why_impossible(pair, definers, residual, stays)
    if reason:
      skipped.append(_skip(residual, reason))
    else:
      possible.append(residual)
  kept = dict(pair.kept)
  names = {residual.name for residual in possible}
  for residual in pair.residuals:
    is_kept = residual.name not in names and residual.is_read_directly
    if is_kept and isinstance(residual.value, core.Var):
      kept[residual.value] = residual.stack
  changed = dataclasses.replace(pair, residuals=tuple(possible), kept=kept)
  return changed, skipped


def _why_impossible(
  pair: Pair,
  definers: Mapping[core.Var, int],
  residual: Residual,
  stays: set[core.Var],
) -> str:
  carry = pair.body.invars[pair.num_consts :][: pair.num_carry]
  if any(residual.value is var for var in carry):
    return "it is the carry from which others are recomputed"
  pending = [a for a in (residual.value,) if isinstance(a, core.Var)]
  seen = set()
  while pending:
    atom = pending.pop()
    if atom not in definers or atom in seen:
      continue
    seen.add(atom)
    if atom in pair.kept or (atom is not residual.value and atom in stays):
      continue
    index = definers[atom]
    if index in pair.forbidden:
      return pair.forbidden[index]
    operands = pair.body.eqns[index].invars
    pending += [a for a in operands if isinstance(a, core.Var)]
  return ""


def definers_of(jaxpr: core.Jaxpr) -> dict[core.Var, int]:
  """Returns the equation that defines each variable."""
  return {
    var: index for index, eqn in enumerate(jaxpr.eqns) for var in eqn.outvars
  }


def iter_inner(
  eqn: core.JaxprEqn,
) -> Iterator[tuple[str, int | None, core.Jaxpr]]:
  """Yields the bodies of an equation that may hold pairs of their own.

  Yields:
    The parameter, the position in it if it is a tuple, and the body.
  """
  name = eqn.primitive.name
  if name == "cond":
    for number, branch in enumerate(eqn.params["branches"]):
      yield "branches", number, branch
  elif name == "while":
    yield "body_jaxpr", None, eqn.params["body_jaxpr"]
  elif name in ("scan", "shard_map", "jit", "pjit"):
    yield "jaxpr", None, eqn.params["jaxpr"]
