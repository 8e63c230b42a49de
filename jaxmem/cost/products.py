"""Matrix products: their operations, and what decides how fast they are."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import NamedTuple

from jaxmem_hlo.module import Instruction, shapes
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.cost.rates import Precision

# What the targets of XLA:GPU's library calls begin with.
CUBLAS_PRODUCT = "__cublas$"
CUDNN_CONVOLUTION = "__cudnn$conv"
# How the target of one ends that has the gradient of the kernel as its result.
KERNEL_GRADIENT = "BackwardFilter"
# A multiply-add counts as two operations.
FLOPS_PER_MULTIPLY_ADD = 2
# xla.PrecisionConfig.HIGHEST: full precision is asked for.
_HIGHEST_PRECISION = 2
# Bytes of an element, by xla.PrimitiveType.
_F16, _F32, _BF16 = 10, 11, 16
_ELEMENT_BYTES = {_F16: 2, _BF16: 2, _F32: 4, 12: 8, 15: 8, 18: 16}
_ALIGNMENT = 16
_SIDES = ("lhs", "rhs")


class ProductKind(NamedTuple):
  """What decides how fast matrix units multiply.

  Attributes:
    precision: That the program asks for; None where it is float32, which a
      device may round.
    is_misaligned: Whether rows of a factor or of the product do not all begin
      at multiples of 16 bytes, so that they are not loaded by as much at once.
    is_crosswise: Whether no factor lies along what is summed over. Tensor cores
      take numbers of 32 bits in that order only (PTX, `wgmma`).
    is_convolution: Whether it is one, of a library for GPUs.
    is_kernel_gradient: Whether that gives the gradient of a kernel.
  """

  precision: Precision | None
  is_misaligned: bool = False
  is_crosswise: bool = False
  is_convolution: bool = False
  is_kernel_gradient: bool = False


def product_kind(product: Instruction) -> ProductKind:
  """Returns what decides how fast a matrix product or convolution is."""
  precision = _precision(product)
  contracted = _contracted(product)
  if contracted is None:
    target = product.proto.custom_call_target
    return ProductKind(
      precision,
      is_convolution=target.startswith(CUDNN_CONVOLUTION),
      is_kernel_gradient=target.endswith(KERNEL_GRADIENT),
    )
  by_id = product.computation.by_id
  factors = [by_id[o].shape for o in product.operands[:2]]
  result = next(iter(product.shape.tuple_shapes), product.shape)
  return ProductKind(
    precision,
    is_misaligned=any(map(_is_misaligned, (*factors, result))),
    is_crosswise=not any(
      _innermost(shape) in dimensions
      for shape, dimensions in zip(factors, contracted, strict=True)
    ),
  )


def gemm_flops(
  call: Instruction,
  lhs: hlo_pb2.Shape,
  rhs: hlo_pb2.Shape,
  result: hlo_pb2.Shape,
) -> float:
  """Returns the flops of a cuBLAS product, whose config names the dimensions.

  With b the batch size, elems(lhs) elems(rhs) elems(result) is b (b m n k)^2.
  """
  dimensions = _listed(call, "lhs_batch_dimensions")
  batch = math.prod(lhs.dimensions[d] for d in dimensions)
  elements = math.prod(shapes.num_elements(s) for s in (lhs, rhs, result))
  return FLOPS_PER_MULTIPLY_ADD * math.sqrt(elements / max(1, batch))


def _precision(product: Instruction) -> Precision | None:
  """The precision of a product of its wider operand; None if it may be less."""
  by_id = product.computation.by_id
  operands = [by_id[o].shape.element_type for o in product.operands[:2]]
  widest = max(operands, key=lambda t: _ELEMENT_BYTES.get(t, 0))
  if widest in (_F16, _BF16):
    return "bf16"
  asked = product.proto.precision_config.operand_precision
  is_highest = any(p == _HIGHEST_PRECISION for p in asked)
  return None if widest == _F32 and not is_highest else "fp32"


def _contracted(product: Instruction) -> list[Collection[int]] | None:
  """Returns the dimensions of both factors that a product sums over.

  None of what is no matrix product.
  """
  if product.opcode == "dot":
    numbers = product.proto.dot_dimension_numbers
    return [
      numbers.lhs_contracting_dimensions,
      numbers.rhs_contracting_dimensions,
    ]
  if product.proto.custom_call_target.startswith(CUBLAS_PRODUCT):
    return [_listed(product, f"{s}_contracting_dimensions") for s in _SIDES]
  return None


def _listed(call: Instruction, name: str) -> list[int]:
  """Returns the dimensions that a library call's config lists by a name."""
  found = re.search(
    rb'"%b":\[([^\]]*)\]' % name.encode(), call.proto.backend_config
  )
  return [int(d) for d in re.findall(rb"\d+", found[1])] if found else []


def _innermost(shape: hlo_pb2.Shape) -> int | None:
  """Returns the dimension along which neighbours lie; None of a number."""
  wide = (d for d in shape.layout.minor_to_major if shape.dimensions[d] > 1)
  return next(wide, None)


def _is_misaligned(shape: hlo_pb2.Shape) -> bool:
  """Whether a matrix has rows that begin inside of 16 bytes."""
  innermost = _innermost(shape)
  if innermost is None:
    return False
  width = shape.dimensions[innermost]
  has_rows = shapes.num_elements(shape) > width
  num_bytes = width * _ELEMENT_BYTES.get(shape.element_type, _ALIGNMENT)
  return has_rows and num_bytes % _ALIGNMENT != 0
