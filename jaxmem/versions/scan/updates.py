"""Updates of what loops stack, done in the loop instead of after it.

The backward loop of scanned layers stacks the gradients of all of them, and the
optimizer reads the stacks. What it does to them element by element, it can do
to the slices, as soon as the loop has made them. Then they need not be stacked;
and where weights and moments are donated, each iteration writes the new ones
over the old. Where layers are not scanned, an order of operations does as much.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxmem.jaxpr import (
  CUSTOM_DERIVATIVES,
  Atom,
  Inliner,
  flatten,
  internals,
  memory,
)
from jaxmem.versions.scan.rewrite import pass_operand
from jaxmem.versions.scan.updating import Updates, find_updates
from jaxmem.versions.values import Values, num_bytes, variables

# The name scope of what loops update; profiles show it.
_SCOPE = "update"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Updated:
  """A step whose loops update what they would have stacked.

  Attributes:
    closed_jaxpr: The step; the one that was given if there are no such loops.
    names: Which loops, and which of their stacks are gone.
    saved_bytes: Bytes of these, less those of what is stacked in their place.
    copied_bytes: What is written to memory of its own before it is written over
      what it replaces.
  """

  closed_jaxpr: core.Jaxpr
  names: tuple[str, ...] = ()
  saved_bytes: int = 0
  copied_bytes: int = 0


def update_in_loops(
  closed_jaxpr: core.Jaxpr,
  donated: Sequence[bool],
  save_bytes: float = math.inf,
  *,
  keep_bits: bool = True,
) -> Updated:
  """Moves elementwise updates of stacks into the loops that make them.

  Each result passes an optimization barrier before it is written over what it
  replaces, so that XLA needs no copy of all that, and fuses it with nothing.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
    donated: Of each input, whether its memory may be written over.
    save_bytes: How many bytes to save at least, if that is possible; by default
      as many as possible.
    keep_bits: Whether to leave out what is computed in less than float32: XLA
      may round it in other places.

  Returns:
    The step, with equal results up to what XLA fuses otherwise.
  """
  flat = flatten(closed_jaxpr, keep=CUSTOM_DERIVATIVES)
  overwritten = _overwritten(flat, donated)
  result = Updated(closed_jaxpr=closed_jaxpr)
  loops = [e.outvars for e in flat.eqns if e.primitive.name == "scan"]
  for number, outvars in reversed([*enumerate(loops)]):
    values = Values(flat)
    index = next(i for i, e in enumerate(flat.eqns) if e.outvars is outvars)
    wanted = save_bytes - result.saved_bytes
    updates = find_updates(values, index, overwritten, wanted, keep_bits)
    if updates is not None:
      flat = _with_updates(values, updates)
      names = (f"scan.{number}[{position}]" for position in updates.gone)
      result = Updated(
        closed_jaxpr=flat,
        names=(*result.names, *names),
        saved_bytes=result.saved_bytes + updates.saved_bytes,
        copied_bytes=result.copied_bytes
        + sum(map(num_bytes, updates.in_place)),
      )
  return result


def _overwritten(
  jaxpr: core.Jaxpr, donated: Sequence[bool]
) -> dict[core.Var, core.Var]:
  """Returns which donated input each result is written over.

  jax gives each result the first donated input of its type that is left.
  """
  free: defaultdict[Any, deque[core.Var]] = defaultdict(deque)
  for var, is_donated in zip(jaxpr.invars, donated, strict=True):
    if is_donated:
      free[var.aval].append(var)
  found: dict[core.Var, core.Var] = {}
  for var in jaxpr.outvars:
    if free[var.aval]:
      given = free[var.aval].popleft()
      if isinstance(var, core.Var) and given not in jaxpr.outvars:
        found.setdefault(var, given)
  return found


def _with_updates(values: Values, updates: Updates) -> core.Jaxpr:
  """Returns the program with these updates in the loop."""
  taken = {updates.index, *updates.eqns}
  others = [n for n in range(len(values.eqns)) if n not in taken]
  # What the loop reads now may have been made after it.
  early = [values.eqns[n] for n in others if n not in updates.late]
  late = [values.eqns[n] for n in others if n in updates.late]
  loop = _Loop(values, updates).rewritten()
  return values.jaxpr.replace(eqns=[*early, loop, *late])


class _Loop:
  """A loop that is written anew, with updates in its body.

  Args:
    values: The program.
    updates: What the loop is to do.
  """

  def __init__(self, values: Values, updates: Updates):
    self._values = values
    self._updates = updates
    self._eqn = eqn = values.eqns[updates.index]
    self._body: core.Jaxpr = eqn.params["jaxpr"]
    self._inliner = Inliner(CUSTOM_DERIVATIVES)
    num_consts, num_carry = internals.scan_counts(eqn)
    self._inputs = [core.Var(v.aval) for v in self._body.invars]
    given = [*zip(eqn.invars, self._inputs, strict=True)]
    # What the loop is given, and what its body calls it.
    self._consts = given[:num_consts]
    self._carry = given[num_consts:][:num_carry]
    self._slices = given[num_consts + num_carry :]
    self._num_carry = num_carry
    first = self._first_count()
    self._count = core.Var(first.aval)
    self._stacks = {v: core.Var(v.aval) for v in updates.in_place.values()}
    self._carry += [*self._stacks.items(), (first, self._count)]

  def rewritten(self) -> core.JaxprEqn:
    """Returns the loop; see `update_in_loops`."""
    updates, results, stacks = self._updates, self._eqn.outvars, self._stacks
    num_carry = self._num_carry
    known: dict[core.Var, Atom] = {
      given: self._append(_slice, stack, self._count)
      for given, stack in stacks.items()
    }
    made = dict(zip(results, self._run(known), strict=True))
    read = [v for v in results[num_carry:] if v in self._values.readers]
    # Nothing that is updated is fused with what made it.
    alive = [*results[:num_carry], *read]
    known |= self._guarded({var: made[var] for var in alive})
    for number in updates.eqns:
      self._update(number, known)
    gone = {results[position] for position in updates.gone}
    stays = [var for var in read if var not in gone]
    # Whatever reads an old slice has done so before it is written over.
    ends = [*results[:num_carry], *updates.in_place, *stays, *updates.made]
    known |= self._guarded({var: known[var] for var in ends})
    for var, given in updates.in_place.items():
      known[var] = self._append(
        _written, stacks[given], known[var], self._count
      )
    following = core.Var(self._count.aval)
    known[following] = self._append(self._following, self._count)
    names = [*results[:num_carry], *updates.in_place, following]
    names += [*stays, *updates.made]
    ends = [known[var] for var in names]
    passed = [*self._consts, *self._carry, *self._slices]
    return internals.with_scan_body(
      self._eqn,
      self._inliner.finish(self._body, [v for _, v in passed], ends),
      [outer for outer, _ in passed],
      names,
      len(self._consts),
      len(self._carry),
    )

  def _first_count(self) -> Atom:
    """Returns the number of the first iteration."""
    length, is_reverse = self._eqn.params["length"], self._eqn.params["reverse"]
    first = np.int32(length - 1 if is_reverse else 0)
    (literal,) = jax.make_jaxpr(lambda: first)().outvars
    return literal

  def _following(self, count: Any) -> Any:
    """Returns the number of the next iteration."""
    return count + np.int32(-1 if self._eqn.params["reverse"] else 1)

  def _append(self, function: Callable[..., Any], *atoms: Atom) -> core.Var:
    """Appends what a function does to values; returns its result."""
    shapes = (internals.shape_of(atom.aval) for atom in atoms)
    jaxpr = jax.make_jaxpr(function)(*shapes)
    stack = internals.empty_name_stack().extend(_SCOPE)
    (result,) = self._inliner.inline(jaxpr, atoms, stack)
    assert isinstance(result, core.Var)
    return result

  def _run(self, slices: Mapping[core.Var, Atom]) -> list[Atom]:
    """Appends what the loop did; returns its results.

    Args:
      slices: Of inputs that are written over, which it is not given any more.
    """
    operands: list[Atom] = [*self._inputs[: -len(self._slices) or None]]
    stays = []
    for outer, inner in self._slices:
      if isinstance(outer, core.Var) and outer in slices:
        operands.append(slices[outer])
      else:
        operands.append(inner)
        stays.append((outer, inner))
    self._slices = stays
    stack = internals.empty_name_stack()
    return self._inliner.inline(self._body, operands, stack)

  def _guarded(self, known: Mapping[core.Var, Atom]) -> dict[core.Var, Atom]:
    """Returns values behind a barrier that all of them pass at once."""
    passed = variables(known.values())
    barrier = internals.barrier(self._eqn, passed)
    stack = internals.empty_name_stack().extend(_SCOPE)
    self._inliner.eqns.append(internals.with_name_stack(barrier, stack))
    behind = dict(zip(passed, barrier.outvars, strict=True))
    return {
      var: behind[atom] if isinstance(atom, core.Var) else atom
      for var, atom in known.items()
    }

  def _update(self, number: int, known: dict[core.Var, Atom]) -> None:
    """Appends an equation that acts on slices; `known` gets its result."""
    eqn = self._values.eqns[number]
    operands = [self._read(atom, known) for atom in eqn.invars]
    params = {**eqn.params}
    if "sharding" in params:
      params["sharding"] = None  # Of a whole stack, on no mesh.
    if eqn.primitive.name == "broadcast_in_dim":
      params["shape"] = params["shape"][1:]
    (aval,) = internals.result_avals(eqn, operands, params)
    result = core.Var(aval)
    changed = eqn.replace(invars=operands, outvars=[result], params=params)
    self._inliner.eqns.append(changed)
    known[eqn.outvars[0]] = result

  def _read(self, atom: Atom, known: dict[core.Var, Atom]) -> Atom:
    """Returns what the body calls a scalar, or a slice of a stack."""
    if not isinstance(atom, core.Var):
      return atom
    if atom not in known:
      kind, aval = self._consts, atom.aval
      if memory.shape(aval):
        kind, aval = self._slices, _slice_type(atom)
      known[atom] = pass_operand(kind, atom, core.Var(aval))
    return known[atom]


def _slice(stack: Any, index: Any) -> Any:
  return jax.lax.dynamic_index_in_dim(
    stack, index, keepdims=False, allow_negative_indices=False
  )


def _written(stack: Any, new: Any, index: Any) -> Any:
  return jax.lax.dynamic_update_index_in_dim(
    stack, new, index, 0, allow_negative_indices=False
  )


def _slice_type(stack: core.Var) -> Any:
  """Returns the type of a slice of a stack."""
  shape = internals.shape_of(stack.aval)
  jaxpr = jax.make_jaxpr(lambda whole: _slice(whole, np.int32(0)))(shape)
  return jaxpr.outvars[0].aval
