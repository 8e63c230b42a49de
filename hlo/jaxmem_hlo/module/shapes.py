"""Sizes and indices of HLO shapes.

A shape index is a tuple of ints: the path from an instruction's shape to one
of its (nested) tuple elements; the empty index is the whole shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from jaxmem_hlo.proto import hlo_pb2

ShapeIndex = tuple[int, ...]

TUPLE = 13
_OPAQUE = 14
TOKEN = 17
_POINTER_BYTES = 8

# The bits per element of each xla.PrimitiveType. Types of fewer than eight bits
# take a byte each unless their layout packs them.
_ELEMENT_BITS = {
  1: 8,  # pred
  2: 8,
  3: 16,
  4: 32,
  5: 64,  # signed
  6: 8,
  7: 16,
  8: 32,
  9: 64,  # unsigned
  10: 16,
  11: 32,
  12: 64,  # f16, f32, f64
  15: 64,  # c64
  16: 16,  # bf16
  18: 128,  # c128
  21: 8,
  22: 8,  # s4, u4
  26: 8,
  27: 8,  # s2, u2
  30: 8,
  31: 8,  # s1, u1
  **{t: 8 for t in (19, 20, 23, 24, 25, 28, 29, 32, 33)},  # f8, f4 kinds
}


def element_bytes(element_type: int) -> int:
  """Returns the bytes of one element of an xla.PrimitiveType.

  Raises:
    ValueError: If the type is not known; sizes are never guessed.
  """
  if element_type not in _ELEMENT_BITS:
    raise ValueError(
      f"Unknown HLO element type {element_type}; jaxmem leaves such modules to"
      " XLA."
    )
  return _ELEMENT_BITS[element_type] // 8


def is_tuple(shape: hlo_pb2.Shape) -> bool:
  """Returns whether the shape is a tuple (possibly an empty one)."""
  return shape.element_type == TUPLE


def num_elements(shape: hlo_pb2.Shape) -> int:
  """Returns the number of elements of an array shape."""
  return math.prod(shape.dimensions)


def top_level_bytes(shape: hlo_pb2.Shape) -> int:
  """Returns the bytes of the buffer that holds the shape's top level.

  A tuple's buffer is its table of pointers; its elements have buffers of
  their own. A token has no bytes.
  """
  if shape.element_type == TUPLE:
    return _POINTER_BYTES * len(shape.tuple_shapes)
  if shape.element_type == TOKEN:
    return 0
  if shape.element_type == _OPAQUE:
    return _POINTER_BYTES
  packed_bits = shape.layout.element_size_in_bits
  if packed_bits:
    return -(-num_elements(shape) * packed_bits // 8)
  return num_elements(shape) * element_bytes(shape.element_type)


def subshapes(
  shape: hlo_pb2.Shape, index: ShapeIndex = ()
) -> Iterator[tuple[ShapeIndex, hlo_pb2.Shape]]:
  """Yields (index, shape) of the shape and all nested ones, in pre-order."""
  yield index, shape
  for i, element in enumerate(shape.tuple_shapes):
    yield from subshapes(element, (*index, i))


def subshape(shape: hlo_pb2.Shape, index: ShapeIndex) -> hlo_pb2.Shape:
  """Returns the shape found at an index."""
  for i in index:
    shape = shape.tuple_shapes[i]
  return shape


def subtree[T](
  tree: Mapping[ShapeIndex, T], prefix: ShapeIndex
) -> dict[ShapeIndex, T]:
  """Returns what a tree has below an index, by the rest of the index."""
  length = len(prefix)
  return {
    index[length:]: held
    for index, held in tree.items()
    if index[:length] == prefix
  }


def same_shape(a: hlo_pb2.Shape, b: hlo_pb2.Shape) -> bool:
  """Returns whether element type, dimensions and layout all agree."""
  if a.element_type != b.element_type or a.dimensions != b.dimensions:
    return False
  if a.element_type == TUPLE:
    return len(a.tuple_shapes) == len(b.tuple_shapes) and all(
      same_shape(x, y)
      for x, y in zip(a.tuple_shapes, b.tuple_shapes, strict=True)
    )
  return a.layout == b.layout
