"""Reads and edits a serialized HloModuleProto.

The messages are a minimal copy of XLA's (`proto/hlo.proto`); all fields that
are not named there survive a round trip as unknown fields. Instruction ids
are unique in a module: XLA builds them from the computation's id and a local
number.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxmem_hlo.module import source_lines
from jaxmem_hlo.module.opcodes import ELEMENTWISE
from jaxmem_hlo.proto import hlo_pb2


class Instruction:
  """One HLO instruction: a read-only view with the hot fields unpacked.

  Attributes:
    proto: The message itself.
    id: Unique in the module.
    opcode: For example "fusion" or "dynamic-update-slice".
    operands: Ids of the operands, in order, with repetitions.
    callees: Ids of the called computations, in the proto's order.
    shape: What it returns.
    computation: The computation that holds the instruction.
  """

  __slots__ = (
    "callees",
    "computation",
    "id",
    "opcode",
    "operands",
    "proto",
    "shape",
  )

  callees: tuple[int, ...]
  operands: tuple[int, ...]
  shape: hlo_pb2.Shape

  def __init__(self, proto: hlo_pb2.Instruction, computation: Computation):
    self.proto = proto
    self.computation = computation
    self.id: int = proto.id
    self.opcode: str = proto.opcode

  def __getattr__(self, name: str) -> Any:
    # Only reached as long as the slot is empty: nobody asks most instructions,
    # those inside of fusions, for their operands or their shapes.
    if name == "operands":
      self.operands = tuple(self.proto.operand_ids)
      return self.operands
    if name == "callees":
      self.callees = tuple(self.proto.called_computation_ids)
      return self.callees
    if name == "shape":
      self.shape = self.proto.shape
      return self.shape
    raise AttributeError(name)

  @property
  def name(self) -> str:
    """The instruction's name, unique in the module."""
    return self.proto.name

  @property
  def control_predecessors(self) -> tuple[int, ...]:
    """Ids of the instructions that must run before this one."""
    return tuple(self.proto.control_predecessor_ids)

  def is_elementwise_on(self, operand: int) -> bool:
    """Whether each element depends on the same place of an operand alone."""
    if self.opcode == "dynamic-update-slice":
      return operand == self.operands[0] and operand not in self.operands[1:]
    return self.opcode in ELEMENTWISE

  def is_alike(self, other: Instruction) -> bool:
    """Whether it does the same as an instruction of another module.

    Args:
      other: Has the same id, in a module that this one's was made from, or the
        other way round: what both know by one id is the same, or one was put in
        the place of the other.
    """
    return (self.opcode, self.operands, self.callees) == (
      other.opcode,
      other.operands,
      other.callees,
    )

  def __repr__(self) -> str:
    return f"<{self.opcode} {self.name}>"


