"""Seconds that equations take, estimated before a compiler has seen them.

What is recomputed in a loop's body is fused with what reads it there. So an
elementwise equation counts for its arithmetic, without a kernel of its own, and
for writing its result once if it has to be a buffer; products, reductions and
the like read their operands as well, and start a kernel. `jaxmem.cost` does
this for compiled modules.
"""

import math
from collections.abc import Iterable

from jax.extend import core

from jaxmem.cost import FACTORIZATIONS, Precision, Rates, factorization_flops
from jaxmem.jaxpr import CUSTOM_DERIVATIVES, memory
from jaxmem.versions.bodies import num_runs, num_shards

_ELEMENT_REDUCTIONS = frozenset(
  "reduce reduce_and reduce_max reduce_min reduce_or reduce_prod"
  " reduce_sum".split()
)
# XLA makes each of these a kernel, which reads all of its operands.
_KERNELS_OF_THEIR_OWN = (
  FACTORIZATIONS
  | _ELEMENT_REDUCTIONS
  | frozenset(
    """
    approx_top_k argmax argmin cumlogsumexp cummax cummin cumprod cumsum fft
    reduce_window reduce_window_max reduce_window_sum scatter scatter-add
    scatter_add select_and_scatter_add sort top_k tridiagonal_solve
    """.split()
  )
)
# Threefry makes each random word in 20 rounds of about five operations.
_THREEFRY_FLOPS = 100
TRANSCENDENTAL = frozenset(
  """
  acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc
  exp exp2 expm1 lgamma log log1p logistic pow rsqrt sin sinh sqrt tan tanh
  """.split()
)
COLLECTIVES = frozenset(
  """
  all_gather all_gather_invariant all_gather_reduced all_to_all pgather pmax
  pmin ppermute psum psum2 psum_invariant psum_scatter ragged_all_to_all
  reduce_scatter unreduced_psum
  """.split()
)
# The other collectives count as gathers of what is larger, operand or result.
_REDUCTIONS = frozenset("pmax pmin psum psum2 psum_invariant".split())
# Kernels of their own besides products; results of these are worth keeping.
_HEAVY = FACTORIZATIONS | frozenset(
  """
  approx_top_k cond cumlogsumexp cummax cummin cumprod cumsum fft random_bits
  scan sort threefry2x32 top_k tridiagonal_solve
  """.split()
)
_RANDOM = frozenset({"random_bits", "threefry2x32", "rng_bit_generator"})


def equation_seconds(
  eqn: core.JaxprEqn, rates: Rates, *, is_fused: bool = False
) -> float:
  """Returns the estimated time of one equation, its callees included.

  A branch counts as its most expensive side. A `while`, whose length is not
  known, counts as one round. A `shard_map` counts for all of its devices, as
  operations do that XLA divides. `is_fused` says whether results of elementwise
  equations are never written.
  """
  bodies = [
    jaxpr_seconds(body, rates, is_fused=is_fused)
    for body in core.jaxprs_in_params(eqn.params)
  ]
  name = eqn.primitive.name
  if name == "cond":
    return max(bodies)
  if bodies and name not in _KERNELS_OF_THEIR_OWN:
    return num_runs(eqn) * num_shards(eqn) * sum(bodies)
  if memory.renamed(eqn, views=True):
    return 0.0
  written = sum(memory.size_bytes(v.aval) for v in eqn.outvars)
  read = sum(memory.size_bytes(v.aval) for v in eqn.invars)
  if name in COLLECTIVES and rates.links is not None:
    kind = "all-reduce" if name in _REDUCTIONS else "all-gather"
    return rates.links.seconds(kind, max(read, written), ())
  products = product_flops(eqn)
  if products:
    precision = _precision(eqn, rates)
    touched = read + written
    return rates.seconds(
      {precision: products}, 0.0, touched, packed_bytes=touched
    )
  scalar = scalar_flops(eqn, rates)
  if name in _KERNELS_OF_THEIR_OWN or name in COLLECTIVES:
    return rates.seconds({}, scalar, read + written)
  written = 0 if is_fused else written
  return rates.seconds({}, scalar, written) - rates.launch_s


