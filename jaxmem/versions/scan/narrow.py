"""Stacks of values that a loop converted to more bits just before.

Gradients of weights in float32 come out of products in bfloat16, and the loop
stacks what they are converted to. Stacked as they were computed they take half
the memory; what reads the stack converts it, and XLA fuses the two. The values
are the same, but where XLA would have left out that they were rounded.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax.extend import core

from jaxmem.jaxpr import (
  CUSTOM_DERIVATIVES,
  flatten,
  internals,
  is_elementwise,
  memory,
)
from jaxmem.versions.values import Values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Narrowed:
  """A step whose loops stack values with the bits they were computed with.

  Attributes:
    closed_jaxpr: The step; the one that was given if there are no such loops.
    num_stacks: How many stacks take fewer bytes.
  """

  closed_jaxpr: core.Jaxpr
  num_stacks: int


def narrow_stacks(closed_jaxpr: core.Jaxpr) -> Narrowed:
  """Lets what reads a stack convert it, instead of the loop that stacks.

  Only where all that reads it works element by element.

  Args:
    closed_jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...)`.
  """
  flat = flatten(closed_jaxpr, keep=CUSTOM_DERIVATIVES)
  values = Values(flat)
  eqns: list[core.JaxprEqn] = []
  num_stacks = 0
  for eqn in flat.eqns:
    conversions = {}
    if eqn.primitive.name == "scan":
      conversions = _conversions(values, eqn)
    eqns += _narrowed(eqn, conversions) if conversions else [eqn]
    num_stacks += len(conversions)
  if not num_stacks:
    return Narrowed(closed_jaxpr=closed_jaxpr, num_stacks=0)
  changed = flat.replace(eqns=eqns)
  return Narrowed(closed_jaxpr=changed, num_stacks=num_stacks)


def _conversions(
  values: Values, eqn: core.JaxprEqn
) -> dict[int, core.JaxprEqn]:
  """Returns what a loop converts before it stacks it, by its results."""
  _, num_carry = internals.scan_counts(eqn)
  body = eqn.params["jaxpr"]
  definers = {v: e for e in body.eqns for v in e.outvars}
  found = {}
  for position, stack in enumerate(eqn.outvars):
    definition = definers.get(body.outvars[position])
    if (
      position >= num_carry
      and definition is not None
      and _widens(definition)
      and _is_read_elementwise(values, stack)
    ):
      found[position] = definition
  return found


def _is_read_elementwise(values: Values, stack: core.Var) -> bool:
  readers = values.readers.get(stack, ())
  return bool(readers) and all(
    number < len(values.eqns) and is_elementwise(values.eqns[number])
    for number in readers
  )


def _widens(eqn: core.JaxprEqn) -> bool:
  """Whether an equation converts floating point numbers to more bits."""
  if eqn.primitive.name != "convert_element_type":
    return False
  given, result = eqn.invars[0].aval, eqn.outvars[0].aval
  are_floating = all(
    jnp.issubdtype(internals.shape_of(aval).dtype, jnp.floating)
    for aval in (given, result)
  )
  return are_floating and memory.itemsize(given) < memory.itemsize(result)


def _narrowed(
  eqn: core.JaxprEqn, conversions: dict[int, core.JaxprEqn]
) -> list[core.JaxprEqn]:
  """Returns a loop that does not convert these results, and what does."""
  num_consts, num_carry = internals.scan_counts(eqn)
  body, results = eqn.params["jaxpr"], eqn.outvars
  outvars = [*body.outvars]
  for position, definition in conversions.items():
    outvars[position] = definition.invars[0]
  loop = internals.with_scan_body(
    eqn,
    flatten(body.replace(outvars=outvars), keep=CUSTOM_DERIVATIVES),
    eqn.invars,
    results[:num_carry],
    num_consts,
    num_carry,
  )
  stacks = [
    new if position in conversions else old
    for position, (old, new) in enumerate(
      zip(results, loop.outvars, strict=True)
    )
  ]
  return [
    loop.replace(outvars=stacks),
    *(
      internals.within_scopes(definition, eqn).replace(
        invars=[stacks[position]], outvars=[results[position]]
      )
      for position, definition in conversions.items()
    ),
  ]
