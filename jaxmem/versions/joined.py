"""A forward and a backward `shard_map`, looked at as if they were one.

Autodiff turns a `shard_map` into two: the forward pass of its body is in the
first, the backward pass in the second, and residuals are results of one and
operands of the other. Joined to one flat jaxpr, loops find their partners, and
blocks their backward pass, as anywhere else; taken apart again, each half has
the operands and results that it needs then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.sharding import PartitionSpec

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Atom, Inliner, internals
from jaxmem.versions.values import Values, num_bytes, results, variables

# The name scope of the equation between the halves.
_BOUNDARY = "between_shard_maps"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operand:
  """What a `shard_map` is given.

  Attributes:
    atom: The value outside.
    spec: How it is spread over the devices.
  """

  atom: Atom
  spec: Any


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
    num_forward: How many of these inputs are the forward one's.
    kept: Which results of the forward one others read, too: they are the first
      results of the body; those of the backward one follow.
  """

  forward: int
  backward: int
  eqns: tuple[core.JaxprEqn, core.JaxprEqn]
  body: core.Jaxpr
  operands: Mapping[core.Var, Operand]
  num_forward: int
  kept: tuple[int, ...]

  def apart(self, body: core.Jaxpr) -> tuple[core.JaxprEqn, core.JaxprEqn]:
    """Returns the two equations of another version of the body.

    Args:
      body: With the inputs and results of `body`.
    """
    first, second = _halves(body)
    forward, backward = self.eqns
    kept = body.outvars[: len(self.kept)]
    returned = [*body.outvars[len(self.kept) : -1]]
    # Unchecked, a result may say less than what each device has of it.
    whole = {*variables(kept)} if forward.params["check_vma"] else set()
    made = {v for eqn in first for v in results(eqn)}
    read = variables([a for e in second for a in e.invars] + returned)
    crossing = [v for v in read if v in made and v not in whole]
    given = body.invars[: self.num_forward]
    forward = _shard_map(
      forward,
      body.replace(
        eqns=[internals.within_scopes(eqn, forward) for eqn in first],
        invars=[*given],
        outvars=[*kept, *crossing],
      ),
      [self.operands[v] for v in given],
      [forward.params["out_specs"][k] for k in self.kept]
      + [internals.residual_spec(forward, v) for v in crossing],
      [forward.outvars[k] for k in self.kept],
    )
    of_forward = {
      v: Operand(atom=outer, spec=spec)
      for v, outer, spec in zip(
        (*kept, *crossing),
        forward.outvars,
        forward.params["out_specs"],
        strict=True,
      )
      if isinstance(v, core.Var) and (v in whole or v in crossing)
    }
    operands = {**self.operands, **of_forward}
    needed = [v for v in read if v in operands]
    backward = _shard_map(
      backward,
      body.replace(
        eqns=[internals.within_scopes(eqn, backward) for eqn in second],
        invars=needed,
        outvars=returned,
      ),
      [operands[v] for v in needed],
      backward.params["out_specs"],
      backward.outvars,
    )
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
    if not _may_be_joined(eqn):
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


def _may_be_joined(eqn: core.JaxprEqn) -> bool:
  """Whether an equation is a `shard_map` that is understood."""
  if eqn.primitive.name != "shard_map" or eqn.effects:
    return False
  specs = (*eqn.params["in_specs"], *eqn.params["out_specs"])
  return not any(spec.unreduced or spec.reduced for spec in specs)


def _fit(forward: core.JaxprEqn, backward: core.JaxprEqn) -> bool:
  """Whether the second may be joined to the first."""
  names = ("mesh", "newly_manual_axes", "check_vma")
  return _may_be_joined(backward) and all(
    forward.params[name] == backward.params[name] for name in names
  )


def _join(values: Values, number: int, partner: int) -> Joined | None:
  """Joins two equations, unless all that the second is given is the first's."""
  forward, backward = values.eqns[number], values.eqns[partner]
  inliner = Inliner(CUSTOM_DERIVATIVES)
  # What an operand of either is called in the body.
  given = {o: core.Var(v.aval) for o, v in _given(forward)}
  operands = [given[operand] for operand, _ in _given(forward)]
  num_forward = len(given)
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
  for operand, var in _given(backward):
    atom = linked.get(operand, given.get(operand))
    if isinstance(atom, core.Var) and atom.aval == var.aval:
      links.update(variables([operand.atom]))
      passed.append(atom)
    else:
      given[operand] = core.Var(var.aval)
      passed.append(given[operand])
  new = [*given.values()][num_forward:]
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
      [*given.values()],
      [*(made[k] for k in kept), *returned, *barrier.outvars],
    ),
    operands={var: operand for operand, var in given.items()},
    num_forward=num_forward,
    kept=kept,
  )


def _given(eqn: core.JaxprEqn) -> Iterator[tuple[Operand, core.Var]]:
  """Yields what a `shard_map` is given, and what its body calls that."""
  specs, inner = eqn.params["in_specs"], eqn.params["jaxpr"].invars
  for atom, spec, var in zip(eqn.invars, specs, inner, strict=True):
    yield Operand(atom=atom, spec=spec), var


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


def _shard_map(
  eqn: core.JaxprEqn,
  body: core.Jaxpr,
  operands: Sequence[Operand],
  out_specs: Sequence[Any],
  outvars: Sequence[core.Var],
) -> core.JaxprEqn:
  """Returns a `shard_map` with another body, as jax itself traces it.

  Scalars have one dimension outside where they are spread: as in jax.

  Args:
    eqn: The one that it replaces.
    body: Its new body.
    operands: What it is given.
    out_specs: How its results are spread.
    outvars: Its first results; further ones get variables of their own.
  """
  run_body = core.jaxpr_as_fun(body)

  def run(*arrays: Any) -> list[Any]:
    shapes = [getattr(v.aval, "shape", ()) for v in body.invars]
    found = run_body(*map(jax.numpy.reshape, arrays, shapes))
    return [
      x[None] if spec != PartitionSpec() and not x.shape else x
      for x, spec in zip(found, out_specs, strict=True)
    ]

  mapped = jax.shard_map(
    run,
    mesh=eqn.params["mesh"],
    in_specs=tuple(operand.spec for operand in operands),
    out_specs=[*out_specs],
    check_vma=eqn.params["check_vma"],
    axis_names=eqn.params["newly_manual_axes"],
  )
  avals: list[Any] = [operand.atom.aval for operand in operands]
  (traced,) = jax.make_jaxpr(mapped)(*map(internals.shape_of, avals)).eqns
  more = [core.Var(v.aval) for v in traced.outvars[len(outvars) :]]
  return eqn.replace(
    params=traced.params,
    invars=[operand.atom for operand in operands],
    outvars=[*outvars, *more],
  )
