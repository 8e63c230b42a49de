"""What keeps the bits of residuals that the backward loop makes anew.

To keep the bits, a recomputed residual passes an optimization barrier before it
is read, as it was written to memory before. Otherwise XLA would fuse it with
its readers and simplify across the two (the product of two exponentials becomes
the exponential of a sum), and the last bits of the gradients would not be those
of the original step. What is between recomputed values is fused and simplified
as it was in the forward loop, but for what the backward pass broadcasts, too.
A product, in float32 or more, of values that are exact themselves, and of as
many elements, passes without a barrier: the backward pass multiplies it once
more, and it need not be written to memory for that. What is broadcast XLA takes
out of sums and products again.

It is no guarantee: where a product is added to something, XLA rounds once or
twice, which depends on what it fuses.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jax.extend import core

from jaxmem.jaxpr import Atom, internals, is_elementwise, memory
from jaxmem.versions.values import Values, operands, reading, results

# What XLA looks through when it simplifies.
_SEEN_THROUGH = frozenset(
  """
  copy name neg reshape squeeze stop_gradient transpose
  """.split()
)
_PRODUCTS = frozenset({"mul", "square"})
# XLA computes narrower types in float32, and may leave the rounding out.
_EXACT_ITEMSIZE = 4


def guarded(
  body: Values,
  again: Iterable[int],
  wanted: Collection[core.Var],
  exact: Collection[core.Var],
) -> list[list[core.Var]]:
  """Returns values that pass barriers, those that are alike together.

  They were stacks of their own. Of two barriers XLA would make one, and of what
  reads them, too.

  Args:
    body: The forward body.
    again: Its equations that run again, in program order.
    wanted: What the backward loop reads of that.
    exact: Values that need no barrier.
  """
  there = {*exact}
  number: dict[Atom, Atom] = {}
  first: dict[Any, core.Var] = {}
  groups: dict[Atom, list[core.Var]] = {}
  for eqn in (body.eqns[index] for index in again):
    read = tuple(
      number.get(v, v) if isinstance(v, core.Var) else repr(v)
      for v in eqn.invars
    )
    # What is within a loop or a call is not compared.
    bodies = [*core.jaxprs_in_params(eqn.params)]
    params = id(eqn) if bodies else repr(eqn.params)
    for place, var in enumerate(eqn.outvars):
      key = eqn.primitive, place, read, params
      number[var] = first.setdefault(key, var)
      is_guarded = var in wanted and var not in there
      if is_guarded and not _is_plain_product(body, var, there):
        groups.setdefault(number[var], []).append(var)
        there.add(var)
  return [*groups.values()]


def broadcast_apart(
  eqns: Sequence[core.JaxprEqn], known: Collection[core.Var]
) -> list[core.JaxprEqn]:
  """Returns equations that read what they broadcast through barriers.

  The backward pass may broadcast it, too, and sum products with it. XLA would
  broadcast once for both, and sum otherwise what it has broadcast in memory.

  Args:
    eqns: Equations that run again.
    known: What they read and do not make.
  """
  own: dict[core.Var, core.Var] = {}
  barriers = []
  for var in known:
    reader = next((eqn for eqn in eqns if var in operands(eqn)), None)
    if reader is not None and _is_broadcast(eqns, var):
      barriers.append(internals.barrier(reader, [var]))
      own[var] = barriers[-1].outvars[0]
  return [*barriers, *(reading(eqn, own) for eqn in eqns)]


def _is_broadcast(eqns: Sequence[core.JaxprEqn], var: core.Var) -> bool:
  """Whether equations make more elements of a value element by element."""
  views = {var}
  for eqn in eqns:
    if views.isdisjoint(operands(eqn)):
      continue
    is_spread = is_elementwise(eqn) or eqn.primitive.name == "broadcast_in_dim"
    made = [memory.num_elements(v.aval) for v in results(eqn)]
    if is_spread and max(made, default=0) > memory.num_elements(var.aval):
      return True
    if eqn.primitive.name in _SEEN_THROUGH:
      views.update(results(eqn))
  return False


def _is_plain_product(
  body: Values, var: core.Var, exact: Collection[core.Var]
) -> bool:
  """Whether one multiplication alone makes it from exact values of its size."""
  eqn, var = _origin(body, var, ())
  if eqn is None or eqn.primitive.name not in _PRODUCTS:
    return False
  if memory.itemsize(var.aval) < _EXACT_ITEMSIZE:
    return False
  num_elements = memory.num_elements(var.aval)
  factors = [
    _origin(body, factor, exact)[1]
    for factor in eqn.invars
    if isinstance(factor, core.Var)
    and memory.num_elements(factor.aval) == num_elements
  ]
  return len(factors) == len(eqn.invars) and all(v in exact for v in factors)


def _origin(
  body: Values, var: core.Var, exact: Collection[core.Var]
) -> tuple[core.JaxprEqn | None, core.Var]:
  """Returns what a variable is another shape of, and what defines that."""
  while var in body.definers and var not in exact:
    eqn = body.eqns[body.definers[var]]
    operand = eqn.invars[0] if eqn.invars else None
    is_view = eqn.primitive.name in _SEEN_THROUGH
    if not is_view or not isinstance(operand, core.Var):
      return eqn, var
    var = operand
  return None, var
