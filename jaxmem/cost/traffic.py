"""Bytes that instructions read and write."""

from __future__ import annotations

import dataclasses
import re

from jaxmem_hlo.buffers import aliasing
from jaxmem_hlo.module import (
  GIVEN,
  RENAMES,
  Computation,
  Instruction,
  Module,
  shapes,
)
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.cost import strides

_TRANSPARENT = frozenset({"bitcast", "reshape", "convert", "copy"})


@dataclasses.dataclass(frozen=True, slots=True)
class StridedReads:
  """What an instruction reads across the order in which an array lies.

  Attributes:
    num_bytes: How much.
    is_tiled: Whether a CPU goes through the array tile by tile.
    is_lost: Whether it reads each line again for each of its elements, since
      it has left the cache by then.
  """

  num_bytes: float
  is_tiled: bool = False
  is_lost: bool = False


_NOT_STRIDED = StridedReads(0.0)


class TrafficCounter:
  """Counts the bytes of a module's instructions.

  A fusion reads each operand once, however often its body uses it, and of an
  operand that is only sliced or gathered from just the slices. What is written
  in place counts as the part that changes.

  Args:
    module: The module.
  """

  def __init__(self, module: Module):
    self._module = module

  def count(self, instruction: Instruction) -> float:
    """Returns the bytes that one execution reads and writes.

    What an instruction has run by the schedule of a computation is not counted.
    """
    if is_free(instruction):
      return 0.0
    return self._read(instruction) + self._written(instruction)

  def strided(self, instruction: Instruction) -> StridedReads:
    """Returns what is read across the order in which it lies.

    That is what a transposition, or a copy to another layout, is made of within
    an instruction, if neighbours in its result are none in its operand.
    """
    by_id = instruction.computation.by_id
    if instruction.opcode != "fusion":
      if not strides.turns(instruction, by_id):
        return _NOT_STRIDED
      return StridedReads(array_bytes(instruction.shape), is_tiled=True)
    body = self._module.by_id[instruction.callees[0]]
    turned = [i for i in body.instructions if strides.turns(i, body.by_id)]
    if not turned:
      return _NOT_STRIDED
    read = {p.id for p in body.parameters} & strides.made_of(body, turned)
    num_bytes = sum(self._read_of(body, body.by_id[p]) for p in sorted(read))
    largest = max(turned, key=lambda i: array_bytes(i.shape))
    num_arrays = num_bytes / max(1.0, array_bytes(largest.shape))
    if strides.is_tiled(body):
      return StridedReads(num_bytes, is_tiled=True)
    is_lost = strides.leaves_cache(largest, body.by_id, num_arrays)
    return StridedReads(num_bytes, is_lost=is_lost)

  def _read(self, instruction: Instruction) -> float:
    total = 0.0
    places: dict[int, list[int]] = {}
    for number, operand in enumerate(instruction.operands):
      places.setdefault(operand, []).append(number)
    for operand, numbers in places.items():
      size = array_bytes(instruction.computation.by_id[operand].shape)
      if instruction.opcode == "fusion":
        body = self._module.by_id[instruction.callees[0]]
        read = sum(self._read_of(body, body.parameters[n]) for n in numbers)
      else:
        read = sum(self._read_at(instruction, n, size) for n in numbers)
      total += min(size, read)
    return total

  def _read_of(self, body: Computation, value: Instruction) -> float:
    """Bytes of a value inside a fusion that its users read."""
    size = array_bytes(value.shape)
    read = 0.0
    for user in body.users[value.id]:
      for number, operand in enumerate(user.operands):
        if operand != value.id:
          continue
        if user.opcode in _TRANSPARENT and user is not body.root:
          part = self._read_of(body, user) / max(1, array_bytes(user.shape))
          read += size * part
        elif user.opcode == "fusion":
          inner = self._module.by_id[user.callees[0]]
          read += self._read_of(inner, inner.parameters[number])
        else:
          read += self._read_at(user, number, size)
    return min(size, read)

  def _read_at(self, user: Instruction, number: int, size: float) -> float:
    """Bytes that an instruction reads of one operand, at most `size`."""
    opcode = user.opcode
    if opcode in ("slice", "dynamic-slice", "gather") and number == 0:
      return min(size, array_bytes(user.shape))
    if opcode in ("dynamic-update-slice", "scatter") and any(
      pair.operand_number == number
      for pair in aliasing.in_place_pairs(self._module, user)
    ):
      # A scatter adds to what is there.
      return self._changed(user) if opcode == "scatter" else 0.0
    return size

  def _changed(self, update: Instruction) -> float:
    by_id = update.computation.by_id
    if update.opcode == "dynamic-update-slice":
      return array_bytes(by_id[update.operands[1]].shape)
    number = (len(update.operands) - 1) // 2
    return sum(
      array_bytes(by_id[o].shape) for o in update.operands[number + 1 :]
    )

  def _written(self, instruction: Instruction) -> float:
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
      return self._changed(instruction)
    if instruction.opcode != "fusion":
      return array_bytes(instruction.shape)
    body = self._module.by_id[instruction.callees[0]]
    root = body.root
    outputs = (
      [body.by_id[o] for o in root.operands]
      if root.opcode == "tuple"
      else [root]
    )
    return sum(self._written_by(body, o) for o in outputs)

  def _written_by(self, body: Computation, output: Instruction) -> float:
    writer = output
    while writer.opcode == "bitcast":
      writer = body.by_id[writer.operands[0]]
    if writer.opcode in ("dynamic-update-slice", "scatter"):
      return self._changed(writer)
    return array_bytes(output.shape)


def is_free(instruction: Instruction) -> bool:
  """Returns whether nothing runs for an instruction."""
  opcode = instruction.opcode
  return opcode in RENAMES or opcode in GIVEN or opcode.endswith("-done")


def array_bytes(shape: hlo_pb2.Shape) -> float:
  """Returns the bytes of a shape's arrays, tables of tuples not counted."""
  if shapes.is_tuple(shape):
    return sum(map(array_bytes, shape.tuple_shapes))
  return float(shapes.top_level_bytes(shape))


def trip_count(loop: Instruction) -> int:
  """Returns how often XLA knows a loop to run, 1 if it does not know."""
  found = re.search(
    rb'"known_trip_count":\s*\{\s*"n":\s*"?(\d+)', loop.proto.backend_config
  )
  return int(found[1]) if found else 1
