"""What `shard_map` runs, as several of them.

A `shard_map` is one equation: its results are made again all or none. Cut into
pieces, each product and collective and what lies between two of them is one of
its own, so that some are made again, and others stay.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import PartitionSpec

from jaxmem.jaxpr import CUSTOM_DERIVATIVES, Atom, flatten, internals
from jaxmem.versions.equation_cost import is_heavy_eqn
from jaxmem.versions.values import results, variables


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
class Part:
  """What one `shard_map` of several is to run.

  Attributes:
    like: An equation of the same mesh, whose scopes and context it gets.
    eqns: What it runs.
    outvars: What it returns besides what later parts read.
    results: What these are called outside, and how they are spread.
  """

  like: core.JaxprEqn
  eqns: Sequence[core.JaxprEqn]
  outvars: Sequence[Atom]
  results: Sequence[tuple[core.Var, Any]]


def is_understood(eqn: core.JaxprEqn) -> bool:
  """Whether an equation is a `shard_map` that may be taken apart."""
  if eqn.primitive.name != "shard_map" or eqn.effects:
    return False
  specs = (*eqn.params["in_specs"], *eqn.params["out_specs"])
  return not any(spec.unreduced or spec.reduced for spec in specs)


def given(eqn: core.JaxprEqn) -> Iterator[tuple[Operand, core.Var]]:
  """Yields what a `shard_map` is given, and what its body calls that."""
  specs, inner = eqn.params["in_specs"], eqn.params["jaxpr"].invars
  for atom, spec, var in zip(eqn.invars, specs, inner, strict=True):
    yield Operand(atom=atom, spec=spec), var


def equations(
  body: core.Jaxpr, operands: Mapping[core.Var, Operand], parts: Sequence[Part]
) -> list[core.JaxprEqn]:
  """Returns a `shard_map` for each part of a body, as jax itself traces it.

  What one part makes and a later one reads is a result of the first, spread as
  jax spreads residuals.

  Args:
    body: Of which the equations are.
    operands: What its inputs are given.
    parts: In the order in which they run.
  """
  known = dict(operands)
  last = {v: n for n, part in enumerate(parts) for v in _read(part)}
  made: list[core.JaxprEqn] = []
  for number, part in enumerate(parts):
    # Unchecked, a result may say less than what each device has of it.
    is_checked = part.like.params["check_vma"]
    whole = {*variables(part.outvars)} if is_checked else set()
    own = [v for eqn in part.eqns for v in results(eqn)]
    crossing = [v for v in own if last.get(v, -1) > number and v not in whole]
    handed_on = whole.union(crossing)
    outvars = [*part.outvars, *crossing]
    needed = [v for v in _read(part) if v in known]
    specs = [spec for _, spec in part.results]
    eqn = _shard_map(
      part.like,
      body.replace(eqns=[*part.eqns], invars=needed, outvars=outvars),
      [known[v] for v in needed],
      [*specs, *(internals.residual_spec(part.like, v) for v in crossing)],
      [var for var, _ in part.results],
    )
    made.append(eqn)
    out_specs = eqn.params["out_specs"]
    for var, outer, spec in zip(outvars, eqn.outvars, out_specs, strict=True):
      if isinstance(var, core.Var) and var in handed_on:
        known[var] = Operand(atom=outer, spec=spec)
  return made


def _read(part: Part) -> list[core.Var]:
  """Returns what a part reads or returns, each once."""
  return variables([*(a for e in part.eqns for a in e.invars), *part.outvars])


def in_pieces(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """Returns an equal jaxpr whose forward `shard_map`s are cut into pieces.

  Args:
    jaxpr: A flat jaxpr, not within a `shard_map` itself; it is returned where
      there is nothing to cut.
  """
  eqns: list[core.JaxprEqn] = []
  for eqn in jaxpr.eqns:
    is_forward = is_understood(eqn) and not internals.is_transposed(eqn)
    eqns += _pieces(eqn) if is_forward else [eqn]
  return jaxpr.replace(eqns=eqns) if len(eqns) > len(jaxpr.eqns) else jaxpr


def _pieces(eqn: core.JaxprEqn) -> list[core.JaxprEqn]:
  """Returns a `shard_map` for each heavy equation and each stretch between."""
  body = flatten(eqn.params["jaxpr"], keep=CUSTOM_DERIVATIVES)
  stretches = [
    stretch
    for is_heavy, group in itertools.groupby(body.eqns, is_heavy_eqn)
    for stretch in ([[e] for e in group] if is_heavy else [[*group]])
  ]
  avals: list[Any] = [v.aval for e in body.eqns for v in e.outvars]
  # Types of keys of random numbers have none.
  is_plain = all(isinstance(aval.dtype, np.dtype) for aval in avals)
  if len(stretches) < 2 or not is_plain:
    return [eqn]
  makers = {
    v: number
    for number, stretch in enumerate(stretches)
    for e in stretch
    for v in results(e)
  }
  last = len(stretches) - 1
  returned: list[list[tuple[Atom, core.Var, Any]]] = [[] for _ in stretches]
  outer = zip(eqn.outvars, eqn.params["out_specs"], strict=True)
  for atom, (var, spec) in zip(body.outvars, outer, strict=True):
    number = makers.get(atom, last) if isinstance(atom, core.Var) else last
    returned[number].append((atom, var, spec))
  parts = [
    Part(
      like=eqn,
      eqns=stretch,
      outvars=[atom for atom, _, _ in each],
      results=[(var, spec) for _, var, spec in each],
    )
    for stretch, each in zip(stretches, returned, strict=True)
  ]
  names = zip(given(eqn), body.invars, strict=True)
  operands = {var: operand for (operand, _), var in names}
  return equations(body, operands, parts)


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
