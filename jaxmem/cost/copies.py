"""Copies between the device's memory and the host's."""

from __future__ import annotations

from jaxmem_hlo.module import Instruction

from jaxmem.cost.rates import Rates
from jaxmem.cost.traffic import array_bytes


def direction(instruction: Instruction) -> bool | None:
  """Whether a copy goes to the host; None if it does not leave its memory."""
  if instruction.opcode != "copy-start":
    return None
  target, source = instruction.shape.tuple_shapes[:2]
  if target.layout.memory_space == source.layout.memory_space:
    return None
  return bool(target.layout.memory_space)


def copied_bytes(copy_start: Instruction) -> int:
  """Returns the bytes that a copy-start moves."""
  return int(array_bytes(copy_start.shape.tuple_shapes[0]))


def copy_seconds(size_bytes: int, to_host: bool, rates: Rates) -> float:
  """Returns the time of a copy over an idle link, 0 if its rate is unknown."""
  rate = rates.to_host_bytes_per_s if to_host else rates.from_host_bytes_per_s
  return size_bytes / (rate * rates.link_efficiency) if rate else 0.0
