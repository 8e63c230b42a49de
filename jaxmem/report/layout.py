"""From a predicted buffer assignment to the buffers of a Plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxmem_hlo.assignment import Allocation, Assignment
from jaxmem_hlo.buffers import Value
from jaxmem_hlo.module import Module

from jaxmem.report.operations import OperationNames
from jaxmem.report.value_origins import ValueOrigins


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBuffer:
  """Where one value lives, and when.

  Attributes:
    name: The instruction that defines it, with its output index.
    size_bytes: Its size.
    allocation: "temp", or the slot it lies in: "argument 3", "output 0".
    offset_bytes: Where in the allocation.
    start: First step at which it is live, on the flattened schedule.
    end: One past the last such step.
    source: Where in the user's program it comes from.
    kind: "residuals", "parameter gradients", ...; `docs/explain.md` lists them.
      Empty where nobody asked.
    module: The scopes that it comes from: "Net/Block_3"; empty if not known.
    operation: What makes it, by jax's name; empty if not known.
  """

  name: str
  size_bytes: int
  allocation: str
  offset_bytes: int
  start: int
  end: int
  source: str = ""
  kind: str = ""
  module: str = ""
  operation: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
  """All buffers of one version of the program, and its live bytes.

  Attributes:
    buffers: Every value in the device's memory that is not a constant.
    peak_step: The step with the most live bytes in the temp allocation.
    max_live_bytes: Live bytes of the temp allocation at that step.
    temp_bytes: Size of the temp allocation.
    num_steps: Length of the flattened schedule.
  """

  buffers: tuple[PlannedBuffer, ...]
  peak_step: int
  max_live_bytes: int
  temp_bytes: int
  num_steps: int

  @property
  def fragmentation_bytes(self) -> int:
    """Bytes of the temp allocation beyond its most live bytes."""
    return self.temp_bytes - self.max_live_bytes

  def at_peak(self) -> list[PlannedBuffer]:
    """Returns the temporaries live at the peak, largest first.

    Of several values at one place, the one that came last is named.
    """
    found = {
      b.offset_bytes: b
      for b in sorted(self.buffers, key=lambda b: (b.start, b.name))
      if b.allocation == "temp" and b.start <= self.peak_step < b.end
    }
    return sorted(found.values(), key=lambda b: (-b.size_bytes, b.name))


def describe(
  module: Module,
  assignment: Assignment,
  origins: ValueOrigins | None = None,
) -> Layout:
  """Lists where every value lives and when.

  Args:
    module: The module that was assigned.
    assignment: A buffer assignment of it.
    origins: Where its values come from, to be told of each; None for no kinds,
      modules and operations.

  Returns:
    The layout; constants are left out, and so are empty values and those in the
    host's memory.
  """
  buffers = []
  names = OperationNames(module)
  num_outputs = 0
  temps: list[PlannedBuffer] = []
  for allocation in assignment.allocations:
    if allocation.kind == "constant":
      continue
    name = _name(allocation, num_outputs)
    num_outputs += allocation.kind == "output"
    if allocation.memory_space:
      # What is in the host's memory takes none of the device's.
      continue
    found = _buffers(names, assignment, allocation, name)
    if allocation.kind == "temp":
      temps.extend(found)
    buffers.extend(found)
  if origins is not None:
    values = {v.name: v for v in assignment.ranges}
    buffers = [_with_origin(b, values[b.name], origins) for b in buffers]
  num_steps = 1 + max((r.end for r in assignment.ranges.values()), default=0)
  live = live_bytes(temps, num_steps)
  return Layout(
    buffers=tuple(buffers),
    peak_step=int(np.argmax(live)),
    max_live_bytes=int(live.max(initial=0)),
    temp_bytes=assignment.temp_bytes,
    num_steps=num_steps,
  )


def _name(allocation: Allocation, num_outputs: int) -> str:
  if allocation.kind == "parameter":
    return f"argument {allocation.parameter_number}"
  if allocation.kind == "output":
    return f"output {num_outputs}"
  return allocation.kind


def _buffers(
  names: OperationNames,
  assignment: Assignment,
  allocation: Allocation,
  name: str,
) -> list[PlannedBuffer]:
  ranges = assignment.ranges
  places = {v: offset for v, (offset, _) in allocation.offsets.items()}
  starts = {(offset, ranges[v].start) for v, offset in places.items()}
  found = []
  for value, offset in places.items():
    live = ranges[value]
    # Where another value takes over the place, the step belongs to that one.
    hands_over = live.end > live.start and (offset, live.end) in starts
    if value.size_bytes:
      found.append(
        PlannedBuffer(
          name=value.name,
          size_bytes=value.size_bytes,
          allocation=name,
          offset_bytes=offset,
          start=live.start,
          end=live.end if hands_over else live.end + 1,
          source=names.source(*value.position),
        )
      )
  return found


def _with_origin(
  buffer: PlannedBuffer, value: Value, origins: ValueOrigins
) -> PlannedBuffer:
  kind = origins.kind(value)
  return dataclasses.replace(
    buffer,
    kind=kind,
    module="/".join(origins.module(value, kind)),
    operation=origins.operation(value),
  )


def live_bytes(buffers: Iterable[PlannedBuffer], num_steps: int) -> np.ndarray:
  """Returns the bytes of the buffers live at each step, int64 `[num_steps]`."""
  change = np.zeros(num_steps + 1, np.int64)
  for buffer in buffers:
    change[buffer.start] += buffer.size_bytes
    change[buffer.end] -= buffer.size_bytes
  return np.cumsum(change)[:num_steps]
