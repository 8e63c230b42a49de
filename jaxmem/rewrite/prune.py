"""Removes what an edited schedule computes for nobody."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem_hlo.module import RENAMES, Instruction
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.rewrite.fusion_parts import can_split, part_of_body, part_of_shape
from jaxmem.rewrite.module_editor import ModuleEditor
from jaxmem.rewrite.recompute_rules import RecomputeRules

_ELEMENT = "get-tuple-element"


class Pruner:
  """Drops instructions that lost their readers, and outputs of fusions.

  Only what may run twice may also not run at all. What nobody read before the
  edit stays.

  Args:
    rules: What may run twice in the module before the edit.
    editor: Takes the bodies of fusions that are cut down.
  """

  def __init__(self, rules: RecomputeRules, editor: ModuleEditor):
    self._module = rules.module
    self._rules = rules
    self._editor = editor
    self._readers: dict[int, list[hlo_pb2.Instruction]] = {}
    self._instead: dict[int, int] = {}

  def run(
    self, instructions: Sequence[hlo_pb2.Instruction]
  ) -> list[hlo_pb2.Instruction]:
    """Returns what is left of an edited entry, in the same order.

    Args:
      instructions: In execution order; the messages are changed.
    """
    kept: list[hlo_pb2.Instruction] = []
    # Backwards, so that all readers of an instruction are known.
    for proto in reversed(instructions):
      if proto.id not in self._readers and self._may_go(proto.id):
        continue
      original = self._module.entry.by_id.get(proto.id)
      if original is not None and can_split(self._module, original):
        self._cut(proto, original)
      for needed in (*proto.operand_ids, *proto.control_predecessor_ids):
        self._readers.setdefault(needed, []).append(proto)
      kept.append(proto)
    kept = [p for p in reversed(kept) if p.id not in self._instead]
    for proto in kept if self._instead else ():
      proto.operand_ids[:] = [
        self._instead.get(o, o) for o in proto.operand_ids
      ]
      proto.control_predecessor_ids[:] = [
        self._instead.get(o, o) for o in proto.control_predecessor_ids
      ]
    return kept

  def _may_go(self, instruction_id: int) -> bool:
    """Whether an instruction without readers is there in vain."""
    entry = self._module.entry
    original = entry.by_id.get(instruction_id)
    if original is None:
      return True
    if original is entry.root or not entry.users[original.id]:
      return False
    return original.opcode in RENAMES or original.id not in self._rules.refusals

  def _cut(self, proto: hlo_pb2.Instruction, original: Instruction) -> None:
    """Cuts a fusion down to the outputs that are still read."""
    readers = self._readers.get(proto.id, [])
    before = self._module.entry.users[original.id]
    if any(r.opcode != _ELEMENT for r in (*readers, *before)):
      return
    outputs = sorted({r.tuple_index for r in readers})
    lost = {u.proto.tuple_index for u in before}.difference(outputs)
    if not lost or not outputs:
      return
    body, kept = part_of_body(self._module.by_id[original.callees[0]], outputs)
    proto.called_computation_ids[:] = [
      self._editor.add_computation(body, "part")
    ]
    proto.operand_ids[:] = [proto.operand_ids[n] for n in kept]
    proto.shape.CopyFrom(part_of_shape(original.shape, outputs))
    proto.ClearField("original_value")
    for reader in readers:
      if len(outputs) == 1:
        self._instead[reader.id] = proto.id
      else:
        reader.tuple_index = outputs.index(reader.tuple_index)
