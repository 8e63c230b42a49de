"""Which operand of an equation each of its results may be written over."""

from jax.extend import core

from jaxmem.jaxpr import internals, is_elementwise, memory

# XLA updates the first operand in place.
_UPDATES = frozenset(
  {
    "dynamic_update_slice",
    "scatter",
    "scatter-add",
    "scatter-max",
    "scatter-min",
    "scatter-mul",
    "scatter-sub",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_sub",
  }
)


def in_place(eqn: core.JaxprEqn) -> list[tuple[int, int]]:
  """Returns which operand each result may be written over.

  Of primitives that are not known here, none.

  Returns:
    Pairs of positions, operand and result, of equal size in bytes.
  """
  return [
    (operand, result)
    for operand, result in _candidates(eqn)
    if memory.size_bytes(eqn.invars[operand].aval)
    == memory.size_bytes(eqn.outvars[result].aval)
  ]


def _candidates(eqn: core.JaxprEqn) -> list[tuple[int, int]]:
  name = eqn.primitive.name
  if is_elementwise(eqn):
    # Smaller operands are broadcast; their sizes tell them apart.
    return [(position, 0) for position in range(len(eqn.invars))]
  if name in _UPDATES:
    return [(0, 0)]
  if name == "sort":
    return [(position, position) for position in range(len(eqn.outvars))]
  if name == "scan":
    num_consts, num_carry = internals.scan_counts(eqn)
    return [(num_consts + carry, carry) for carry in range(num_carry)]
  if name == "while":
    num_consts = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
    return [(num_consts + carry, carry) for carry in range(len(eqn.outvars))]
  return []
