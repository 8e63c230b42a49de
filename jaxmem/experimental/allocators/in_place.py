"""Which buffers are written over which: chosen once, for every allocator."""

from __future__ import annotations

from collections.abc import Callable

from jaxmem.experimental.allocators.trace import Trace


def hand_overs(
  trace: Trace, allowed: Callable[[int, int], bool] | None = None
) -> dict[int, int]:
  """Chooses an operand for each buffer that may be written over one.

  In the order of the allocations; an operand is given away once, and to no
  buffer larger than itself.

  Args:
    trace: The step.
    allowed: Of an operand and an output, whether the pair may be used; all if
      None.

  Returns:
    Output -> operand.
  """
  found: dict[int, int] = {}
  taken: set[int] = set()
  for output in trace.requested:
    for operand in trace.reusable.get(output, ()):
      fits = _size(trace, output) <= _size(trace, operand)
      if not fits or operand in taken:
        continue
      if allowed is None or allowed(operand, output):
        found[output] = operand
        taken.add(operand)
        break
  return found


def chains(trace: Trace, over: dict[int, int]) -> list[list[int]]:
  """Returns the requested buffers in groups that lie at one address.

  Args:
    trace: The step.
    over: Output -> operand, as `hand_overs` returns it.

  Returns:
    Each buffer once; a group begins with its largest buffer and goes on in the
    order in which they overwrite one another. Groups are ordered by their
    first allocation.
  """
  chain_of: dict[int, list[int]] = {}
  groups = []
  for buffer in trace.requested:
    if buffer in over:
      chain = chain_of[over[buffer]]
    else:
      chain = []
      groups.append(chain)
    chain.append(buffer)
    chain_of[buffer] = chain
  return groups


def _size(trace: Trace, buffer: int) -> int:
  return trace.buffers[buffer].size_bytes
