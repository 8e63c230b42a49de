"""Which equations compute each element of the result on its own."""

from jax.extend import core

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


def is_elementwise(eqn: core.JaxprEqn) -> bool:
  """Whether element i of the result depends on element i of the operands."""
  return eqn.primitive.name in _ELEMENTWISE