class Computation:
  """One HLO computation.

  Attributes:
    proto: The message itself.
    id: Unique in the module.
    name: Its name.
  """

  def __init__(self, proto: hlo_pb2.Computation):
    self.proto = proto
    self.id: int = proto.id
    self.name: str = proto.name

  @functools.cached_property
  def instructions(self) -> list[Instruction]:
    """All instructions in XLA's post order; bodies of many are never asked."""
    return [Instruction(i, self) for i in self.proto.instructions]

  @functools.cached_property
  def by_id(self) -> dict[int, Instruction]:
    """The same, by instruction id."""
    return {i.id: i for i in self.instructions}

  @functools.cached_property
  def root(self) -> Instruction:
    """The instruction whose value the computation returns.

    Raises:
      ValueError: If there is none.
    """
    if self.proto.root_id not in self.by_id:
      raise ValueError(f"Computation {self.name} has no root instruction.")
    return self.by_id[self.proto.root_id]

  @functools.cached_property
  def before_elementwise(self) -> frozenset[int]:
    """Ids of those on which only elementwise instructions and tuples depend."""
    found = set(self.by_id)
    # Those that depend on an instruction are listed behind it.
    for user in reversed(self.instructions):
      is_passing = user.id in found
      for operand in user.operands:
        if not is_passing or not (
          user.opcode == "tuple" or user.is_elementwise_on(operand)
        ):
          found.discard(operand)
    return frozenset(found)

  @functools.cached_property
  def users(self) -> dict[int, list[Instruction]]:
    """Instructions that have a given one as an operand, each once."""
    users: dict[int, list[Instruction]] = {i: [] for i in self.by_id}
    for instruction in self.instructions:
      for operand in dict.fromkeys(instruction.operands):
        users[operand].append(instruction)
    return users

  @functools.cached_property
  def callees(self) -> frozenset[int]:
    """Ids of the computations that the instructions call."""
    return frozenset(c for i in self.instructions for c in i.callees)

  @functools.cached_property
  def parameters(self) -> list[Instruction]:
    """The parameters by number."""
    found = [i for i in self.instructions if i.opcode == "parameter"]
    return sorted(found, key=lambda i: i.proto.parameter_number)

  @property
  def is_fusion(self) -> bool:
    """Whether this is the body of a fusion."""
    return self.proto.is_fusion_computation

  def __repr__(self) -> str:
    return f"<computation {self.name}>"


