"""Where a buffer assignment puts every value, and the rules on places alone.

These rules hold whatever the program does: every value has room for its bytes,
values that an operation passes on without a copy stay where they are, and
outputs are where the caller looks for them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from jaxmem_hlo.buffers import (
  Dataflow,
  UnsupportedModuleError,
  Value,
  aliasing,
  while_computations,
)
from jaxmem_hlo.module import Computation, Instruction, Module, ShapeIndex
from jaxmem_hlo.proto import hlo_pb2
from jaxmem_hlo.replay.memory import Place, describe


class FaultKind(enum.StrEnum):
  """What is wrong.

  Attributes:
    ORDER: A schedule misses or repeats an instruction, or runs it too early.
    UNASSIGNED: A value has no place, or several.
    SIZE: A place has not its value's size, or ends outside its allocation.
    CARRY: A loop, conditional or call passes on a value from another place
      than the one in which it is expected.
    IN_PLACE: An output is not in the operand that it is written into.
    DONATION: An output is not in its donated parameter, or in a parameter
      that was not donated for it.
    OUTPUT: An output is not an allocation that the caller receives.
    OVERLAP: An instruction writes over an operand that it still reads, or
      over another of its own outputs.
    READ_ONLY: A constant or a parameter that is not donated is written.
    LATE_READ: A read of a version that an in-place write, a donated output,
      or a loop has already replaced by the next version.
    OVERWRITTEN: A read of a value whose bytes another value has taken.
    MISPLACED: A read of a value from another place than it was written to.
  """

  ORDER = "order"
  UNASSIGNED = "unassigned"
  SIZE = "size"
  CARRY = "carry"
  IN_PLACE = "in-place"
  DONATION = "donation"
  OUTPUT = "output"
  OVERLAP = "overlap"
  READ_ONLY = "read-only"
  LATE_READ = "late-read"
  OVERWRITTEN = "overwritten"
  MISPLACED = "misplaced"


class Fault(NamedTuple):
  """One broken rule.

  Attributes:
    kind: Which rule.
    message: A sentence that names the instructions, places and steps.
  """

  kind: FaultKind
  message: str

  def __str__(self) -> str:
    return f"{self.kind}: {self.message}"


class PlacedValues:
  """The place of every value of a module.

  Attributes:
    module: The module.
    dataflow: Its values.
    allocations: By index.
    places: Value -> its place; values without one are missing.
    faults: What is wrong with single places.

  Args:
    module: A scheduled module.
    dataflow: Its values.
    assignment: XLA's buffer assignment of the same module.

  Raises:
    UnsupportedModuleError: If the assignment places a value that the dataflow
      analysis does not see.
  """

  def __init__(
    self,
    module: Module,
    dataflow: Dataflow,
    assignment: hlo_pb2.BufferAssignment,
  ):
    self.module = module
    self.dataflow = dataflow
    self.allocations = {a.index: a for a in assignment.allocations}
    self.places: dict[Value, Place] = {}
    self.faults: list[Fault] = []
    assigned = _assigned(assignment)
    for value in dataflow.values:
      key = (value.instruction.id, value.position.index)
      self._add(value, assigned.pop(key, []))
    for instruction_id, index in assigned:
      self._check_unseen(module.instruction(instruction_id), index)

  def place(self, instruction: Instruction, index: ShapeIndex) -> Place:
    """Returns where an instruction's output at an index is found."""
    return self.places[self.dataflow.trees[instruction.id][index]]

  def is_read_only(self, allocation: int) -> bool:
    """Returns whether the program must not write to an allocation."""
    found = self.allocations[allocation]
    if found.is_constant:
      return True
    parameter = (found.parameter_number, tuple(found.parameter_shape_index))
    return (
      found.is_entry_computation_parameter
      and parameter not in self.module.donations
    )

  def _add(self, value: Value, parts: list[tuple[int, Place]]) -> None:
    name = describe(*value.position)
    if len(parts) != 1:
      where = ", ".join(str(place) for _, place in parts) or "none"
      message = f"{name} must have one place, got {where}"
      self.faults.append(Fault(FaultKind.UNASSIGNED, message))
      return
    declared_bytes, place = parts[0]
    self.places[value] = place
    if value.size_bytes != declared_bytes or value.size_bytes != place.size:
      message = (
        f"{name} has {value.size_bytes} bytes, the assignment says"
        f" {declared_bytes} and sets aside {place}"
      )
      self.faults.append(Fault(FaultKind.SIZE, message))
    available = self.allocations[place.allocation].size
    if place.offset < 0 or place.end > available:
      message = f"{name} is in {place}, which has {available} bytes"
      self.faults.append(Fault(FaultKind.SIZE, message))

  def _check_unseen(self, instruction: Instruction, index: ShapeIndex) -> None:
    # Constants of computations that run once per element are placed too.
    runs = instruction.computation in self.dataflow.computations
    if runs or instruction.opcode != "constant":
      raise UnsupportedModuleError(
        f"XLA places {describe(instruction, index)} of"
        f" {instruction.computation.name}, which is not seen as a value."
      )


def _assigned(
  assignment: hlo_pb2.BufferAssignment,
) -> dict[tuple[int, ShapeIndex], list[tuple[int, Place]]]:
  """Returns (declared bytes, place) by (instruction id, index)."""
  buffers = {b.id: b for b in assignment.logical_buffers}
  places: dict[tuple[int, ShapeIndex], list[tuple[int, Place]]] = {}
  for allocation in assignment.allocations:
    if allocation.is_thread_local:
      continue
    for part in allocation.assigned:
      buffer = buffers[part.logical_buffer_id]
      defined = buffer.defined_at
      key = (defined.instruction_id, tuple(defined.shape_index))
      place = Place(allocation.index, part.offset, part.size)
      places.setdefault(key, []).append((buffer.size, place))
  return places


