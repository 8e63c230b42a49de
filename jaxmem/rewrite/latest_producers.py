"""Who holds each value as a schedule is edited, and how it is read."""

from __future__ import annotations

from jaxmem_hlo.buffers import dataflow
from jaxmem_hlo.module import Instruction, shapes
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.rewrite.module_editor import ModuleEditor
from jaxmem.rewrite.recompute_rules import RecomputeError, RecomputeRules

# What an instruction that is made again has in its name.
SUFFIX = "recompute"
# The slot of producers that were there before the walk.
_NEVER_MADE = -1


class LatestProducers:
  """The instructions emitted so far, and the latest producer of each value.

  A slot is a time of the given schedule: what happens in it comes just before
  the instruction that ran then.

  Attributes:
    emitted: The edited entry in execution order, as far as it is.
    schedule: The entry's instructions in the given order.
    times: Instruction id -> its time in the given order.

  Args:
    rules: Of the module that is edited.
    editor: Gives names and ids.
  """

  def __init__(self, rules: RecomputeRules, editor: ModuleEditor):
    module = rules.module
    self._entry = module.entry
    self._editor = editor
    self._trees = rules.analysis.dataflow.trees
    self.emitted: list[hlo_pb2.Instruction] = []
    self.schedule = module.schedule(module.entry.id)
    self.times = {i.id: t for t, i in enumerate(self.schedule)}
    self._overwritten = {
      value: self.times[writer.id]
      for value, writer in rules.overwriters.items()
    }
    # Who holds each value, and the slot in which it was made.
    self._latest: dict[dataflow.Value, tuple[int, int]] = {}
    self._views: dict[tuple[int, int], int] = {}
    self._shapes = {i.id: i.shape for i in self._entry.instructions}

  def emit(self, proto: hlo_pb2.Instruction) -> None:
    """Appends an instruction."""
    self._shapes[proto.id] = proto.shape
    self.emitted.append(proto)

  def shape_of(self, instruction_id: int) -> hlo_pb2.Shape:
    """Returns the shape of an instruction that was given or emitted."""
    return self._shapes[instruction_id]

  def set_latest(
    self, value: dataflow.Value, instruction_id: int, slot: int
  ) -> None:
    """Has whoever reads a value from a slot on read an instruction."""
    self._latest[value] = instruction_id, slot

  def resolve(self, operand: int, slot: int) -> int:
    """Returns what to read instead of an operand: the latest producer."""
    instruction = self._entry.by_id[operand]
    if instruction.opcode == "tuple":
      return self._resolve_tuple(instruction, slot)
    if shapes.is_tuple(instruction.shape):
      return operand
    value = self._trees[operand][()]
    if value not in self._latest:
      return operand
    return self._view(self._latest[value][0], instruction)

  def _resolve_tuple(self, instruction: Instruction, slot: int) -> int:
    elements = [self.resolve(o, slot) for o in instruction.operands]
    if elements == list(instruction.operands):
      return instruction.id
    proto = hlo_pb2.Instruction()
    proto.CopyFrom(instruction.proto)
    proto.id = self._editor.fresh_id()
    proto.name = self._editor.fresh_name(f"{instruction.name}.{SUFFIX}")
    proto.operand_ids[:] = elements
    del proto.control_predecessor_ids[:]
    self.emit(proto)
    return proto.id

  def _view(self, producer: int, like: Instruction) -> int:
    """A producer in the shape in which its value was read before."""
    if shapes.same_shape(self._shapes[producer], like.shape):
      return producer
    key = (producer, like.id)
    if key not in self._views:
      proto = hlo_pb2.Instruction(
        name=self._editor.fresh_name(f"{like.name}.{SUFFIX}"),
        opcode="bitcast",
        id=self._editor.fresh_id(),
        shape=like.shape,
        metadata=like.proto.metadata,
        operand_ids=[producer],
      )
      self.emit(proto)
      self._views[key] = proto.id
    return self._views[key]

  def check_operand(self, operand: int, slot: int, reader: Instruction) -> None:
    """Refuses an operand of a second run behind a write to its buffer."""
    for value in self._trees[operand].values():
      _, made = self._latest.get(value, (operand, _NEVER_MADE))
      self.check_readable(value, slot, f"a second {reader.name}", made)

  def check_readable(
    self,
    value: dataflow.Value,
    slot: int,
    reader: str,
    made: int = _NEVER_MADE,
  ) -> None:
    """Refuses a read behind the write that took the value's buffer.

    Args:
      value: What is read.
      slot: The slot of the read.
      reader: Who reads.
      made: The slot in which what is read was made.
    """
    written = self._overwritten.get(value)
    if written is not None and made <= written < slot:
      raise RecomputeError(
        f"{value.name} cannot be read by {reader} before"
        f" {self.schedule[slot].name}: {self.schedule[written].name} has"
        " already written over it in place."
      )
