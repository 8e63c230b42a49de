"""What the values of a jaxpr weigh, and which lie where others do."""

import math
from typing import Any

from jax.extend import core

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


def shape(aval: Any) -> tuple[int, ...]:
  """Returns the dimensions of an array; none of what is no array."""
  return getattr(aval, "shape", ())


def num_elements(aval: Any) -> int:
  """Returns how many elements an array has."""
  return math.prod(shape(aval))


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
