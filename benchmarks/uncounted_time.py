"""Seconds of a scheduled GPU program that jaxmem's cost model leaves out.

`jaxmem.cost.step_time` waits for copies over the link where the entry waits for
them; those that loops begin and end take no time there. And it knows the bytes
of cuDNN's attention, but not its products. A step is compared with another
honestly once both are added.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxmem_hlo.module import Instruction, Module

from jaxmem import cost

# How many products attention's backward pass has for one of the forward pass:
# of five, the scores are made again.
_BACKWARD_PRODUCTS = 2.5
_ATTENTION = "__cudnn$fmha"


def loop_copies_s(module: Module, rates: cost.Rates) -> float:
  """Returns what loops take more than `cost.step_time` says, in seconds.

  Each iteration is walked as `cost.step_time` walks the entry: kernels one
  after the other, copies beside them, one at a time in each direction.

  Args:
    module: A scheduled module.
    rates: Of the device.
  """
  seconds = cost.instruction_seconds(module, rates)
  return sum(
    times * _waiting_s(module, computation_id, seconds, rates)
    for computation_id, times in _runs(module, module.entry.id)
    if computation_id != module.entry.id
  )


def attention_s(module: Module, rates: cost.Rates, flops: float) -> float:
  """Returns what the products of cuDNN's attention take besides its bytes.

  Args:
    module: A scheduled module.
    rates: Of the device.
    flops: Of each call's forward pass.
  """
  traffic = cost.TrafficCounter(module)
  total_s = 0.0
  for computation_id, times in _runs(module, module.entry.id):
    for call in module.schedule(computation_id):
      target = call.proto.custom_call_target
      if target.startswith(_ATTENTION):
        is_backward = target.endswith("Backward")
        own = flops * (_BACKWARD_PRODUCTS if is_backward else 1.0)
        num_bytes = traffic.count(call)
        total_s += times * (
          rates.seconds({"bf16": own}, 0.0, num_bytes)
          - rates.seconds({}, 0.0, num_bytes)
        )
  return total_s


def _runs(
  module: Module, computation_id: int, times: int = 1
) -> Iterator[tuple[int, int]]:
  """Yields the computations that are run by a schedule, and how often."""
  yield computation_id, times
  for instruction in module.schedule(computation_id):
    if instruction.opcode == "while":
      inner = times * cost.trip_count(instruction)
    elif instruction.opcode == "call":
      inner = times
    else:
      continue
    for callee in instruction.callees:
      yield from _runs(module, callee, inner)


def _waiting_s(
  module: Module,
  computation_id: int,
  seconds: dict[int, float],
  rates: cost.Rates,
) -> float:
  """Returns what one run takes more than the sum of its instructions."""
  now = counted_s = 0.0
  free_at = {True: 0.0, False: 0.0}
  done_at: dict[int, float] = {}
  for instruction in module.schedule(computation_id):
    counted_s += seconds[instruction.id]
    transfer = _transfer(instruction)
    if transfer is None:
      if instruction.opcode.endswith("-done"):
        now = max(now, done_at.get(instruction.operands[0], 0.0))
      now += seconds[instruction.id]
      continue
    num_bytes, to_host = transfer
    begin = max(now, free_at[to_host])
    copy_s = cost.copies.copy_seconds(num_bytes, to_host, rates)
    free_at[to_host] = done_at[instruction.id] = begin + copy_s
    now += rates.launch_s
  return now - counted_s


def _transfer(start: Instruction) -> tuple[int, bool] | None:
  """Returns the bytes that a start moves over the link, and if to the host.

  None for what stays on the device.
  """
  to_host = cost.copies.direction(start)
  if to_host is not None:
    return cost.copies.copied_bytes(start), to_host
  if start.opcode != "async-start":
    return None
  # Slices of stacks that lie in the host's memory, read or written.
  given, result = start.shape.tuple_shapes[:2]
  if result.layout.memory_space:
    parts = [
      part for part in given.tuple_shapes if not part.layout.memory_space
    ]
    return int(sum(map(cost.array_bytes, parts))), True
  if any(part.layout.memory_space for part in given.tuple_shapes):
    return int(cost.array_bytes(result)), False
  return None
