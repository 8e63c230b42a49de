"""Copies between the device's memory and the host's."""

from __future__ import annotations

from jaxmem_hlo.module import HOST_MEMORY_SPACE, Instruction
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.cost.rates import Rates
from jaxmem.cost.traffic import array_bytes


def direction(instruction: Instruction) -> bool | None:
  """Whether a copy goes to the host; None if it does not leave its memory.

  Copies of whole arrays, and those of slices of stacks that lie in the host's
  memory, which loops read and write.
  """
  if instruction.opcode == "copy-start":
    target, source = instruction.shape.tuple_shapes[:2]
    if target.layout.memory_space == source.layout.memory_space:
      return None
    return bool(target.layout.memory_space)
  if instruction.opcode != "async-start":
    return None
  given, result = instruction.shape.tuple_shapes[:2]
  if _is_on_host(result):
    return True
  is_fetch = any(_is_on_host(part) for part in given.tuple_shapes)
  return False if is_fetch else None


def copied_bytes(start: Instruction) -> int:
  """Returns the bytes that the start of a copy moves."""
  target, result = start.shape.tuple_shapes[:2]
  if start.opcode == "copy-start":
    return int(array_bytes(target))
  if not _is_on_host(result):
    return int(array_bytes(result))
  parts = [part for part in target.tuple_shapes if not _is_on_host(part)]
  return int(sum(map(array_bytes, parts)))


def _is_on_host(shape: hlo_pb2.Shape) -> bool:
  return shape.layout.memory_space == HOST_MEMORY_SPACE


def copy_seconds(size_bytes: int, to_host: bool, rates: Rates) -> float:
  """Returns the time of a copy over an idle link, 0 if its rate is unknown."""
  rate = rates.to_host_bytes_per_s if to_host else rates.from_host_bytes_per_s
  return size_bytes / (rate * rates.efficiency.link) if rate else 0.0
