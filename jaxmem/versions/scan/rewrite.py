"""Writes pairs of loops anew, without the residuals that were dropped.

To keep the bits, a recomputed residual passes an optimization barrier before it
is read, as it was written to memory before. Otherwise XLA would fuse it with
its readers and simplify across the two (the product of two exponentials becomes
the exponential of a sum), and the last bits of the gradients would not be those
of the original step. What is between recomputed values is fused and simplified
as it was in the forward loop. A product, in float32 or more, of values that are
exact themselves passes without a barrier: the backward pass multiplies it once
more, and it need not be written to memory for that.
"""

from collections.abc import Collection, Sequence

from jax.extend import core

from jaxmem.jaxpr import (
  CUSTOM_DERIVATIVES,
  Atom,
  Inliner,
  flatten,
  internals,
  memory,
)
from jaxmem.versions.rules import RECOMPUTE_SCOPE
from jaxmem.versions.scan.hoisted import sink
from jaxmem.versions.scan.levels import Level
from jaxmem.versions.scan.pairs import Pair, Read
from jaxmem.versions.scan.recipe import Recipe, make_recipe
from jaxmem.versions.values import results

_BARRIER = "optimization_barrier"
# What XLA looks through when it simplifies.
_SEEN_THROUGH = frozenset(
  """
  broadcast_in_dim copy name neg reshape squeeze stop_gradient transpose
  """.split()
)
_PRODUCTS = frozenset({"mul", "square"})
# XLA computes narrower types in float32, and may leave the rounding out.
_EXACT_ITEMSIZE = 4


def rewrite_level(
  level: Level, dropped: Collection[str], *, keep_bits: bool
) -> tuple[core.Jaxpr, int]:
  """Returns an equal jaxpr without some residuals.

  Args:
    level: The jaxpr and its pairs.
    dropped: Names of residuals, of this level or within.
    keep_bits: Whether recomputed residuals pass barriers.

  Returns:
    A flat jaxpr with the same inputs and outputs, its equations without those
    that nothing needs any more; and the bytes that this saves.
  """
  eqns = [*level.jaxpr.eqns]
  lost: set[core.Var] = set()
  saved_bytes = 0
  for pair in level.pairs:
    recipe = make_recipe(pair, dropped)
    saved_bytes += recipe.saved_bytes
    if recipe.dropped:
      lost |= {residual.stack for residual in recipe.dropped}
      forward, backward = eqns[pair.forward], eqns[pair.backward]
      eqns[pair.forward], carries = _forward(pair, recipe, forward)
      eqns[pair.backward] = _backward(
        pair, recipe, forward, backward, carries, keep_bits
      )
    moved = [hoisted for hoisted in pair.hoisted if hoisted.name in dropped]
    saved_bytes += sum(hoisted.size_bytes for hoisted in moved)
    broadcasts = {hoisted.eqn.outvars[0]: hoisted.eqn for hoisted in moved}
    for index in (pair.forward, pair.backward):
      eqns[index] = sink(eqns[index], broadcasts)
  for inner in level.inner:
    body, inner_bytes = rewrite_level(inner.level, dropped, keep_bits=keep_bits)
    saved_bytes += inner_bytes
    params = eqns[inner.equation].params
    value = params[inner.parameter]
    if inner.branch is not None:
      before, after = value[: inner.branch], value[inner.branch + 1 :]
      body = (*before, body, *after)
    params = {**params, inner.parameter: body}
    eqns[inner.equation] = eqns[inner.equation].replace(params=params)
  changed = level.jaxpr.replace(eqns=_without(eqns, lost))
  return flatten(changed, keep=CUSTOM_DERIVATIVES), saved_bytes


def _without(
  eqns: Sequence[core.JaxprEqn], stacks: Collection[core.Var]
) -> list[core.JaxprEqn]:
  """Takes out what lay between two loops, whose stacks are gone."""
  lost = {*stacks}
  kept = []
  for eqn in eqns:
    is_lost = [isinstance(v, core.Var) and v in lost for v in eqn.invars]
    if not any(is_lost):
      kept.append(eqn)
      continue
    gone = eqn.outvars
    if eqn.primitive.name == _BARRIER:
      operands = zip(eqn.invars, eqn.outvars, is_lost, strict=True)
      stay = [(v, out) for v, out, is_gone in operands if not is_gone]
      gone = [v for v, gone in zip(eqn.outvars, is_lost, strict=True) if gone]
      kept.append(
        eqn.replace(
          invars=[v for v, _ in stay], outvars=[out for _, out in stay]
        )
      )
    lost.update(gone)
  return kept


