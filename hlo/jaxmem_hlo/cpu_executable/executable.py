"""Runs planned offsets: rewrites the arena of a compiled XLA:CPU executable.

A serialized CPU executable holds the scheduled HLO module, XLA's buffer
assignment, the machine code, and a sequence of thunks that names every buffer
as a slice (allocation, offset, size). All temporaries live in one allocation,
so another placement of them is another offset in each slice of it, and another
size of the allocation. The runtime derives the order in which thunks may run
from their slices when it loads the executable: wherever the new placement
reuses memory, it waits.

What must stay true for the machine code to stay right:

*   Values that share bytes while both are live (in-place operations) keep
    their distance. They form one rigid item.
*   XLA told LLVM that the slices of one kernel which do not share bytes do not
    alias. So all slices of a kernel count as live while it runs; this matters
    for small loops, which XLA compiles into a single kernel.
*   Kernels rely on the alignment of their arguments: 64 bytes.

Anything that is not understood raises `UnsupportedExecutableError`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from google.protobuf import message as protobuf
from google.protobuf import unknown_fields

from jaxmem_hlo.cpu_executable import arena_items, compiled_function
from jaxmem_hlo.cpu_executable.arena_items import ArenaItems, Reference
from jaxmem_hlo.cpu_executable.errors import UnsupportedExecutableError
from jaxmem_hlo.cpu_executable.placement import PlacementItem, check_placement
from jaxmem_hlo.module import Module
from jaxmem_hlo.proto import cpu_executable_pb2, hlo_pb2

if TYPE_CHECKING:
  import jax

OffsetsFn = Callable[[Sequence[PlacementItem]], tuple[Sequence[int], int]]


@dataclasses.dataclass(frozen=True, eq=False)
class CpuExecutable:
  """A parsed executable.

  Attributes:
    header: The runtime's metadata in front of the executable, as found.
    envelope: The executable with its compile options.
    result: Machine code, module and thunks.
    assignment: XLA's buffer assignment.
    module: The scheduled HLO module.
    temp: The allocation that holds all temporaries.
    slices: Every slice that the thunks refer to, in the order of the file.
  """

  header: bytes
  envelope: cpu_executable_pb2.ExecutableAndOptions
  result: cpu_executable_pb2.CompilationResult
  assignment: hlo_pb2.BufferAssignment
  module: Module
  temp: hlo_pb2.BufferAllocation
  slices: tuple[Reference, ...]

  @property
  def temp_bytes(self) -> int:
    """Size of the allocation of temporaries."""
    return self.temp.size

  @property
  def hlo_module(self) -> bytes:
    """The scheduled HloModuleProto, serialized."""
    return self.result.hlo_module.hlo_module

  @property
  def metadata(self) -> bytes:
    """The runtime's metadata, without its length."""
    return self.header[_varint_length(self.header) :]

  def with_result(
    self,
    result: cpu_executable_pb2.CompilationResult,
    header: bytes | None = None,
  ) -> bytes:
    """Returns the bytes of an executable with other contents.

    Args:
      result: Machine code, module, assignment and thunks.
      header: What stands in front; by default what stood there.
    """
    envelope = cpu_executable_pb2.ExecutableAndOptions()
    envelope.CopyFrom(self.envelope)
    envelope.serialized_executable = result.SerializeToString()
    front = self.header if header is None else header
    return front + envelope.SerializeToString()

  @functools.cached_property
  def arena(self) -> ArenaItems:
    """What may be moved in the allocation of temporaries.

    Values that share bytes while both are live are in one item; where it is not
    known when a value is used, it counts as live all the time.

    Raises:
      UnsupportedExecutableError: If a slice or a value cannot be understood.
    """
    return arena_items.find_items(
      self.module, self.assignment, self.temp, self.slices
    )


def read_cpu_executable(data: bytes) -> CpuExecutable:
  """Parses what `compiled.runtime_executable().serialize()` returns.

  Args:
    data: A freshly compiled executable. One that was loaded from bytes (or
      from JAX's compilation cache) has lost its machine code when it is
      serialized again, and is refused.

  Raises:
    UnsupportedExecutableError: If anything in it is not understood.
  """
  envelope = cpu_executable_pb2.ExecutableAndOptions()
  result = cpu_executable_pb2.CompilationResult()
  assignment = hlo_pb2.BufferAssignment()
  try:
    start = _header_length(data)
    envelope.ParseFromString(data[start:])
    result.ParseFromString(envelope.serialized_executable)
    assignment.ParseFromString(result.buffer_assignment)
    module = Module.from_bytes(result.hlo_module.hlo_module)
  except (protobuf.DecodeError, StopIteration, ValueError) as error:
    raise UnsupportedExecutableError(
      "The bytes are not a serialized XLA:CPU executable."
    ) from error
  if result.SerializeToString() != envelope.serialized_executable:
    raise UnsupportedExecutableError(
      "The executable does not survive parsing: its format is not known."
    )
  slices = tuple(_references(result.thunk_sequence))
  _check_symbols(result, slices)
  temp = _temp_allocation(assignment)
  return CpuExecutable(
    data[:start], envelope, result, assignment, module, temp, slices
  )


