"""Hand-made scheduled modules with hand-made buffer assignments."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxmem_hlo import replay
from jaxmem_hlo.module import Module, shapes
from jaxmem_hlo.proto import hlo_pb2

_F32, _TUPLE, _PRED = 11, 13, 1


def array(num_elements: int) -> hlo_pb2.Shape:
  return hlo_pb2.Shape(
    element_type=_F32,
    dimensions=[num_elements],
    layout=hlo_pb2.Layout(minor_to_major=[0]),
  )


def tuple_of(*elements: hlo_pb2.Shape) -> hlo_pb2.Shape:
  return hlo_pb2.Shape(element_type=_TUPLE, tuple_shapes=elements)


SCALAR = hlo_pb2.Shape(element_type=_PRED)
VECTOR = array(4)  # 16 bytes


class ModuleBuilder:
  """Builds a scheduled module in which names stand for instructions."""

  def __init__(self):
    self.proto = hlo_pb2.Module(name="m")
    self._ids: dict[str, int] = {}
    self._shapes: dict[str, hlo_pb2.Shape] = {}
    self._computations: dict[str, int] = {}

  def computation(self, name: str, *rows: tuple[Any, ...]) -> "ModuleBuilder":
    """Adds rows (name, opcode, operands, shape, fields); the last is entry."""
    number = len(self._computations) + 1
    self._computations[name] = number
    computation = self.proto.computations.add(name=name, id=number)
    sequence = self.proto.schedule.sequences[number].instruction_ids
    for name_, opcode, operands, shape, *fields in rows:
      instruction = computation.instructions.add(
        name=name_,
        opcode=opcode,
        id=number << 32 | len(computation.instructions),
        operand_ids=[self._ids[o] for o in operands.split()],
        shape=shape,
        **(fields[0] if fields else {}),
      )
      self._ids[name_] = computation.root_id = instruction.id
      self._shapes[name_] = shape
      sequence.append(instruction.id)
    self.proto.entry_computation_id = number
    return self

  def callees(self, *names: str) -> dict[str, list[int]]:
    return {"called_computation_ids": [self._computations[n] for n in names]}

  def donate(self, number: int, output: Sequence[int] = ()) -> "ModuleBuilder":
    self.proto.input_output_alias.entries.add(
      parameter_number=number, output_shape_index=output, kind=1
    )
    return self

  def check(
    self, places: Mapping[str, tuple[str, int]], platform: str = "cpu"
  ) -> replay.ReplayReport:
    """Checks values at "name" or "name 0", each in (allocation, offset).

    Allocations are named by kind: "p0" is parameter 0, "out", "temp", "table".
    """
    assignment = hlo_pb2.BufferAssignment()
    allocations: dict[str, hlo_pb2.BufferAllocation] = {}
    for key, (home, offset) in places.items():
      name, *index = key.split()
      shape_index = tuple(map(int, index))
      shape = shapes.subshape(self._shapes[name], shape_index)
      size = shapes.top_level_bytes(shape)
      buffer = assignment.logical_buffers.add(
        id=len(assignment.logical_buffers), size=size
      )
      buffer.defined_at.instruction_id = self._ids[name]
      buffer.defined_at.shape_index.extend(shape_index)
      if home not in allocations:
        allocations[home] = assignment.allocations.add(
          index=len(allocations),
          is_entry_computation_parameter=home.startswith("p"),
          parameter_number=int(home[1:]) if home.startswith("p") else 0,
          maybe_live_out=home.startswith(("p", "out")),
        )
      allocation = allocations[home]
      allocation.size = max(allocation.size, offset + size)
      allocation.assigned.add(
        logical_buffer_id=buffer.id, offset=offset, size=size
      )
    return replay.check_assignment(Module(self.proto), assignment, platform)


def fault_kinds(report: replay.ReplayReport) -> list[str]:
  """Returns the names of the broken rules."""
  return [fault.kind.value for fault in report.faults]


def module_of(*rows: tuple[Any, ...]) -> ModuleBuilder:
  """Returns a module of parameters x and y, and of rows for the rest."""
  return ModuleBuilder().computation(
    "main",
    ("x", "parameter", "", VECTOR),
    ("y", "parameter", "", VECTOR, {"parameter_number": 1}),
    *rows,
  )


XY = {"x": ("p0", 0), "y": ("p1", 0)}