def order_faults(module: Module, dataflow: Dataflow) -> list[Fault]:
  """Checks that each computation runs each instruction once and in order."""
  return [
    Fault(FaultKind.ORDER, message)
    for computation in dataflow.computations
    for message in _order_messages(module, computation)
  ]


def _order_messages(module: Module, computation: Computation) -> Iterable[str]:
  if not module.is_scheduled(computation.id):
    yield f"{computation.name} has no schedule"
    return
  ids = module.proto.schedule.sequences[computation.id].instruction_ids
  steps: dict[int, int] = {}
  for step, i in enumerate(ids):
    if i not in computation.by_id:
      yield f"step {step} of {computation.name} runs unknown instruction {i}"
    elif i in steps:
      name = computation.by_id[i].name
      yield f"{name} runs at step {steps[i]} and again at step {step}"
    else:
      steps[i] = step
  for instruction in computation.instructions:
    if instruction.id not in steps:
      yield f"{instruction.name} is not in the schedule of {computation.name}"
      continue
    step = steps[instruction.id]
    needed = (*instruction.operands, *instruction.control_predecessors)
    for i in dict.fromkeys(needed):
      if steps.get(i, -1) >= step:
        yield (
          f"{instruction.name} runs at step {step} of {computation.name},"
          f" before {computation.by_id[i].name} at step {steps[i]}, which it"
          " needs"
        )


def place_faults(placed: PlacedValues) -> list[Fault]:
  """Checks the places that have to be the same, and the outputs'."""
  faults: list[Fault] = []
  for computation in placed.dataflow.computations:
    for instruction in computation.instructions:
      if instruction.opcode == "while":
        faults += _while_faults(placed, instruction)
      elif instruction.opcode == "conditional":
        faults += _conditional_faults(placed, instruction)
      else:
        faults += _in_place_faults(placed, instruction)
  return faults + _output_faults(placed)


def _same_tree(
  placed: PlacedValues, a: Instruction, b: Instruction, owner: Instruction
) -> list[Fault]:
  faults = []
  for index in placed.dataflow.trees[a.id]:
    here, there = placed.place(a, index), placed.place(b, index)
    if here != there:
      message = (
        f"{owner.name} passes on {describe(a, index)} in {here}, but"
        f" {describe(b, index)} is in {there}"
      )
      faults.append(Fault(FaultKind.CARRY, message))
  return faults


def _while_faults(placed: PlacedValues, loop: Instruction) -> list[Fault]:
  body, condition = while_computations(placed.module, loop)
  initial = placed.module.instruction(loop.operands[0])
  places = (body.parameters[0], condition.parameters[0], body.root, loop)
  return [
    fault
    for place in places
    for fault in _same_tree(placed, initial, place, loop)
  ]


def _conditional_faults(
  placed: PlacedValues, choice: Instruction
) -> list[Fault]:
  return [
    fault
    for callee in choice.callees
    for fault in _same_tree(
      placed, placed.module.by_id[callee].root, choice, choice
    )
  ]


def _in_place_faults(
  placed: PlacedValues, instruction: Instruction
) -> list[Fault]:
  faults = []
  for pair in aliasing.in_place_pairs(placed.module, instruction):
    operand = placed.module.instruction(
      instruction.operands[pair.operand_number]
    )
    read = placed.place(operand, pair.operand_index)
    written = placed.place(instruction, pair.output_index)
    if read != written:
      message = (
        f"{describe(instruction, pair.output_index)} is in {written}, but is"
        f" written into {describe(operand, pair.operand_index)} in {read}"
      )
      faults.append(Fault(FaultKind.IN_PLACE, message))
  return faults


def _output_faults(placed: PlacedValues) -> list[Fault]:
  root = placed.module.entry.root
  donated = {
    output: parameter for parameter, output in placed.module.donations.items()
  }
  faults: list[Fault] = []
  for index in placed.dataflow.trees[root.id]:
    place = placed.place(root, index)
    if not place.size:
      continue
    fault = _output_fault(placed, describe(root, index), place, donated, index)
    if fault is not None:
      faults.append(fault)
  return faults


def _output_fault(
  placed: PlacedValues,
  name: str,
  place: Place,
  donated: dict[ShapeIndex, tuple[int, ShapeIndex]],
  index: ShapeIndex,
) -> Fault | None:
  allocation = placed.allocations[place.allocation]
  if index in donated:
    number, parameter_index = donated[index]
    parameter = placed.module.entry.parameters[number]
    expected = placed.place(parameter, parameter_index)
    if place.allocation != expected.allocation or place.offset:
      return Fault(
        FaultKind.DONATION,
        f"output {name} is in {place}, but {describe(parameter)} in {expected}"
        " was donated for it",
      )
  elif allocation.is_entry_computation_parameter:
    return Fault(
      FaultKind.DONATION,
      f"output {name} is in {place} of parameter"
      f" {allocation.parameter_number}, which was not donated for it",
    )
  if place.offset or not allocation.maybe_live_out:
    return Fault(
      FaultKind.OUTPUT,
      f"output {name} is in {place}, which is not where an allocation that"
      " the caller receives begins",
    )
  return None