class Module:
  """A scheduled HLO module.

  Attributes:
    computations: All computations in XLA's post order (callees first).
    by_id: The same, by id.
    entry: The entry computation.
    in_place_pairs: What `aliasing.in_place_pairs` found so far, by instruction.
  """

  def __init__(
    self,
    proto: hlo_pb2.Module,
    computations: Iterable[Computation] | None = None,
  ):
    """Wraps a message.

    Args:
      proto: The message; the module keeps it.
      computations: Views of its computations, which the message then lacks
        until somebody asks for it: most modules are only looked at.
    """
    self._message = proto
    if computations is None:
      computations = map(Computation, proto.computations)
    self.computations = [*computations]
    self.by_id = {c.id: c for c in self.computations}
    self.in_place_pairs: dict[int, list[Any]] = {}
    if proto.entry_computation_id not in self.by_id:
      raise ValueError(f"Module {proto.name} has no entry computation.")
    self.entry = self.by_id[proto.entry_computation_id]

  @property
  def proto(self) -> hlo_pb2.Module:
    """The message itself; `set_schedule` edits it."""
    if not self._message.computations:
      self._message.computations.extend(c.proto for c in self.computations)
    return self._message

  @classmethod
  def from_bytes(cls, data: bytes) -> Module:
    """Parses a serialized HloModuleProto.

    Raises:
      ValueError: If the bytes are not such a message.
    """
    proto = hlo_pb2.Module()
    try:
      proto.ParseFromString(data)
    except Exception as error:
      raise ValueError("Not a serialized HloModuleProto.") from error
    return cls(proto)

  def to_bytes(self) -> bytes:
    """Serializes the module, unknown fields included."""
    return self.proto.SerializeToString()

  @property
  def name(self) -> str:
    """The module's name, for example "jit_train_step"."""
    return self._message.name

  def instruction(self, instruction_id: int) -> Instruction:
    """Returns an instruction of any computation by its id."""
    return self._instructions[instruction_id]

  @functools.cached_property
  def _instructions(self) -> dict[int, Instruction]:
    return {i.id: i for c in self.computations for i in c.instructions}

  @property
  def scheduled_ids(self) -> list[int]:
    """Ids of the computations that have a schedule."""
    return [c.id for c in self.computations if self.is_scheduled(c.id)]

  def is_scheduled(self, computation_id: int) -> bool:
    """Returns whether a computation has a schedule."""
    return computation_id in self._message.schedule.sequences

  def schedule(self, computation_id: int) -> list[Instruction]:
    """Returns a computation's instructions in execution order.

    Raises:
      ValueError: If the computation has no schedule.
    """
    if not self.is_scheduled(computation_id):
      raise ValueError(
        f"Computation {self.by_id[computation_id].name} is not scheduled."
      )
    by_id = self.by_id[computation_id].by_id
    ids = self._message.schedule.sequences[computation_id].instruction_ids
    return [by_id[i] for i in ids]

  def set_schedule(self, computation_id: int, ids: Sequence[int]) -> None:
    """Replaces a computation's schedule by instruction ids in order."""
    sequence = self._message.schedule.sequences[computation_id]
    del sequence.instruction_ids[:]
    sequence.instruction_ids.extend(ids)
    self.__dict__.pop("_shell", None)

  def with_schedules(self, orders: Mapping[int, Sequence[int]]) -> Module:
    """Returns a copy of the module with some schedules replaced."""
    copy = self._with(self.computations)
    copy.in_place_pairs = self.in_place_pairs
    for computation_id, ids in orders.items():
      copy.set_schedule(computation_id, ids)
    return copy

  def with_bitcasts(self, ids: Iterable[int]) -> Module:
    """Returns a copy in which some of the entry's copies are bitcasts.

    Args:
      ids: Of copy instructions of the entry that keep shape and layout.
    """
    gone = frozenset(ids)
    entry = hlo_pb2.Computation()
    entry.CopyFrom(self.entry.proto)
    for instruction in entry.instructions:
      if instruction.id in gone:
        instruction.opcode = "bitcast"
    changed = self._with(
      Computation(entry) if c is self.entry else c for c in self.computations
    )
    # Neither a copy nor a bitcast has any.
    changed.in_place_pairs = self.in_place_pairs
    return changed

  def with_computations(
    self, computations: Iterable[hlo_pb2.Computation]
  ) -> Module:
    """Returns a copy with other computations, of which some may be known.

    Args:
      computations: The messages of the new module's computations. One with the
        id of a computation of this module, but for the entry, is taken to be
        the same. Schedules of those that are not among them are dropped.
    """
    known = {c.id: c for c in self.computations if c is not self.entry}
    module = self._with(known.get(c.id) or Computation(c) for c in computations)
    sequences = module._message.schedule.sequences
    for computation_id in sequences.keys() - module.by_id.keys():
      del sequences[computation_id]
    return module

  def _with(self, computations: Iterable[Computation]) -> Module:
    proto = hlo_pb2.Module()
    proto.CopyFrom(self._shell)
    return Module(proto, computations)

  @functools.cached_property
  def _shell(self) -> hlo_pb2.Module:
    """The message without computations."""
    shell = hlo_pb2.Module()
    shell.CopyFrom(self._message)
    del shell.computations[:]
    return shell

  @functools.cached_property
  def names(self) -> frozenset[str]:
    """Names of all computations and instructions."""
    instructions = (i.name for c in self.computations for i in c.instructions)
    return frozenset((*instructions, *(c.name for c in self.computations)))

  @functools.cached_property
  def donations(self) -> dict[tuple[int, tuple[int, ...]], tuple[int, ...]]:
    """Donated inputs: (parameter number, index in it) -> output index."""
    return {
      (e.parameter_number, tuple(e.parameter_shape_index)): tuple(
        e.output_shape_index
      )
      for e in self._message.input_output_alias.entries
    }

  def source(self, instruction: Instruction) -> str:
    """Returns "file:line" of the user's code, or the op's name scope.

    Where an installed package made the operation, its line follows; see
    `source_lines`. Empty when the module knows nothing of the instruction.
    """
    metadata = instruction.proto.metadata
    if metadata.source_file:
      return f"{metadata.source_file}:{metadata.source_line}"
    frame_id = metadata.stack_frame_id
    if not frame_id:
      return metadata.op_name
    if frame_id not in self._sources:
      index = self._message.stack_frame_index
      self._sources[frame_id] = source_lines.of_frame(index, frame_id)
    return self._sources[frame_id] or metadata.op_name

  @functools.cached_property
  def _sources(self) -> dict[int, str]:
    return {}
