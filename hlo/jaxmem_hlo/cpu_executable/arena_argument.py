"""Makes the arena of a CPU executable an argument that it also returns.

XLA:CPU allocates the temporaries anew at each call, so that the kernel hands
out empty pages for them each time. If the arena is an argument instead, donated
and returned, its caller can keep it from call to call. Nothing that runs
changes: the machine code, the thunks and their slices stay as they are, and
only the allocation that these refer to is another kind of allocation. What has
to agree with it are the places that describe the signature: the entry
computation, the module's configuration and aliases, the buffer assignment, and
what the runtime notes in front of the executable.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from jaxmem_hlo.cpu_executable import compiled_function, executable
from jaxmem_hlo.cpu_executable.errors import UnsupportedExecutableError
from jaxmem_hlo.cpu_executable.executable import CpuExecutable
from jaxmem_hlo.proto import cpu_executable_pb2, hlo_pb2

if TYPE_CHECKING:
  import jax

_NAME = "jaxmem_arena"
# These are numbers of xla.PrimitiveType and of ifrt's DTypeProto.
_U8 = 6
_TUPLE = 13
_IFRT_U8 = 6
_MAY_ALIAS = 1
_POINTER_BYTES = 8


def load_with_arena(
  compiled: jax.stages.Compiled,
  offsets_fn: executable.OffsetsFn,
  data: bytes | None = None,
) -> tuple[jax.stages.Compiled, int]:
  """Returns a compiled CPU function that takes its arena and returns it.

  Args:
    compiled: A compiled function; it stays usable.
    offsets_fn: Where to put temporaries; see `load_placed`. Where that is
      not possible, they stay where XLA put them.
    data: Its executable, serialized when it was compiled; None if it is fresh.

  Returns:
    (flat, arena_bytes). flat takes the leaves of the arguments and an arena,
    uint8[arena_bytes], which is donated. It returns a tuple: the leaves of the
    result, and the arena.

  Raises:
    UnsupportedExecutableError: If the executable, or this version of JAX, is
      not understood.
  """
  opened = compiled_function.open_compiled(compiled, data)
  read = executable.read_cpu_executable(opened.data)
  with contextlib.suppress(UnsupportedExecutableError, ValueError):
    data, _ = executable.place(read, offsets_fn)
    read = executable.read_cpu_executable(data)
  return opened.reload_flat(carry_arena(read), read.temp_bytes), read.temp_bytes


def carry_arena(read: CpuExecutable) -> bytes:
  """Returns the executable with its arena as last argument and last result.

  Both are uint8[read.temp_bytes]; the argument is donated. Its contents mean
  nothing, before and after.

  Args:
    read: The executable; it is not changed.

  Raises:
    UnsupportedExecutableError: If no tuple lists its results.
  """
  edit = _Edit(read)
  result = cpu_executable_pb2.CompilationResult()
  result.CopyFrom(read.result)
  result.hlo_module.hlo_module = edit.module()
  result.hlo_module.config = edit.config()
  result.buffer_assignment = edit.assignment()
  return read.with_result(result, edit.header())


class _Edit:
  """The parts of an executable that describe its signature, with an arena."""

  def __init__(self, read: CpuExecutable):
    self._read = read
    self._module = hlo_pb2.Module.FromString(read.hlo_module)
    self._entry = next(
      c
      for c in self._module.computations
      if c.id == self._module.entry_computation_id
    )
    root = self._find(self._entry.root_id)
    # A single array is returned as it is, without a table.
    self._is_single = not root.shape.tuple_shapes
    if root.opcode != "tuple" and not self._is_single:
      raise UnsupportedExecutableError(
        f"The results are made by {root.name}, not listed by a tuple."
      )
    self._num_results = 1 if self._is_single else len(root.operand_ids)
    self._num_parameters = len(self._entry.program_shape.parameters)
    # Ids are unique in the lower half; the upper is the computation's.
    self._id = max(i.id for i in self._entry.instructions) + 1
    self._root_id = self._id + 1 if self._is_single else root.id
    self._shape = hlo_pb2.Shape(
      element_type=_U8,
      dimensions=[read.temp_bytes],
      layout=hlo_pb2.Layout(minor_to_major=[0]),
    )

  def module(self) -> bytes:
    """Returns the module with a parameter that goes through to the result."""
    parameter = hlo_pb2.Instruction(
      name=_NAME,
      opcode="parameter",
      id=self._id,
      parameter_number=self._num_parameters,
      shape=self._shape,
    )
    self._entry.instructions.insert(0, parameter)
    sequence = self._module.schedule.sequences[self._entry.id]
    sequence.instruction_ids.insert(0, self._id)
    if self._is_single:
      sequence.instruction_ids.append(self._root_id)
      self._list_result()
    root = self._find(self._root_id)
    root.operand_ids.append(self._id)
    root.shape.tuple_shapes.append(self._shape)
    self._extend(self._entry.program_shape)
    self._extend(self._module.host_program_shape)
    self._module.input_output_alias.entries.add(
      output_shape_index=[self._num_results],
      parameter_number=self._num_parameters,
      kind=_MAY_ALIAS,
    )
    return self._module.SerializeToString()

  def config(self) -> bytes:
    """Returns the module's configuration."""
    config = hlo_pb2.ModuleConfig.FromString(
      self._read.result.hlo_module.config
    )
    self._extend(config.entry_computation_layout)
    return config.SerializeToString()

  def assignment(self) -> bytes:
    """Returns the buffer assignment: the arena is a parameter's allocation."""
    assignment = hlo_pb2.BufferAssignment()
    assignment.CopyFrom(self._read.assignment)
    size_bytes = self._read.temp_bytes
    buffer_id = max(b.id for b in assignment.logical_buffers) + 1
    assignment.logical_buffers.add(
      id=buffer_id,
      size=size_bytes,
      defined_at=hlo_pb2.BufferLocation(instruction_id=self._id),
    )
    temp = next(
      a for a in assignment.allocations if a.index == self._read.temp.index
    )
    temp.is_entry_computation_parameter = True
    temp.parameter_number = self._num_parameters
    temp.maybe_live_out = True
    temp.assigned.add(logical_buffer_id=buffer_id, size=size_bytes)
    if self._is_single:
      self._add_table(assignment, buffer_id + 1)
    self._grow_table(assignment)
    return assignment.SerializeToString()

  def header(self) -> bytes:
    """Returns the runtime's metadata, with its length in front."""
    metadata = cpu_executable_pb2.ExecutableMetadata.FromString(
      self._read.metadata
    )
    shape = cpu_executable_pb2.IfrtShape(dimensions=[self._shape.dimensions[0]])
    metadata.output_specs.add(
      shard_shape=shape,
      shape=shape,
      data_type=cpu_executable_pb2.IfrtDataType(kind=_IFRT_U8),
      memory_kind=metadata.output_specs[0].memory_kind,
    )
    metadata.parameter_specs.add(donated_input=True)
    data = metadata.SerializeToString()
    return _varint(len(data)) + data

  def _find(self, instruction_id: int) -> hlo_pb2.Instruction:
    return next(i for i in self._entry.instructions if i.id == instruction_id)

  def _list_result(self) -> None:
    """Makes a tuple of the only result the root."""
    result = self._find(self._entry.root_id)
    self._entry.instructions.add(
      name=f"{_NAME}_results",
      opcode="tuple",
      id=self._root_id,
      operand_ids=[result.id],
      shape=hlo_pb2.Shape(element_type=_TUPLE, tuple_shapes=[result.shape]),
    )
    self._entry.root_id = self._root_id
    for entry in self._module.input_output_alias.entries:
      entry.output_shape_index.insert(0, 0)

  def _extend(self, shape: hlo_pb2.ProgramShape) -> None:
    if self._is_single:
      only = hlo_pb2.Shape(element_type=_TUPLE, tuple_shapes=[shape.result])
      shape.result.CopyFrom(only)
    shape.parameters.append(self._shape)
    shape.parameter_names.append(_NAME)
    shape.result.tuple_shapes.append(self._shape)

  def _add_table(
    self, assignment: hlo_pb2.BufferAssignment, buffer_id: int
  ) -> None:
    """Adds the table of a tuple of the only result."""
    assignment.logical_buffers.add(
      id=buffer_id,
      size=_POINTER_BYTES,
      defined_at=hlo_pb2.BufferLocation(instruction_id=self._root_id),
    )
    table = assignment.allocations.add(
      index=len(assignment.allocations),
      size=_POINTER_BYTES,
      maybe_live_out=True,
      is_tuple=True,
    )
    table.assigned.add(logical_buffer_id=buffer_id, size=_POINTER_BYTES)

  def _grow_table(self, assignment: hlo_pb2.BufferAssignment) -> None:
    """Makes room for one more pointer in the table of results."""
    table = next(
      b
      for b in assignment.logical_buffers
      if b.defined_at.instruction_id == self._root_id
      and not b.defined_at.shape_index
    )
    table.size += _POINTER_BYTES
    for allocation in assignment.allocations:
      for assigned in allocation.assigned:
        if assigned.logical_buffer_id != table.id:
          continue
        if len(allocation.assigned) > 1:
          raise UnsupportedExecutableError(
            "The table of results shares its memory."
          )
        assigned.size = allocation.size = table.size


def _varint(number: int) -> bytes:
  """Encodes a number as protocol buffers do."""
  digits = []
  while number > 0x7F:
    digits.append(number & 0x7F | 0x80)
    number >>= 7
  return bytes([*digits, number])
