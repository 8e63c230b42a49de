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
from typing import NamedTuple

from jaxmem_hlo.buffers import aliasing
from jaxmem_hlo.module import Instruction, Module, shapes
from jaxmem_hlo.proto import hlo_pb2

# What the targets of XLA:GPU's library calls begin with.
_CUDNN_CONVOLUTION = "__cudnn$conv"
_CUBLAS_PRODUCT = "__cublas$"
# xla.PrecisionConfig.HIGHEST: full precision is asked for.
_HIGHEST_PRECISION = 2
# Bytes of an element, by xla.PrimitiveType: f16, bf16, f32, f64, c64, c128.
_ELEMENT_BYTES = {10: 2, 16: 2, 11: 4, 12: 8, 15: 8, 18: 16}
# A multiply-add counts as two operations.
_FLOPS_PER_MULTIPLY_ADD = 2

_TRANSCENDENTAL = frozenset(
  "atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one"
  " logistic power rng rng-bit-generator rsqrt sine sqrt tan tanh".split()
)
# These are elementwise, but nothing is computed.
_FREE = frozenset({"copy", "map", "rng", "stochastic-convert"})


class Product(NamedTuple):
  """Flops of matrix products of one operand type.

  Attributes:
    element_type: xla.PrimitiveType of the wider operand.
    is_highest: Whether full precision is asked for.
  """

  element_type: int
  is_highest: bool


@dataclasses.dataclass(slots=True)
class Flops:
  """Operations of an instruction.

  Attributes:
    products: Of matrix products and convolutions, by operand type.
    scalar: Of everything else but transcendental functions.
    transcendental: Evaluations of transcendental functions.
  """

  products: dict[Product, float] = dataclasses.field(default_factory=dict)
  scalar: float = 0.0
  transcendental: float = 0.0

  @property
  def total(self) -> float:
    """All flops, transcendental functions left out, as XLA does."""
    return sum(self.products.values()) + self.scalar

  def add(self, other: Flops, times: float = 1.0) -> None:
    """Adds another count, several times."""
    for key, flops in other.products.items():
      self.products[key] = self.products.get(key, 0.0) + times * flops
    self.scalar += times * other.scalar
    self.transcendental += times * other.transcendental


def dot_flops(dot: Instruction, lhs: hlo_pb2.Shape) -> float:
  """Returns the flops of a matrix product.

  Args:
    dot: The dot.
    lhs: Shape of its left operand.
  """
  numbers = dot.proto.dot_dimension_numbers
  width = math.prod(
    lhs.dimensions[d] for d in numbers.lhs_contracting_dimensions
  )
  return float(_FLOPS_PER_MULTIPLY_ADD * width * shapes.num_elements(dot.shape))


