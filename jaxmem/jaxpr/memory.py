"""What the values of a jaxpr weigh, and which of them may share memory."""

import math
from typing import Any

from jax.extend import core

from jaxmem.jaxpr import internals

# Results of these are their operands, whoever runs them.
IDENTITIES = frozenset({"name", "optimization_barrier"})
# XLA gives the result another shape or type where it lies.
_VIEWS = IDENTITIES | frozenset(
  {
    "bitcast_convert_type",
    "broadcast_in_dim",
    "expand_dims",
    "pvary",
    "random_unwrap",
    "random_wrap",
    "reshape",
    "squeeze",
  }
)
# Element i of the result depends on element i of the operands only.
_ELEMENTWISE = frozenset(
  """
  abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp
  conj convert_element_type copy cos cosh digamma div eq erf erf_inv erfc exp
  exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p logistic lt
  max min mul ne neg nextafter not or population_count pow reduce_precision rem
  round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical
  sign sin sinh sqrt square sub tan tanh xor
  """.split()
)
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


def size_bytes(aval: Any) -> int:
  """Returns the bytes of a value; 0 for a token.

  Elements take whole bytes, also those of 4-bit types. A PRNG key takes what
  its words take, a mutable array what its contents take.

  Raises:
    ValueError: If the size is not known: the dimensions are symbolic, or the
      value is no array.
  """
  if isinstance(aval, core.AbstractToken):
    return 0
  aval = getattr(aval, "inner_aval", aval)
  shape = getattr(aval, "shape", None)
  itemsize = getattr(getattr(aval, "dtype", None), "itemsize", None)
  if shape is None or itemsize is None:
    raise ValueError(
      f"An array was expected, got a value of type {aval}, whose size is not"
      " known. Keep it out of the function that is planned."
    )
  if not all(isinstance(dimension, int) for dimension in shape):
    raise ValueError(
      f"Dimensions must be integers, got {aval}. Trace with concrete shapes."
    )
  return math.prod(shape) * itemsize


def itemsize(aval: Any) -> int:
  """Returns the bytes of one element of an array."""
  return aval.dtype.itemsize


def renamed(eqn: core.JaxprEqn, *, views: bool) -> bool:
  """Whether each result of an equation lies where its operand lies.

  Args:
    eqn: An equation of a flat jaxpr.
    views: Whether changes of shape and type count, as they do in XLA.
  """
  name = eqn.primitive.name
  if name not in (_VIEWS if views else IDENTITIES):
    return False
  if name == "reshape" and eqn.params.get("dimensions") is not None:
    return False
  return len(eqn.invars) >= len(eqn.outvars) and all(
    size_bytes(operand.aval) == size_bytes(result.aval)
    for operand, result in zip(eqn.invars, eqn.outvars, strict=False)
  )


def is_elementwise(eqn: core.JaxprEqn) -> bool:
  """Whether element i of the result depends on element i of the operands."""
  return eqn.primitive.name in _ELEMENTWISE


def in_place(eqn: core.JaxprEqn) -> list[tuple[int, int]]:
  """Returns which operand each result may be written over.

  Of primitives that are not known here, none.

  Returns:
    Pairs of positions, operand and result, of equal size in bytes.
  """
  return [
    (operand, result)
    for operand, result in _candidates(eqn)
    if size_bytes(eqn.invars[operand].aval)
    == size_bytes(eqn.outvars[result].aval)
  ]


def _candidates(eqn: core.JaxprEqn) -> list[tuple[int, int]]:
  name = eqn.primitive.name
  if name in _ELEMENTWISE:
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
