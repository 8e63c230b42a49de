"""When a scheduled program computes, and when it waits for the host's memory.

Kernels run one after the other. A copy between the device and the host begins
at its copy-start, once the copies before it in its direction are done, and goes
on beside the kernels; at its copy-done the device waits for it.
"""

from __future__ import annotations

import dataclasses

from jaxmem_hlo.module import Instruction, Module

from jaxmem.cost.rates import Rates
from jaxmem.cost.roofline import instruction_seconds
from jaxmem.cost.traffic import array_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
  """Estimates for one run of a scheduled program.

  Attributes:
    seconds: From its first instruction to its last.
    waiting_s: Of these, while nothing ran but copies.
    to_host_bytes: Copied to the host.
    from_host_bytes: Copied from there.
  """

  seconds: float
  waiting_s: float
  to_host_bytes: int
  from_host_bytes: int


def step_time(module: Module, rates: Rates) -> StepTime:
  """Estimates when the entry of a scheduled module runs and waits.

  Args:
    module: A scheduled module.
    rates: Of the device. Copies over a link whose rate is 0 take no time.
  """
  seconds = instruction_seconds(module, rates)
  now = waiting_s = 0.0
  free_at = {True: 0.0, False: 0.0}
  num_bytes = {True: 0, False: 0}
  done_at: dict[int, float] = {}
  for instruction in module.schedule(module.entry.id):
    if instruction.opcode == "copy-done":
      wait_s = max(0.0, done_at[instruction.operands[0]] - now)
      waiting_s += wait_s
      now += wait_s
    to_host = direction(instruction)
    if to_host is not None:
      size_bytes = copied_bytes(instruction)
      begin = max(now, free_at[to_host])
      free_at[to_host] = begin + copy_seconds(size_bytes, to_host, rates)
      num_bytes[to_host] += size_bytes
    if instruction.opcode == "copy-start":
      done_at[instruction.id] = now if to_host is None else free_at[to_host]
    now += seconds[instruction.id]
  return StepTime(
    seconds=now,
    waiting_s=waiting_s,
    to_host_bytes=num_bytes[True],
    from_host_bytes=num_bytes[False],
  )


def direction(instruction: Instruction) -> bool | None:
  """Whether a copy goes to the host; None if it does not leave its memory."""
  if instruction.opcode != "copy-start":
    return None
  target, source = instruction.shape.tuple_shapes[:2]
  if target.layout.memory_space == source.layout.memory_space:
    return None
  return bool(target.layout.memory_space)


def has_transfers(module: Module) -> bool:
  """Whether the entry copies between the device and the host."""
  return any(direction(i) is not None for i in module.entry.instructions)


def copied_bytes(copy_start: Instruction) -> int:
  """Returns the bytes that a copy-start moves."""
  return int(array_bytes(copy_start.shape.tuple_shapes[0]))


def copy_seconds(size_bytes: int, to_host: bool, rates: Rates) -> float:
  """Returns the time of a copy over an idle link, 0 if its rate is unknown."""
  rate = rates.to_host_bytes_per_s if to_host else rates.from_host_bytes_per_s
  return size_bytes / (rate * rates.link_efficiency) if rate else 0.0
