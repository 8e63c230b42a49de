"""A forward and a backward `shard_map`, looked at as if they were one.

Autodiff turns a `shard_map` into two: the forward pass of its body is in the
first, the backward pass in the second, and residuals are results of one and
operands of the other. Joined to one flat jaxpr, loops find their partners, and
blocks their backward pass, as anywhere else; taken apart again, each half has
the operands and results that it needs then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from jax.extend import core

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Atom, Inliner, internals
from jaxmem.versions.mapped import (
  Operand,
  Part,
  equations,
  given,
  is_understood,
)
from jaxmem.versions.values import Values, num_bytes, results, variables

# The name scope of the equation between the halves.
_BOUNDARY = "between_shard_maps"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joined:
  """Two `shard_map` equations of a flat jaxpr.

  Attributes:
    forward: The forward one's equation.
    backward: The backward one's.
    eqns: The two.
    body: Both bodies, one after the other. Between them is a barrier, whose
      result is the last one of the body.
    operands: What the inputs of the body are given.
    kept: Which results of the forward one others read, too: they are the first
      results of the body; those of the backward one follow.
  """

  forward: int
  backward: int
  eqns: tuple[core.JaxprEqn, core.JaxprEqn]
  body: core.Jaxpr
  operands: Mapping[core.Var, Operand]
  kept: tuple[int, ...]

  def apart(self, body: core.Jaxpr) -> tuple[core.JaxprEqn, core.JaxprEqn]:
    """Returns the two equations of another version of the body.

    Args:
      body: With the inputs and results of `body`.
    """
    first, second = _halves(body)
    forward, backward = self.eqns
    number = len(self.kept)
    specs = forward.params["out_specs"]
    parts = [
      Part(
        like=forward,
        eqns=[internals.within_scopes(eqn, forward) for eqn in first],
        outvars=body.outvars[:number],
        results=[(forward.outvars[k], specs[k]) for k in self.kept],
      ),
      Part(
        like=backward,
        eqns=[internals.within_scopes(eqn, backward) for eqn in second],
        outvars=body.outvars[number:-1],
        results=[
          *zip(backward.outvars, backward.params["out_specs"], strict=True)
        ],
      ),
    ]
    forward, backward = equations(body, self.operands, parts)
    return forward, backward


def find_joined(jaxpr: core.Jaxpr) -> Iterator[Joined]:
  """Yields pairs of `shard_map` equations, none of which is in two of them.

  Those of which the second reads most of the first are taken before others.

  Args:
    jaxpr: A flat jaxpr.
  """
  values = Values(jaxpr)
  found = []
  for number, eqn in enumerate(jaxpr.eqns):
    if not is_understood(eqn):
      continue
    read: dict[int, int] = {}
    for var in results(eqn):
      for reader in values.readers.get(var, ()):
        read[reader] = read.get(reader, 0) + num_bytes(var)
    found += [
      (count, number, reader)
      for reader, count in read.items()
      if reader < len(jaxpr.eqns) and _fit(eqn, jaxpr.eqns[reader])
    ]
  taken: set[int] = set()
  for _, forward, backward in sorted(found, key=lambda f: (-f[0], *f[1:])):
    if taken.isdisjoint((forward, backward)):
      taken |= {forward, backward}
      joined = _join(values, forward, backward)
      if joined is not None:
        yield joined


def _fit(forward: core.JaxprEqn, backward: core.JaxprEqn) -> bool:
  """Whether the second may be joined to the first."""
  names = ("mesh", "newly_manual_axes", "check_vma")
  return is_understood(backward) and all(
    forward.params[name] == backward.params[name] for name in names
  )


def _join(values: Values, number: int, partner: int) -> Joined | None:
  """Joins two equations, unless all that the second is given is the first's."""
  forward, backward = values.eqns[number], values.eqns[partner]
  inliner = Inliner(CUSTOM_DERIVATIVES)
  # What an operand of either is called in the body.
  named = {o: core.Var(v.aval) for o, v in given(forward)}
  operands = [named[operand] for operand, _ in given(forward)]
  num_forward = len(named)
  # Scopes say what belongs to a backward pass.
  scopes = [internals.name_stack(eqn) for eqn in (forward, backward)]
  made = inliner.inline(forward.params["jaxpr"], operands, scopes[0])
  linked: dict[Operand, Atom] = {}
  outvars, specs = forward.outvars, forward.params["out_specs"]
  for outer, spec, atom in zip(outvars, specs, made, strict=True):
    if isinstance(atom, core.Var) and not isinstance(outer, core.DropVar):
      linked[Operand(atom=outer, spec=spec)] = atom
  passed: list[Atom] = []
  links: set[core.Var] = set()
  for operand, var in given(backward):
    atom = linked.get(operand, named.get(operand))
    if isinstance(atom, core.Var) and atom.aval == var.aval:
      links.update(variables([operand.atom]))
      passed.append(atom)
    else:
      named[operand] = core.Var(var.aval)
      passed.append(named[operand])
  new = [*named.values()][num_forward:]
  if not new:
    return None
  # It reads nothing that the forward pass makes: that is read directly.
  barrier = internals.barrier(forward, new[:1])
  inliner.eqns.append(
    internals.with_name_stack(
      barrier, internals.empty_name_stack().extend(_BOUNDARY)
    )
  )
  returned = inliner.inline(backward.params["jaxpr"], passed, scopes[1])
  kept = tuple(
    k
    for k, v in enumerate(outvars)
    if not isinstance(v, core.DropVar)
    and (v not in links or values.readers[v] != [partner])
  )
  return Joined(
    forward=number,
    backward=partner,
    eqns=(forward, backward),
    body=inliner.finish(
      forward.params["jaxpr"],
      [*named.values()],
      [*(made[k] for k in kept), *returned, *barrier.outvars],
    ),
    operands={var: operand for operand, var in named.items()},
    kept=kept,
  )


def _halves(
  body: core.Jaxpr,
) -> tuple[list[core.JaxprEqn], list[core.JaxprEqn]]:
  """Returns what comes before and after the barrier of `Joined.body`."""
  (at,) = (
    number
    for number, eqn in enumerate(body.eqns)
    if eqn.primitive is internals.barrier_primitive()
    and _BOUNDARY in str(internals.name_stack(eqn))
  )
  return [*body.eqns[:at]], [*body.eqns[at + 1 :]]
