"""Operands of products, each written to memory before the products read it.

XLA:CPU hands operands to a product in one order only, and copies those that lie
in another: for the gradient of a weight, both. It computes what is elementwise
within such a copy, once for each product that reads it and against the order in
which its own operands lie, so that each element comes from another cache line,
which has left the cache before its neighbour is read. Behind an optimization
barrier a value is computed once, in the order in which it lies, and the copies
only copy. It takes no more memory, as one of the copies is mostly the value as
it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend import core

from jaxmem.jaxpr import (
  CUSTOM_DERIVATIVES,
  flatten,
  internals,
  is_elementwise,
)
from jaxmem.versions.bodies import bodies, with_body
from jaxmem.versions.values import (
  VIEWS,
  Values,
  num_bytes,
  reading,
  results,
  walk,
)

# What is smaller stays in the cache that is nearest.
_LEAST_BYTES = 16 * 1024
_PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})
# A product reads what is broadcast as if it had been written out.
_PASSED_ON = VIEWS | {"broadcast_in_dim", "copy"}


def materialized(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """Returns a step whose products read what was written to memory before.

  What the backward pass reads of values of the forward pass is as it was: there
  XLA may make them again in place of keeping them.

  Args:
    jaxpr: From `jax.make_jaxpr(fun)(...)` or `jax.jit(fun).trace(...).jaxpr`.
  """
  return _materialized(jaxpr, False)


def _materialized(jaxpr: core.Jaxpr, is_backward: bool) -> core.Jaxpr:
  """Returns a jaxpr with the barriers, within what its equations run as well.

  Args:
    jaxpr: The jaxpr.
    is_backward: Whether a backward pass runs it.
  """
  flat = flatten(jaxpr, keep=CUSTOM_DERIVATIVES)
  values = Values(flat)
  passes = [is_backward or internals.is_transposed(e) for e in flat.eqns]
  # Of the forward and of the backward pass, what each reads in place of values.
  written: tuple[dict[core.Var, core.Var], ...] = ({}, {})
  eqns: list[core.JaxprEqn] = []
  for number, eqn in enumerate(flat.eqns):
    of_pass = passes[number]
    eqn = reading(eqn, written[of_pass])
    for place, body in enumerate(bodies(eqn)):
      eqn = with_body(eqn, place, _materialized(body, of_pass))
    eqns.append(eqn)
    for var in _operands_made(eqn):
      if any(passes[r] == of_pass for r in _products(values, var)):
        eqns.append(internals.barrier(eqn, [var]))
        (written[of_pass][var],) = eqns[-1].outvars
  return flat.replace(eqns=eqns)


def _operands_made(eqn: core.JaxprEqn) -> list[core.Var]:
  """Returns what an equation computes that may be worth writing to memory."""
  if not is_elementwise(eqn) or eqn.primitive.name in _PASSED_ON:
    return []
  return [var for var in results(eqn) if num_bytes(var) >= _LEAST_BYTES]


def _products(values: Values, var: core.Var) -> Iterator[int]:
  """Yields the products that read a value, or another order of it."""

  def readers(var: core.Var, names: frozenset[str]) -> list[int]:
    """Returns the equations with these names that read a value."""
    return [
      reader
      for reader in values.readers.get(var, ())
      if reader < len(values.eqns)
      and values.eqns[reader].primitive.name in names
    ]

  def passed_on(var: core.Var) -> Iterator[core.Var]:
    for reader in readers(var, _PASSED_ON):
      yield from results(values.eqns[reader])

  for same in walk([var], passed_on):
    yield from readers(same, _PRODUCTS)