def convolution_flops(
  convolution: Instruction,
  image: hlo_pb2.Shape,
  kernel: hlo_pb2.Shape,
  output: hlo_pb2.Shape,
) -> float:
  """Returns the flops of a convolution, padding not counted.

  Without padding and dilation this is 2 elems(output) elems(kernel) / features
  of the output.

  Args:
    convolution: It, or a custom call that has its dimension numbers.
    image: Shape of what the kernel slides over.
    kernel: Shape of the kernel.
    output: Shape of the result.
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
  return float(_FLOPS_PER_MULTIPLY_ADD * count)


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
  count = 0
  for k in range(kernel_size):
    offset = k * window_dilation - padding_low
    for o in range(output_size):
      at = o * stride + offset
      if at >= 0 and at % base_dilation == 0:
        count += at // base_dilation < image_size
  return count


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

    A loop counts one iteration, a conditional its dearest branch.
    """
    opcode = instruction.opcode
    flops = Flops()
    if opcode == "dot":
      lhs = self._operand(instruction, 0)
      self._add_product(flops, instruction, dot_flops(instruction, lhs))
    elif opcode == "convolution":
      self._add_product(
        flops,
        instruction,
        convolution_flops(
          instruction,
          self._operand(instruction, 0),
          self._operand(instruction, 1),
          instruction.shape,
        ),
      )
    elif opcode == "custom-call":
      self._add_custom_call(flops, instruction)
    elif opcode == "conditional":
      branches = [self.body(c) for c in instruction.callees]
      flops.add(max(branches, key=lambda b: b.total))
    elif opcode in _RUN_ONCE:
      for callee in instruction.callees:
        flops.add(self.body(callee))
    elif opcode in _APPLICATIONS:
      times = _APPLICATIONS[opcode](self, instruction)
      for callee in instruction.callees:
        flops.add(self.body(callee), times)
    elif opcode == "sort":
      # What XLA supposes: n log n comparisons of one operation each.
      count = shapes.num_elements(self._operand(instruction, 0))
      flops.scalar = float(count * (count - 1).bit_length())
    elif opcode in _TRANSCENDENTAL:
      flops.transcendental = _num_elements(instruction.shape)
    elif aliasing.is_elementwise(opcode) and opcode not in _FREE:
      flops.scalar = _num_elements(instruction.shape)
    return flops

  def body(self, computation_id: int) -> Flops:
    """Returns what one execution of a computation computes."""
    if computation_id not in self._bodies:
      flops = Flops()
      for instruction in self._module.by_id[computation_id].instructions:
        flops.add(self.count(instruction))
      self._bodies[computation_id] = flops
    return self._bodies[computation_id]

  def _operand(self, instruction: Instruction, number: int) -> hlo_pb2.Shape:
    return instruction.computation.by_id[instruction.operands[number]].shape

  def _add_product(
    self, flops: Flops, instruction: Instruction, count: float
  ) -> None:
    by_id = instruction.computation.by_id
    operands = [by_id[o].shape.element_type for o in instruction.operands[:2]]
    precision = instruction.proto.precision_config.operand_precision
    key = Product(
      max(operands, key=lambda t: _ELEMENT_BYTES.get(t, 0)),
      any(p == _HIGHEST_PRECISION for p in precision),
    )
    flops.products[key] = flops.products.get(key, 0.0) + count

  def _add_custom_call(self, flops: Flops, call: Instruction) -> None:
    target = call.proto.custom_call_target
    if len(call.operands) < 2 or not call.shape.tuple_shapes:
      return
    a, b = self._operand(call, 0), self._operand(call, 1)
    result = call.shape.tuple_shapes[0]
    if target.startswith(_CUDNN_CONVOLUTION):
      # The dimension numbers are always those of the forward convolution.
      if target.endswith("BackwardFilter"):
        image, kernel, output = a, result, b
      elif target.endswith("BackwardInput"):
        image, kernel, output = result, b, a
      else:
        image, kernel, output = a, b, result
      self._add_product(
        flops, call, convolution_flops(call, image, kernel, output)
      )
    elif target.startswith(_CUBLAS_PRODUCT):
      self._add_product(flops, call, _gemm_flops(call, a, b, result))

  def _reductions(self, reduce: Instruction) -> float:
    return max(
      0.0,
      shapes.num_elements(self._operand(reduce, 0))
      - _num_elements(reduce.shape),
    )

  def _window_reductions(self, reduce: Instruction) -> float:
    return (_window_size(reduce) - 1) * _num_elements(reduce.shape)

  def _selections(self, instruction: Instruction) -> float:
    source = shapes.num_elements(self._operand(instruction, 1))
    return source * _window_size(instruction)

  def _updates(self, scatter: Instruction) -> float:
    number = len(scatter.operands) // 2 + 1
    return shapes.num_elements(self._operand(scatter, number))


_RUN_ONCE = frozenset({"fusion", "call", "while", "async-start"})
# How often the called computation of an opcode is applied.
_APPLICATIONS = {
  "map": lambda _, i: _num_elements(i.shape),
  "reduce": FlopCounter._reductions,
  "reduce-window": FlopCounter._window_reductions,
  "scatter": FlopCounter._updates,
  "select-and-scatter": FlopCounter._selections,
}


def _window_size(instruction: Instruction) -> int:
  return math.prod(d.size for d in instruction.proto.window.dimensions)


def _num_elements(shape: hlo_pb2.Shape) -> float:
  """Elements of an array, or of the first array of a tuple."""
  while shape.tuple_shapes:
    shape = shape.tuple_shapes[0]
  return float(shapes.num_elements(shape))


def _gemm_flops(
  call: Instruction,
  lhs: hlo_pb2.Shape,
  rhs: hlo_pb2.Shape,
  result: hlo_pb2.Shape,
) -> float:
  """Returns the flops of a cuBLAS product, whose config names the dimensions.

  With b the batch size, elems(lhs) elems(rhs) elems(result) is b (b m n k)^2.
  """
  found = re.search(
    rb'"lhs_batch_dimensions":\[([^\]]*)\]', call.proto.backend_config
  )
  dimensions = re.findall(rb"\d+", found[1]) if found else []
  batch = math.prod(lhs.dimensions[int(d)] for d in dimensions)
  elements = math.prod(shapes.num_elements(s) for s in (lhs, rhs, result))
  return _FLOPS_PER_MULTIPLY_ADD * math.sqrt(elements / max(1, batch))