def _forward(
  pair: Pair, recipe: Recipe, eqn: core.JaxprEqn
) -> tuple[core.JaxprEqn, list[core.Var]]:
  """Returns the forward loop, and the stacks of carries that it has now."""
  num_carry = pair.num_carry
  gone = {residual.position for residual in recipe.dropped}
  kept = [
    position
    for position in range(len(eqn.outvars) - num_carry)
    if position not in gone
  ]
  outvars = pair.body.outvars
  body = pair.body.replace(
    outvars=[
      *outvars[:num_carry],
      *(outvars[num_carry + position] for position in kept),
      *(pair.body.invars[number] for number in recipe.carries),
    ]
  )
  stays = [
    *eqn.outvars[:num_carry],
    *(eqn.outvars[num_carry + position] for position in kept),
  ]
  changed = internals.with_scan_body(
    eqn,
    flatten(body, keep=CUSTOM_DERIVATIVES),
    eqn.invars,
    stays,
    pair.num_consts,
    num_carry,
  )
  return changed, changed.outvars[len(stays) :]


class _Operands:
  """The operands of a loop, of one kind; each once.

  Attributes:
    outer: What is passed.
    inner: What the body calls it.
  """

  def __init__(self, outer: Sequence[Atom], inner: Sequence[core.Var]):
    self.outer = [*outer]
    self.inner = [*inner]
    self._number = {
      atom: number
      for number, atom in reversed([*enumerate(outer)])
      if isinstance(atom, core.Var)
    }

  def add(self, outer: Atom, inner: core.Var) -> core.Var:
    """Returns the body's name of an operand, new if it was not passed."""
    if not isinstance(outer, core.Var):
      self.outer.append(outer)
      self.inner.append(core.Var(inner.aval))
      return self.inner[-1]
    if outer not in self._number:
      self._number[outer] = len(self.outer)
      self.outer.append(outer)
      self.inner.append(core.Var(inner.aval))
    return self.inner[self._number[outer]]


def _backward(
  pair: Pair,
  recipe: Recipe,
  forward: core.JaxprEqn,
  eqn: core.JaxprEqn,
  carry_stacks: Sequence[core.Var],
  keep_bits: bool,
) -> core.JaxprEqn:
  """Returns the backward loop, which makes the dropped residuals itself."""
  old = eqn.params["jaxpr"]
  num_consts, num_carry = internals.scan_counts(eqn)
  first = num_consts + num_carry
  gone = {read.position for r in recipe.dropped for read in r.reads}
  stays = [
    position
    for position in range(first, len(eqn.invars))
    if position - first not in gone
  ]
  fresh = {number: core.Var(v.aval) for number, v in enumerate(old.invars)}
  consts = _Operands(
    eqn.invars[:num_consts], [fresh[number] for number in range(num_consts)]
  )
  slices = _Operands(
    [eqn.invars[position] for position in stays],
    [fresh[position] for position in stays],
  )
  known: dict[core.Var, Atom] = {}
  for number in recipe.operands:
    kind = consts if number < pair.num_consts else slices
    var = pair.body.invars[number]
    known[var] = kind.add(forward.invars[number], var)
  for number, stack in zip(recipe.carries, carry_stacks, strict=True):
    var = pair.body.invars[number]
    known[var] = slices.add(stack, var)
  for var, stack in recipe.stacks:
    known[var] = slices.add(stack, var)
  inliner = Inliner(CUSTOM_DERIVATIVES)
  operands: list[Atom] = [fresh[number] for number in range(len(old.invars))]
  for residual, value in zip(
    recipe.dropped,
    _recompute(inliner, pair, recipe, known, keep_bits),
    strict=True,
  ):
    for read in residual.reads:
      operands[first + read.position] = _apply(inliner, read, value)
  stack = internals.empty_name_stack()
  outvars = inliner.inline(old, operands, stack)
  carry = [fresh[number] for number in range(num_consts, first)]
  invars = [*consts.inner, *carry, *slices.inner]
  return internals.with_scan_body(
    eqn,
    inliner.finish(old, invars, outvars),
    [*consts.outer, *eqn.invars[num_consts:first], *slices.outer],
    eqn.outvars,
    len(consts.outer),
    num_carry,
  )