def rewrite_offsets(
  executable: CpuExecutable, offsets: Sequence[int], size_bytes: int
) -> bytes:
  """Returns the executable with its temporaries elsewhere.

  Args:
    executable: The executable; it is not changed.
    offsets: New offset of each item of `executable.arena`, in bytes.
    size_bytes: New size of the allocation of temporaries.

  Raises:
    ValueError: If values would overlap, or leave the arena.
    UnsupportedExecutableError: As `CpuExecutable.arena`.
  """
  planned = executable.arena
  check_placement(planned.items, offsets, size_bytes)
  moves = [
    new - item.offset_bytes
    for item, new in zip(planned.items, offsets, strict=True)
  ]
  result = cpu_executable_pb2.CompilationResult()
  result.CopyFrom(executable.result)
  for i, reference in enumerate(_references(result.thunk_sequence)):
    if i in planned.item_of_slice:
      reference.slice.offset += moves[planned.item_of_slice[i]]
  assignment = hlo_pb2.BufferAssignment()
  assignment.CopyFrom(executable.assignment)
  temp = _temp_allocation(assignment)
  for assigned in temp.assigned:
    item = planned.item_of_buffer.get(assigned.logical_buffer_id)
    # What has no bytes is in no item; it must not point outside either.
    assigned.offset = assigned.offset + moves[item] if item is not None else 0
  temp.size = size_bytes
  result.buffer_assignment = assignment.SerializeToString()
  return executable.with_result(result)


def place(
  executable: CpuExecutable, offsets_fn: OffsetsFn
) -> tuple[bytes, int]:
  """Returns an executable with planned offsets, and the size of its arena.

  Args:
    executable: The executable; it is not changed.
    offsets_fn: As `load_placed` takes it.

  Raises:
    UnsupportedExecutableError: As `CpuExecutable.arena`.
    ValueError: If `offsets_fn` returned an invalid placement.
  """
  offsets, size_bytes = offsets_fn(executable.arena.items)
  return rewrite_offsets(executable, offsets, size_bytes), size_bytes


def load_placed(
  compiled: jax.stages.Compiled, offsets_fn: OffsetsFn
) -> jax.stages.Compiled:
  """Returns a compiled CPU function that runs with planned offsets.

  Args:
    compiled: A freshly compiled function; it stays usable. It should not have
      run yet: XLA cannot serialize a sort once it has.
    offsets_fn: Returns the offset of each item and the size of the arena, in
      bytes.

  Returns:
    A `jax.stages.Compiled` that is called like the original, with the same
    donation, shardings and text, and whose `memory_analysis()` reports the
    planned size as `temp_size_in_bytes`.

  Raises:
    UnsupportedExecutableError: If the executable, or this version of JAX, is
      not understood; use `compiled` itself then.
    ValueError: If `offsets_fn` returned an invalid placement.
  """
  opened = compiled_function.open_compiled(compiled)
  executable = read_cpu_executable(opened.data)
  data, size_bytes = place(executable, offsets_fn)
  planned = opened.reload(data)
  analysis = planned.memory_analysis()
  if analysis is None or analysis.temp_size_in_bytes != size_bytes:
    raise UnsupportedExecutableError(
      f"The loaded executable does not report the {size_bytes} bytes of"
      " temporaries that were planned."
    )
  return planned


def _header_length(data: bytes) -> int:
  """Length of the metadata in front, with the varint that gives it."""
  width = _varint_length(data)
  length = sum((data[i] & 0x7F) << 7 * i for i in range(width))
  return width + length


def _varint_length(data: bytes) -> int:
  """Bytes of the varint that data begins with."""
  return next(i for i in range(len(data)) if data[i] < 0x80) + 1


def _references(
  sequence: cpu_executable_pb2.ThunkSequence,
) -> Iterator[Reference]:
  """Yields all slices of a sequence, those of nested thunks included."""
  _check_known(sequence, "The sequence")
  for thunk in sequence.thunks:
    if thunk.WhichOneof("impl") is None:
      raise UnsupportedExecutableError(
        f"Thunk {thunk.info.op_name} is of unknown kind {thunk.kind}."
      )
    yield from _references_in(thunk, thunk)


def _check_known(message: protobuf.Message, name: str) -> None:
  found = unknown_fields.UnknownFieldSet(message)
  if len(found):
    raise UnsupportedExecutableError(
      f"{name} has an unknown field {found[0].field_number}, which may refer"
      " to a buffer."
    )


def _references_in(
  message: protobuf.Message, thunk: cpu_executable_pb2.Thunk
) -> Iterator[Reference]:
  _check_known(message, f"Thunk {thunk.info.op_name} ({thunk.kind})")
  for field, value in message.ListFields():
    if field.message_type is None:
      continue
    children = [value] if isinstance(value, protobuf.Message) else value
    for child in children:
      if isinstance(child, cpu_executable_pb2.ThunkSequence):
        yield from _references(child)
      elif isinstance(child, cpu_executable_pb2.Slice):
        yield Reference(thunk, child)
      else:
        yield from _references_in(child, thunk)


def _check_symbols(
  result: cpu_executable_pb2.CompilationResult, slices: Sequence[Reference]
) -> None:
  present = {s.name for s in result.compiled_symbols}
  for thunk, _ in slices:
    needed = thunk.kernel.kernel_name or thunk.sort.comparator_name
    if needed and (needed not in present or not result.object_files):
      raise UnsupportedExecutableError(
        f"The machine code of {needed} is missing: the executable was loaded,"
        " not compiled."
      )


def _temp_allocation(
  assignment: hlo_pb2.BufferAssignment,
) -> hlo_pb2.BufferAllocation:
  found = [
    a
    for a in assignment.allocations
    if not (
      a.is_thread_local
      or a.is_entry_computation_parameter
      or a.is_constant
      or a.maybe_live_out
    )
  ]
  if not found:
    raise UnsupportedExecutableError("There are no temporaries to place.")
  if len(found) > 1:
    raise UnsupportedExecutableError(
      f"Expected one allocation of temporaries, got {len(found)}."
    )
  return found[0]