def scalar_flops(eqn: core.JaxprEqn, rates: Rates) -> float:
  """Returns the flops of an equation besides those of products.

  Callees are included. An element of a result counts for what it takes, one
  that is reduced once.
  """
  bodies = [*core.jaxprs_in_params(eqn.params)]
  name = eqn.primitive.name
  factorized = factorization_flops(
    name, [memory.shape(v.aval) for v in eqn.invars]
  )
  if factorized is not None:
    return factorized / rates.efficiency.factorized
  if name in _KERNELS_OF_THEIR_OWN or name in COLLECTIVES:
    return sum(memory.num_elements(v.aval) for v in eqn.invars)
  if bodies:
    return num_runs(eqn) * sum(
      scalar_flops(inner, rates) for body in bodies for inner in body.eqns
    )
  if memory.renamed(eqn, views=True) or product_flops(eqn):
    return 0.0
  elements = sum(memory.num_elements(v.aval) for v in eqn.outvars)
  return elements * _flops_per_element(name, rates)


def jaxpr_seconds(
  jaxpr: core.Jaxpr, rates: Rates, *, is_fused: bool = False
) -> float:
  """Returns the estimated time of all equations of a jaxpr."""
  return sum(
    equation_seconds(eqn, rates, is_fused=is_fused) for eqn in jaxpr.eqns
  )


def product_flops(eqn: core.JaxprEqn) -> float:
  """Returns the flops of a matrix product or convolution; 0 for others.

  A multiply-add counts as two. Padding of convolutions counts as if it were
  data. A ragged product is one for every group of all rows, as XLA makes it on
  CPUs and GPUs.
  """
  name = eqn.primitive.name
  if name in ("dot_general", "scaled_dot"):
    (contracting, _), _ = eqn.params["dimension_numbers"]
    num_results = memory.num_elements(eqn.outvars[0].aval)
    return 2.0 * num_results * _depth(eqn, contracting)
  if name == "ragged_dot_general":
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contracting, _), _ = numbers.dot_dimension_numbers
    # Otherwise there is a result for each group.
    is_shared = numbers.rhs_group_dimensions
    groups = memory.shape(eqn.invars[2].aval)[-1] if is_shared else 1
    num_results = memory.num_elements(eqn.outvars[0].aval)
    per_group = num_results * _depth(eqn, contracting)
    return 2.0 * groups * per_group
  if name == "conv_general_dilated":
    kernel = eqn.invars[1].aval
    features = memory.shape(kernel)[eqn.params["dimension_numbers"].rhs_spec[0]]
    per_output = memory.num_elements(kernel) / max(features, 1)
    return 2.0 * memory.num_elements(eqn.outvars[0].aval) * per_output
  return 0.0


def is_heavy_eqn(eqn: core.JaxprEqn) -> bool:
  """Whether an equation is a kernel of its own, whose results may be kept."""
  name = eqn.primitive.name
  if name in CUSTOM_DERIVATIVES or name == "shard_map":
    bodies = core.jaxprs_in_params(eqn.params)
    return any(is_heavy_eqn(inner) for body in bodies for inner in body.eqns)
  return name in _HEAVY or name in COLLECTIVES or product_flops(eqn) > 0


def is_lone_product(eqn: core.JaxprEqn) -> bool:
  """Whether an equation is heavy, and not a product within a batch.

  Those of attention, one for each head, have results that are larger than what
  they are made of, and take little. `dots_with_no_batch_dims_saveable` of
  `jax.checkpoint_policies` draws the same line.
  """
  if eqn.primitive.name == "dot_general":
    _, (batch, _) = eqn.params["dimension_numbers"]
    return not batch
  return is_heavy_eqn(eqn)


def is_reduction(eqn: core.JaxprEqn) -> bool:
  """Whether an equation sums elements up, or finds the largest, or the like."""
  return eqn.primitive.name in _ELEMENT_REDUCTIONS


def _flops_per_element(name: str, rates: Rates) -> float:
  """Returns what an elementwise primitive takes, in operations of one flop."""
  if name in _RANDOM:
    return _THREEFRY_FLOPS
  return 1 / rates.efficiency.transcendental if name in TRANSCENDENTAL else 1


def _precision(eqn: core.JaxprEqn, rates: Rates) -> Precision:
  itemsize = max(memory.itemsize(v.aval) for v in eqn.invars)
  if itemsize <= 2:
    return "bf16"
  asked = str(eqn.params.get("precision"))
  is_highest = "HIGHEST" in asked or itemsize > 4
  return "fp32" if is_highest else rates.float32_products


def _depth(eqn: core.JaxprEqn, contracting: Iterable[int]) -> int:
  shape = memory.shape(eqn.invars[0].aval)
  return math.prod(shape[axis] for axis in contracting)