def _recompute(
  inliner: Inliner,
  pair: Pair,
  recipe: Recipe,
  known: dict[core.Var, Atom],
  keep_bits: bool,
) -> list[Atom]:
  """Appends the equations of a recipe; returns the dropped values."""
  definers = pair.definers
  eqns = [pair.body.eqns[index] for index in recipe.eqns]
  exact: dict[core.Var, core.Var] = {var: var for var in known}
  # A loop needs no barrier, since XLA fuses it with nothing.
  unguarded = [
    eqn for eqn in eqns if not keep_bits or eqn.primitive.name == "scan"
  ]
  exact |= {var: var for eqn in unguarded for var in eqn.outvars}
  for var in _guarded_values(pair, recipe, exact):
    eqns.append(internals.barrier(pair.body.eqns[definers[var]], [var]))
    exact[var] = eqns[-1].outvars[0]

  def read(atom: Atom) -> Atom:
    """What the backward loop reads: exact values, or products of them."""
    if not isinstance(atom, core.Var) or atom not in definers:
      return atom
    if atom not in exact:
      eqn = pair.body.eqns[definers[atom]]
      exact[atom] = core.Var(atom.aval)
      operands = [read(operand) for operand in eqn.invars]
      eqns.append(eqn.replace(invars=operands, outvars=[exact[atom]]))
    return exact[atom]

  outvars = [read(residual.value) for residual in recipe.dropped]
  part = pair.body.replace(invars=[*known], outvars=outvars, eqns=eqns)
  stack = internals.empty_name_stack().extend(RECOMPUTE_SCOPE)
  return inliner.inline(part, [*known.values()], stack)


def _guarded_values(
  pair: Pair, recipe: Recipe, known: Collection[core.Var]
) -> list[core.Var]:
  """Returns the recomputed residuals that need a barrier, in order.

  Args:
    pair: The loops.
    recipe: What is recomputed.
    known: Values that are exact without one.
  """
  guard: list[core.Var] = []
  computed = {v for i in recipe.eqns for v in results(pair.body.eqns[i])}
  dropped = [r.value for r in recipe.dropped if isinstance(r.value, core.Var)]
  order = {var: number for number, var in enumerate(pair.definers)}
  for var in sorted(computed.intersection(dropped), key=order.__getitem__):
    exact = {*guard, *known}
    if var not in exact and not _is_plain_product(pair, var, exact):
      guard.append(var)
  return guard


def _is_plain_product(
  pair: Pair, var: core.Var, exact: Collection[core.Var]
) -> bool:
  """Whether nothing but one multiplication makes it from exact values."""
  eqn, var = _origin(pair, var, ())
  if eqn is None or eqn.primitive.name not in _PRODUCTS:
    return False
  if memory.itemsize(var.aval) < _EXACT_ITEMSIZE:
    return False
  factors = [
    _origin(pair, factor, exact)[1]
    for factor in eqn.invars
    if isinstance(factor, core.Var)
  ]
  return len(factors) == len(eqn.invars) and all(v in exact for v in factors)


def _origin(
  pair: Pair, var: core.Var, exact: Collection[core.Var]
) -> tuple[core.JaxprEqn | None, core.Var]:
  """Returns what a variable is another shape of, and what defines that."""
  while var in pair.definers and var not in exact:
    eqn = pair.body.eqns[pair.definers[var]]
    operand = eqn.invars[0] if eqn.invars else None
    is_view = eqn.primitive.name in _SEEN_THROUGH
    if not is_view or not isinstance(operand, core.Var):
      return eqn, var
    var = operand
  return None, var


def _apply(inliner: Inliner, read: Read, value: Atom) -> Atom:
  """Appends what lay between the two loops, on a slice."""
  for eqn in read.chain:
    (aval,) = internals.result_avals(eqn, [value], eqn.params)
    result = core.Var(aval)
    inliner.eqns.append(eqn.replace(invars=[value], outvars=[result]))
    value = result
  return value
