"""Reads of arrays across the order in which they lie, by kernels of a CPU.

XLA:CPU goes through a fusion tile by tile if it knows how, and else in plain
loops in the order of the result. In loops each element that is read lies in a
cache line of its own, which is of use again only when the loops have come to
the neighbour: by then it may have left the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from jaxmem_hlo.module import ELEMENTWISE, Computation, Instruction, shapes
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.graph import reachable

# Of the second cache of a core of a server: 2 MiB.
_LINE_BYTES = 64
_NUM_SETS = 2048
_NUM_WAYS = 16

# What XLA:CPU knows to compute by tiles, besides scalar constants
# (xla/backends/cpu/codegen/tiled/tiled_fusion_emitter.cc,
# IsSupportedInstruction and IsSupportedTilingType).
_TILED = {"bitcast", "iota", "parameter", "reshape", "transpose"} | (
  ELEMENTWISE
  - {
    "bitcast-convert",
    "count-leading-zeros",
    "imag",
    "map",
    "popcnt",
    "real",
    "rng",
    "round-nearest-afz",
    "round-nearest-even",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
    "sign",
    "stochastic-convert",
  }
)
# Of xla.PrimitiveType: pred, signed integers of whole bytes, floats of 16 bits
# and more.
_TILED_TYPES = frozenset({1, 2, 3, 4, 5, 10, 11, 12, 16})


def turns(instruction: Instruction, by_id: Mapping[int, Instruction]) -> bool:
  """Whether neighbours in a result are none in the operand."""
  if instruction.opcode not in ("copy", "transpose"):
    return False
  given = by_id[instruction.operands[0]].shape
  nearest = _nearest(instruction.shape)
  if nearest is not None:
    nearest = _dimension_of_operand(instruction, nearest)
  return nearest != _nearest(given)


def is_tiled(body: Computation) -> bool:
  """Whether XLA:CPU computes a fusion with this body tile by tile."""
  return all(
    i.shape.element_type in _TILED_TYPES
    and (
      i.opcode in _TILED
      or (i.opcode == "constant" and math.prod(i.shape.dimensions) == 1)
    )
    for i in body.instructions
  )


def leaves_cache(
  turned: Instruction, by_id: Mapping[int, Instruction], num_arrays: float
) -> bool:
  """Whether lines leave the cache before loops come to their next element.

  Args:
    turned: An instruction that `turns`.
    by_id: Of its computation.
    num_arrays: How many arrays of its size are read for it.
  """
  result, given = turned.shape, by_id[turned.operands[0]].shape
  first, neighbour = _nearest(result), _nearest(given)
  if first is None or neighbour is None:
    return False
  num_between = 1
  for dimension in result.layout.minor_to_major:
    if _dimension_of_operand(turned, dimension) == neighbour:
      break
    num_between *= result.dimensions[dimension]
  num_apart = 1
  for dimension in given.layout.minor_to_major:
    if dimension == _dimension_of_operand(turned, first):
      break
    num_apart *= given.dimensions[dimension]
  lines_apart = (
    num_apart * shapes.element_bytes(given.element_type) // _LINE_BYTES
  )
  if not lines_apart:
    return False
  # Lines so far apart share some of the sets only.
  num_sets = _NUM_SETS // math.gcd(lines_apart, _NUM_SETS)
  return num_between * num_arrays > _NUM_WAYS * num_sets


def made_of(body: Computation, of: Iterable[Instruction]) -> set[int]:
  """Returns ids of all that some instructions are computed from."""
  operands = [operand for instruction in of for operand in instruction.operands]
  return reachable(operands, lambda operand: body.by_id[operand].operands)


def _dimension_of_operand(turned: Instruction, dimension: int) -> int:
  """Returns which dimension of the operand one of the result is."""
  if turned.opcode == "transpose":
    return turned.proto.dimensions[dimension]
  return dimension


def _nearest(shape: hlo_pb2.Shape) -> int | None:
  """Returns the dimension along which neighbours lie; None of one element."""
  for dimension in shape.layout.minor_to_major:
    if shape.dimensions[dimension] > 1:
      return dimension
  return None
