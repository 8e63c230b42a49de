"""A buffer assignment: which value lies where."""

from __future__ import annotations

import dataclasses

from jaxmem_hlo.buffers import LiveRange, LogicalBuffer, Value
from jaxmem_hlo.module import ShapeIndex
from jaxmem_hlo.proto import hlo_pb2


@dataclasses.dataclass(slots=True, eq=False)
class Allocation:
  """One block of memory that XLA asks for.

  Attributes:
    kind: "parameter" (of the entry), "constant", "output" or "temp".
    size_bytes: Its size.
    memory_space: XLA's memory space.
    parameter_number: Of a parameter allocation, else -1.
    parameter_index: Which part of that parameter.
    is_donated: Whether it is a parameter that becomes an output.
    offsets: Value -> (offset, size) in bytes.
    busy: Bit t is set when one of the values is live at time t. This and the
      next two are only kept where other buffers may move in.
    first: Time -> the value whose live range starts then.
    last: Time -> the value whose live range ends then.
  """

  kind: str
  size_bytes: int
  memory_space: int = 0
  parameter_number: int = -1
  parameter_index: ShapeIndex = ()
  is_donated: bool = False
  offsets: dict[Value, tuple[int, int]] = dataclasses.field(
    default_factory=dict
  )
  busy: int = 0
  first: dict[int, Value] = dataclasses.field(default_factory=dict)
  last: dict[int, Value] = dataclasses.field(default_factory=dict)

  def move_in(
    self, buffer: LogicalBuffer, ranges: dict[Value, LiveRange]
  ) -> None:
    """Places a whole buffer at the start of the allocation."""
    self.busy |= busy_times(buffer, ranges)[0]
    for value in buffer.values:
      self.offsets[value] = (0, buffer.size_bytes)
      self.first[ranges[value].start] = value
      self.last[ranges[value].end] = value

  def write(self, proto: hlo_pb2.BufferAllocation) -> None:
    """Fills in XLA's message for the allocation."""
    proto.size = self.size_bytes
    proto.color = self.memory_space
    proto.is_constant = self.kind == "constant"
    proto.is_entry_computation_parameter = self.kind == "parameter"
    proto.maybe_live_out = self.kind == "output" or self.is_donated
    if self.kind == "parameter":
      proto.parameter_number = self.parameter_number
      proto.parameter_shape_index.extend(self.parameter_index)
    for value, (offset, size) in self.offsets.items():
      proto.assigned.add(logical_buffer_id=value.id, offset=offset, size=size)


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
  """A whole buffer assignment.

  Attributes:
    allocations: All of them; temporaries come last, one per memory space.
    ranges: Live range of every value, in the order that was assigned.
  """

  allocations: tuple[Allocation, ...]
  ranges: dict[Value, LiveRange]

  @property
  def temp_bytes(self) -> int:
    """Bytes of temporaries, as memory_analysis reports them."""
    return sum(
      a.size_bytes
      for a in self.allocations
      if a.kind == "temp" and a.memory_space == 0
    )

  @property
  def program_bytes(self) -> int:
    """Device bytes of one execution: arguments, outputs and temporaries."""
    return sum(
      a.size_bytes
      for a in self.allocations
      if a.kind != "constant" and a.memory_space == 0
    )

  def to_proto(self) -> hlo_pb2.BufferAssignment:
    """Returns the assignment as XLA would write it, without heap traces."""
    proto = hlo_pb2.BufferAssignment()
    for value in self.ranges:
      logical = proto.logical_buffers.add(
        id=value.id, size=value.size_bytes, color=value.memory_space
      )
      logical.defined_at.instruction_id = value.instruction.id
      logical.defined_at.shape_index.extend(value.position.index)
    for index, allocation in enumerate(self.allocations):
      allocation.write(proto.allocations.add(index=index))
    return proto


def busy_times(
  buffer: LogicalBuffer, ranges: dict[Value, LiveRange]
) -> tuple[int, int]:
  """Returns when a buffer is live, and where its values begin or end.

  Both as the bits of an int: bit t stands for time t.
  """
  busy = ends = 0
  for value in buffer.values:
    live = ranges[value]
    busy |= (1 << live.end + 1) - (1 << live.start)
    ends |= (1 << live.end) | (1 << live.start)
  return busy, ends
