"""Floating point operations of instructions.

Counted as XLA's cost analysis counts them (xla/service/hlo_cost_analysis.cc),
so that the two can be compared: a multiply-add is two, a convolution only
counts kernel positions that meet the input, any other elementwise operation is
one per element, and transcendental functions are kept apart.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re

import numpy as np
from jaxmem_hlo.module import ELEMENTWISE, Instruction, Module, shapes
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.cost.factorizations import factorization_flops
from jaxmem.cost.products import (
  CUBLAS_PRODUCT,
  CUDNN_CONVOLUTION,
  FLOPS_PER_MULTIPLY_ADD,
  KERNEL_GRADIENT,
  ProductKind,
  gemm_flops,
  product_kind,
)

_CUDNN_ATTENTION = "__cudnn$fmha"
# Attention multiplies twice forward, and backward, where scores are made again,
# five times.
_ATTENTION_PRODUCTS = {False: 2, True: 5}

_TRANSCENDENTAL = frozenset(
  "atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one"
  " logistic power rng rng-bit-generator rsqrt sine sqrt tan tanh".split()
)
# These are elementwise, but nothing is computed.
_FREE = frozenset({"copy", "map", "rng", "stochastic-convert"})


# These apply a computation, to elements in most cases.
_CALLERS = frozenset(
  "fusion map reduce reduce-window scatter select-and-scatter".split()
)


@dataclasses.dataclass(slots=True)
class Flops:
  """Operations of an instruction.

  Attributes:
    products: Of matrix products and convolutions.
    packed_bytes: Not operations, but bytes: of these, factors and results.
    looped: Of convolutions that XLA:CPU computes in plain loops.
    factorized: Of factorizations of matrices, and of triangular solves.
    scalar: Of everything else but transcendental functions.
    transcendental: Evaluations of transcendental functions.
  """

  products: dict[ProductKind, float] = dataclasses.field(default_factory=dict)
  packed_bytes: float = 0.0
  looped: float = 0.0
  factorized: float = 0.0
  scalar: float = 0.0
  transcendental: float = 0.0

  def add(self, other: Flops, times: float = 1.0) -> None:
    """Adds another count, several times."""
    for key, flops in other.products.items():
      self.products[key] = self.products.get(key, 0.0) + times * flops
    self.packed_bytes += times * other.packed_bytes
    self.looped += times * other.looped
    self.factorized += times * other.factorized
    self.scalar += times * other.scalar
    self.transcendental += times * other.transcendental


def _convolution_flops(
  convolution: Instruction,
  image: hlo_pb2.Shape,
  kernel: hlo_pb2.Shape,
  output: hlo_pb2.Shape,
) -> float:
  """Returns the flops of a convolution, padding not counted.

  Without padding and dilation this is 2 elems(output) elems(kernel) / features
  of the output. A custom call may have the dimension numbers, too.
  """
  proto = convolution.proto
  numbers = proto.convolution_dimension_numbers
  batch = image.dimensions[numbers.input_batch_dimension]
  features = image.dimensions[numbers.input_feature_dimension]
  count = (
    features
    // max(1, proto.feature_group_count)
    * output.dimensions[numbers.output_feature_dimension]
    * (batch // max(1, proto.batch_group_count))
  )
  for k, window in enumerate(proto.window.dimensions):
    count *= _num_meetings(
      image.dimensions[numbers.input_spatial_dimensions[k]],
      kernel.dimensions[numbers.kernel_spatial_dimensions[k]],
      output.dimensions[numbers.output_spatial_dimensions[k]],
      max(1, window.stride),
      max(1, window.base_dilation),
      max(1, window.window_dilation),
      window.padding_low,
    )
  return float(FLOPS_PER_MULTIPLY_ADD * count)


@functools.lru_cache(maxsize=4096)
def _num_meetings(
  image_size: int,
  kernel_size: int,
  output_size: int,
  stride: int,
  base_dilation: int,
  window_dilation: int,
  padding_low: int,
) -> int:
  """Pairs (output position, kernel position) that meet an input element."""
  at = np.add.outer(
    np.arange(kernel_size) * window_dilation - padding_low,
    np.arange(output_size) * stride,
  )
  inside = (at >= 0) & (at < image_size * base_dilation)
  return int((inside & (at % base_dilation == 0)).sum())


class FlopCounter:
  """Counts the operations of a module's instructions, each body once.

  Args:
    module: The module.
  """

  def __init__(self, module: Module):
    self._module = module
    self._bodies: dict[int, Flops] = {}

  def count(self, instruction: Instruction) -> Flops:
    """Returns what one execution of an instruction computes.

    What an instruction has run by the schedule of a computation is not counted.
    """
    opcode = instruction.opcode
    flops = Flops()
    if opcode in _CALLERS:
      times = self._applications(instruction)
      for callee in instruction.callees:
        flops.add(self._body(callee), times)
    elif opcode in _TRANSCENDENTAL:
      flops.transcendental = _num_elements(instruction.shape)
    elif opcode in ELEMENTWISE and opcode not in _FREE:
      flops.scalar = _num_elements(instruction.shape)
    elif opcode == "sort":
      # What XLA supposes: n log n comparisons of one operation each.
      count = shapes.num_elements(self._operand(instruction, 0))
      flops.scalar = float(count * (count - 1).bit_length())
    else:
      self._count_algebra(instruction, flops)
    return flops

  def _count_algebra(self, instruction: Instruction, flops: Flops) -> None:
    """Adds what a factorization or a product computes, nothing of others."""
    factorized = self._factorized(instruction)
    if factorized is not None:
      flops.factorized = factorized
      return
    product = self._product(instruction)
    if product is None:
      return
    if _is_looped(instruction):
      flops.looped = product
      return
    flops.products[product_kind(instruction)] = product
    flops.packed_bytes = self._factor_bytes(instruction)

  def _body(self, computation_id: int) -> Flops:
    """Returns what one execution of a computation computes."""
    if computation_id not in self._bodies:
      flops = Flops()
      for instruction in self._module.by_id[computation_id].instructions:
        flops.add(self.count(instruction))
      self._bodies[computation_id] = flops
    return self._bodies[computation_id]

  def _operand(self, instruction: Instruction, number: int) -> hlo_pb2.Shape:
    return instruction.computation.by_id[instruction.operands[number]].shape

  def _factorized(self, instruction: Instruction) -> float | None:
    """Flops of a factorization or triangular solve; None for anything else."""
    name = instruction.opcode
    if name == "custom-call":
      name = instruction.proto.custom_call_target
    elif name not in ("cholesky", "triangular-solve"):
      return None
    numbers = range(min(2, len(instruction.operands)))
    given = [self._operand(instruction, n).dimensions for n in numbers]
    return factorization_flops(name, given)

  def _product(self, instruction: Instruction) -> float | None:
    """Flops of a matrix product or convolution; None for anything else."""
    if (
      instruction.opcode not in ("dot", "convolution", "custom-call")
      or len(instruction.operands) < 2
    ):
      return None
    a, b = self._operand(instruction, 0), self._operand(instruction, 1)
    result = instruction.shape
    if instruction.opcode == "dot":
      numbers = instruction.proto.dot_dimension_numbers
      widths = (a.dimensions[d] for d in numbers.lhs_contracting_dimensions)
      width = math.prod(widths)
      return float(FLOPS_PER_MULTIPLY_ADD * width * shapes.num_elements(result))
    if instruction.opcode == "convolution":
      return _convolution_flops(instruction, a, b, result)
    target = instruction.proto.custom_call_target
    if target.startswith(_CUDNN_ATTENTION):
      return _attention_flops(instruction, a)
    result = next(iter(result.tuple_shapes), None)
    if result is None:
      return None
    if target.startswith(CUBLAS_PRODUCT):
      return gemm_flops(instruction, a, b, result)
    if not target.startswith(CUDNN_CONVOLUTION):
      return None
    # The dimension numbers are always those of the forward convolution.
    if target.endswith(KERNEL_GRADIENT):
      return _convolution_flops(instruction, a, result, b)
    if target.endswith("BackwardInput"):
      return _convolution_flops(instruction, result, b, a)
    return _convolution_flops(instruction, a, b, result)

  def _factor_bytes(self, product: Instruction) -> float:
    """Bytes of the factors of a product, and of its result."""
    result = next(iter(product.shape.tuple_shapes), product.shape)
    given = (self._operand(product, number) for number in range(2))
    return float(sum(map(shapes.top_level_bytes, (*given, result))))

  def _applications(self, instruction: Instruction) -> float:
    """How often what an instruction calls is applied."""
    num_results = _num_elements(instruction.shape)
    match instruction.opcode:
      case "map":
        return num_results
      case "reduce":
        num_given = shapes.num_elements(self._operand(instruction, 0))
        return max(0.0, num_given - num_results)
      case "reduce-window":
        return (_window_size(instruction) - 1) * num_results
      case "scatter":
        updates = self._operand(instruction, len(instruction.operands) // 2 + 1)
        return shapes.num_elements(updates)
      case "select-and-scatter":
        source = self._operand(instruction, 1)
        return shapes.num_elements(source) * _window_size(instruction)
    return 1.0


def _is_looped(product: Instruction) -> bool:
  """Whether XLA:CPU has no library compute a convolution.

  Features are in groups, or dimensions in another order than examples, space,
  features (xla/service/cpu/ir_emission_utils.cc,
  PotentiallyImplementedAsEigenConvolution). On GPUs convolutions are custom
  calls.
  """
  if product.opcode != "convolution":
    return False
  proto = product.proto
  numbers = proto.convolution_dimension_numbers
  rank = len(product.shape.dimensions)
  images = (
    (numbers.input_batch_dimension, numbers.input_feature_dimension),
    (numbers.output_batch_dimension, numbers.output_feature_dimension),
  )
  kernel = (
    numbers.kernel_input_feature_dimension,
    numbers.kernel_output_feature_dimension,
  )
  return (
    proto.feature_group_count > 1
    or any(image != (0, rank - 1) for image in images)
    or kernel != (rank - 2, rank - 1)
  )


def _window_size(instruction: Instruction) -> int:
  return math.prod(d.size for d in instruction.proto.window.dimensions)


def _num_elements(shape: hlo_pb2.Shape) -> float:
  """Elements of an array, or of the first array of a tuple."""
  while shape.tuple_shapes:
    shape = shape.tuple_shapes[0]
  return float(shapes.num_elements(shape))


def _attention_flops(call: Instruction, query: hlo_pb2.Shape) -> float | None:
  """Returns the flops of cuDNN's attention; None if it does not say its shape.

  Its config names the shape of the scores: examples, heads, queries, keys. A
  causal mask leaves half of them.
  """
  config = call.proto.backend_config
  found = re.search(
    rb'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*\[([^\]]*)\]', config
  )
  if found is None:
    return None
  scores = math.prod(map(int, re.findall(rb"\d+", found[1])))
  if re.search(rb'"mask_type":\s*"[A-Z_]*CAUSAL', config):
    scores /= 2
  is_backward = call.proto.custom_call_target.endswith("Backward")
  products = _ATTENTION_PRODUCTS[is_backward]
  return products * FLOPS_PER_MULTIPLY_ADD * scores * query.dimensions[-1]
