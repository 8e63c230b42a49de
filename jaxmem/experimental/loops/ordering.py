"""New values of carries in an order in which none is overwritten too early."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from jax.extend import core

from jaxmem.experimental.loops.carries import (
  Carries,
  Prediction,
  is_fusible,
  variables,
)
from jaxmem.jaxpr import Atom, flatten, internals

Edges = Mapping[int, frozenset[int]]


def real_edges(carries: Carries, prediction: Prediction) -> Edges:
  """Returns the order that data do not imply already.

  Returns:
    Carry -> the outputs that have to be there before its new value.
  """
  behind = [_closure(carries, carry) for carry in range(carries.num_carries)]
  found: dict[int, frozenset[int]] = {}
  for first, second in sorted(prediction.before):
    if first not in behind[second]:
      found[second] = found.get(second, frozenset()) | {first}
  return found


def _closure(carries: Carries, carry: int) -> set[int]:
  found: set[int] = set()
  stack = [carry]
  while stack:
    for needed in carries.needs[stack.pop()] - found:
      found.add(needed)
      stack.append(needed)
  return found


def in_order(carries: Carries, edges: Edges, like: core.JaxprEqn) -> core.Jaxpr:
  """Returns a loop's body in which new values wait for others.

  What is computed from the old value, up to the new one, is computed again
  from behind a barrier, through which the values that have to be there go too.
  Only operations that are fused with the new value are repeated, and where
  nothing else reads them, the first copy of them is dead.

  Args:
    carries: The body.
    edges: See `real_edges`.
    like: An equation whose scopes new ones get.
  """
  body = carries.jaxpr
  for second, before in sorted(edges.items()):
    body = _wait(body, carries, second, before, like)
  return flatten(body) if edges else body


def _wait(
  body: core.Jaxpr,
  carries: Carries,
  second: int,
  before: frozenset[int],
  like: core.JaxprEqn,
) -> core.Jaxpr:
  old, result = carries.invars[second], body.outvars[second]
  slice_ = _between(body, old, result)
  waited = [*dict.fromkeys(variables(body.outvars[o] for o in sorted(before)))]
  if slice_ is None or not waited or not isinstance(result, core.Var):
    return body
  barrier = internals.barrier(like, [old, *waited])
  atoms: dict[core.Var, Atom] = {old: barrier.outvars[0]}
  repeated = [barrier]
  for eqn in slice_:
    outvars = [core.Var(var.aval) for var in eqn.outvars]
    repeated.append(eqn.replace(invars=_read(eqn, atoms), outvars=outvars))
    atoms.update(zip(eqn.outvars, outvars, strict=True))
  renamed = {result: atoms[result]}
  eqns = [eqn.replace(invars=_read(eqn, renamed)) for eqn in body.eqns]
  after = dict(zip(waited, barrier.outvars[1:], strict=True)) | renamed
  outvars = [
    after.get(a, a) if isinstance(a, core.Var) else a for a in body.outvars
  ]
  return body.replace(eqns=_sorted([*eqns, *repeated]), outvars=outvars)


def _between(
  body: core.Jaxpr, old: core.Var, result: Atom
) -> list[core.JaxprEqn] | None:
  """Returns what leads from a carry to its new value and can be repeated."""
  reached = {old}
  forward = []
  for eqn in body.eqns:
    if reached.isdisjoint(variables(eqn.invars)):
      continue
    if is_fusible(eqn) or eqn.primitive.name == "dynamic_update_slice":
      forward.append(eqn)
      reached.update(eqn.outvars)
  needed = set(variables([result]))
  found = []
  for eqn in reversed(forward):
    if not needed.isdisjoint(eqn.outvars):
      found.append(eqn)
      needed.update(v for v in variables(eqn.invars) if v in reached)
  return found[::-1] if old in needed else None


def _read(eqn: core.JaxprEqn, atoms: Mapping[core.Var, Atom]) -> list[Atom]:
  return [
    atoms.get(atom, atom) if isinstance(atom, core.Var) else atom
    for atom in eqn.invars
  ]


def _sorted(eqns: Sequence[core.JaxprEqn]) -> list[core.JaxprEqn]:
  """Returns the equations, definitions first, else as they were."""
  definer = {var: n for n, eqn in enumerate(eqns) for var in eqn.outvars}
  waiting = []
  readers: list[list[int]] = [[] for _ in eqns]
  for number, eqn in enumerate(eqns):
    needed = {definer[v] for v in variables(eqn.invars) if v in definer}
    waiting.append(len(needed))
    for other in needed:
      readers[other].append(number)
  ready = [number for number, count in enumerate(waiting) if not count]
  heapq.heapify(ready)
  order = []
  while ready:
    number = heapq.heappop(ready)
    order.append(eqns[number])
    for reader in readers[number]:
      waiting[reader] -= 1
      if not waiting[reader]:
        heapq.heappush(ready, reader)
  return order
