"""Writes pairs of loops anew, without the residuals that were dropped."""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Atom, Inliner, flatten, internals
from jaxmem.versions.bodies import with_body
from jaxmem.versions.rules import run_again
from jaxmem.versions.scan.guards import broadcast_apart, guarded
from jaxmem.versions.scan.hoisted import sink
from jaxmem.versions.scan.levels import Level
from jaxmem.versions.scan.pairs import Pair, Read, Residual
from jaxmem.versions.values import num_bytes, results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a backward loop recomputes the residuals that were dropped.

  Attributes:
    dropped: The residuals.
    eqns: Equations of the forward body, in program order.
    operands: Inputs of the forward body that the forward loop is given: its
      constants and slices.
    further: Carries, and results of its equations, that the forward loop has to
      stack in addition.
    stacks: Stacks that stay and are read: value in the body, stack outside.
    extra_bytes: Of the additional stacks and of operands that live longer.
  """

  dropped: tuple[Residual, ...]
  eqns: tuple[int, ...]
  operands: tuple[core.Var, ...]
  further: tuple[core.Var, ...]
  stacks: Mapping[core.Var, core.Var]
  extra_bytes: int

  @property
  def saved_bytes(self) -> int:
    """What the drop saves, extra bytes deducted."""
    return sum(r.size_bytes for r in self.dropped) - self.extra_bytes


def make_recipe(pair: Pair, dropped: Collection[str]) -> Recipe:
  """Says how to recompute some residuals of a pair from everything else.

  A value that is stacked is read; anything else is computed from what it
  depends on. So the names of residuals that are dropped, and of values that are
  stacked besides, determine the rest; of the pair's, none may need an equation
  that must not run twice.
  """
  gone = tuple(r for r in pair.residuals if r.name in dropped)
  readable = pair.readable_stacks(dropped)
  further = {
    v
    for eqn in pair.body.eqns
    for v in results(eqn)
    if pair.stack_name(v) in dropped
  }
  wanted = [var for residual in gone for var in residual.needed]
  there = {*readable, *further}
  eqns, read = pair.body.remake(wanted, there.__contains__)
  assert pair.forbidden.isdisjoint(eqns)
  given = {*read} - {*readable}
  inputs = [var for var in pair.body.jaxpr.invars if var in given]
  carries = [var for var in inputs if var in pair.carries]
  made = [var for var in read if var in further]
  return Recipe(
    dropped=gone,
    eqns=eqns,
    operands=tuple(var for var in inputs if var not in pair.carries),
    further=(*carries, *made),
    stacks={var: readable[var] for var in read if var in readable},
    extra_bytes=sum(pair.input_bytes.get(var, 0) for var in inputs)
    + pair.length * sum(map(num_bytes, made)),
  )


def rewrite_level(
  level: Level, dropped: Collection[str], *, keep_bits: bool
) -> tuple[core.Jaxpr, int]:
  """Returns an equal jaxpr without some residuals.

  Args:
    level: The jaxpr and its pairs.
    dropped: Names of residuals, of this level or within, and of what is stacked
      besides.
    keep_bits: Whether recomputed residuals pass barriers.

  Returns:
    A flat jaxpr with the same inputs and outputs, and the bytes that are saved.
  """
  eqns = [*level.jaxpr.eqns]
  lost: set[core.Var] = set()
  saved_bytes = 0
  for pair in level.pairs:
    recipe = make_recipe(pair, dropped)
    saved_bytes += level.num_shards * recipe.saved_bytes
    if recipe.dropped:
      lost |= {residual.stack for residual in recipe.dropped}
      eqns[pair.forward], stacks = _forward(pair, recipe, eqns[pair.forward])
      eqns[pair.backward] = _backward(
        pair, recipe, level.jaxpr.eqns, stacks, keep_bits
      )
    moved = [hoisted for hoisted in pair.hoisted if hoisted.name in dropped]
    saved_bytes += level.num_shards * sum(h.size_bytes for h in moved)
    broadcasts = {hoisted.eqn.outvars[0]: hoisted.eqn for hoisted in moved}
    for index in (pair.forward, pair.backward):
      eqns[index] = sink(eqns[index], broadcasts)
  for (index, branch), inner in level.inner.items():
    body, inner_bytes = rewrite_level(inner, dropped, keep_bits=keep_bits)
    saved_bytes += inner_bytes
    eqns[index] = with_body(eqns[index], branch, body)
  for joined, inner in level.joined:
    if not inner.names.isdisjoint(dropped):
      body, inner_bytes = rewrite_level(inner, dropped, keep_bits=keep_bits)
      saved_bytes += inner_bytes
      eqns[joined.forward], eqns[joined.backward] = joined.apart(body)
  changed = level.jaxpr.replace(eqns=_without(eqns, lost))
  return flatten(changed, keep=CUSTOM_DERIVATIVES), saved_bytes


def _without(
  eqns: Sequence[core.JaxprEqn], lost: set[core.Var]
) -> list[core.JaxprEqn]:
  """Takes out what lay between two loops, whose stacks are lost."""
  kept = []
  for eqn in eqns:
    is_lost = [isinstance(v, core.Var) and v in lost for v in eqn.invars]
    if any(is_lost):
      # Barriers and what acts on slices have a result for each operand.
      lost.update(itertools.compress(eqn.outvars, is_lost))
      stays = [not each for each in is_lost]
      eqn = eqn.replace(
        invars=[*itertools.compress(eqn.invars, stays)],
        outvars=[*itertools.compress(eqn.outvars, stays)],
      )
    if eqn.outvars or not any(is_lost):
      kept.append(eqn)
  return kept


def _forward(
  pair: Pair, recipe: Recipe, eqn: core.JaxprEqn
) -> tuple[core.JaxprEqn, list[core.Var]]:
  """Returns the forward loop, and the further stacks that it has now."""
  num_consts, num_carry = internals.scan_counts(eqn)
  gone = {num_carry + residual.position for residual in recipe.dropped}
  stays = [p for p in range(len(eqn.outvars)) if p not in gone]
  body = pair.body.jaxpr
  outvars = [*(body.outvars[p] for p in stays), *recipe.further]
  changed = internals.with_scan_body(
    eqn,
    flatten(body.replace(outvars=outvars), keep=CUSTOM_DERIVATIVES),
    eqn.invars,
    [eqn.outvars[p] for p in stays],
    num_consts,
    num_carry,
  )
  return changed, changed.outvars[len(stays) :]


def pass_operand(
  operands: list[tuple[Atom, core.Var]], outer: Atom, inner: core.Var
) -> core.Var:
  """Returns what a body calls an operand, which is added if it is a new one."""
  for atom, var in operands:
    if atom is outer and isinstance(atom, core.Var):
      return var
  operands.append((outer, core.Var(inner.aval)))
  return operands[-1][1]


def _backward(
  pair: Pair,
  recipe: Recipe,
  eqns: Sequence[core.JaxprEqn],
  further_stacks: Sequence[core.Var],
  keep_bits: bool,
) -> core.JaxprEqn:
  """Returns the backward loop, which makes the dropped residuals itself."""
  forward, eqn = eqns[pair.forward], eqns[pair.backward]
  body = eqn.params["jaxpr"]
  num_consts, num_carry = internals.scan_counts(eqn)
  first = num_consts + num_carry
  fresh = [core.Var(v.aval) for v in body.invars]
  given = [*zip(eqn.invars, fresh, strict=True)]
  consts, carry = given[:num_consts], given[num_consts:first]
  gone = {read.position for r in recipe.dropped for read in r.reads}
  slices = [each for p, each in enumerate(given[first:]) if p not in gone]
  known: dict[core.Var, Atom] = {}
  num_forward_consts, _ = internals.scan_counts(forward)
  for number, var in enumerate(pair.body.jaxpr.invars):
    if var in recipe.operands:
      kind = consts if number < num_forward_consts else slices
      known[var] = pass_operand(kind, forward.invars[number], var)
  stacks = zip(recipe.further, further_stacks, strict=True)
  for var, stack in (*stacks, *recipe.stacks.items()):
    known[var] = pass_operand(slices, stack, var)
  inliner = Inliner(CUSTOM_DERIVATIVES)
  operands: list[Atom] = [*fresh]
  made = _recompute(inliner, pair, recipe, known, keep_bits)
  for residual, value in zip(recipe.dropped, made, strict=True):
    for read in residual.reads:
      operands[first + read.position] = _apply(inliner, read, value)
  outvars = inliner.inline(body, operands, internals.empty_name_stack())
  passed = [*consts, *carry, *slices]
  return internals.with_scan_body(
    eqn,
    inliner.finish(body, [var for _, var in passed], outvars),
    [outer for outer, _ in passed],
    eqn.outvars,
    len(consts),
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
  body = pair.body
  eqns = [body.eqns[index] for index in recipe.eqns]
  exact: dict[core.Var, core.Var] = {var: var for var in known}
  # A loop needs no barrier, since XLA fuses it with nothing.
  unguarded = [e for e in eqns if not keep_bits or e.primitive.name == "scan"]
  exact |= {var: var for eqn in unguarded for var in eqn.outvars}
  if keep_bits:
    eqns = broadcast_apart(eqns, known)
    wanted = {var for residual in recipe.dropped for var in residual.needed}
    for group in guarded(body, recipe.eqns, wanted, exact):
      eqns.append(internals.barrier(body.eqns[body.definers[group[0]]], group))
      exact.update(zip(group, eqns[-1].outvars, strict=True))

  def read(atom: Atom) -> Atom:
    """What the backward loop reads: exact values, or products of them."""
    if not isinstance(atom, core.Var) or atom not in body.definers:
      return atom
    if atom not in exact:
      eqn = body.eqns[body.definers[atom]]
      exact[atom] = core.Var(atom.aval)
      operands = [read(operand) for operand in eqn.invars]
      eqns.append(eqn.replace(invars=operands, outvars=[exact[atom]]))
    return exact[atom]

  outvars = [read(residual.value) for residual in recipe.dropped]
  return run_again(inliner, body.jaxpr.replace(eqns=eqns), known, outvars)


def _apply(inliner: Inliner, read: Read, value: Atom) -> Atom:
  """Appends what lay between the two loops, on a slice."""
  for eqn in read.chain:
    (aval,) = internals.result_avals(eqn, [value], eqn.params)
    result = core.Var(aval)
    inliner.eqns.append(eqn.replace(invars=[value], outvars=[result]))
    value = result
  return value
