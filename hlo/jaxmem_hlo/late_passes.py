"""What XLA still takes out of a module after it has scheduled it.

Optimization barriers keep passes from merging or moving what lies on their two
sides. Once the order is fixed they say nothing more. Tuples of which only
elements are read go, too, on GPUs since jaxlib 0.12: a barrier leaves one, and
a step that returns an argument has one. Buffers are assigned without them; so a
plan has to be made without them.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxmem_hlo import xla_version
from jaxmem_hlo.module import Module
from jaxmem_hlo.post_order import list_in_post_order
from jaxmem_hlo.proto import hlo_pb2

_BARRIER = "opt-barrier"
_ELEMENT = "get-tuple-element"


def apply_late_passes(module: Module, platform: str) -> Module:
  """Returns a module as buffers will be assigned to it.

  Args:
    module: A scheduled module; it is not changed.
    platform: "cpu" or "cuda".

  Returns:
    The module in which users of barriers, and of elements of tuples, read what
    these read; itself if it has none. Who had to wait for a barrier need not
    any more, as in XLA; a barrier that had to wait for others stays.
  """
  has_tuples = platform == "cuda" and not xla_version.is_at_least(0, 12)
  if not _has_barriers(module) and (has_tuples or not _has_elements(module)):
    return module
  proto = hlo_pb2.Module()
  proto.CopyFrom(module.proto)
  for computation in proto.computations:
    sequences = proto.schedule.sequences
    sequence = None
    if computation.id in sequences:
      sequence = sequences[computation.id].instruction_ids
    gone = _expand(computation, has_tuples)
    if sequence is not None and gone:
      kept = [i for i in sequence if i not in gone]
      del sequence[:]
      sequence.extend(kept)
  return Module(proto)


def _has_barriers(module: Module) -> bool:
  return any(
    i.opcode == _BARRIER for c in module.computations for i in c.instructions
  )


def _has_elements(module: Module) -> bool:
  """Whether anything reads an element of a tuple that is there."""
  return any(
    i.opcode == _ELEMENT and c.by_id[i.operands[0]].opcode == "tuple"
    for c in module.computations
    for i in c.instructions
  )


def _expand(computation: hlo_pb2.Computation, has_tuples: bool) -> set[int]:
  """Takes out of a computation what goes; returns its ids."""
  instead = _replacements(computation, has_tuples)
  if not instead:
    return set()
  computation.root_id = _follow(instead, computation.root_id)
  used = {computation.root_id}
  for instruction in computation.instructions:
    if instruction.id in instead:
      continue
    operands = [_follow(instead, o) for o in instruction.operand_ids]
    waits = [p for p in instruction.control_predecessor_ids if p not in instead]
    instruction.operand_ids[:] = operands
    instruction.control_predecessor_ids[:] = waits
    used.update((*operands, *waits))
  by_id = {i.id: i for i in computation.instructions}
  read = {_follow(instead, o) for i in instead for o in by_id[i].operand_ids}
  gone = {
    i.id
    for i in computation.instructions
    if i.id in instead
    or (i.opcode == "tuple" and i.id in read and i.id not in used)
  }
  for number in reversed(range(len(computation.instructions))):
    if computation.instructions[number].id in gone:
      del computation.instructions[number]
  list_in_post_order(computation)
  return gone


def _replacements(
  computation: hlo_pb2.Computation, has_tuples: bool
) -> dict[int, int]:
  """Barriers, and elements of tuples: the ids to be read instead.

  Args:
    computation: The computation.
    has_tuples: Whether tuples stay.
  """
  by_id = {i.id: i for i in computation.instructions}
  instead: dict[int, int] = {}
  for instruction in computation.instructions:
    waits = instruction.control_predecessor_ids
    if instruction.opcode == _BARRIER and not waits:
      instead[instruction.id] = instruction.operand_ids[0]
  for instruction in computation.instructions:
    if instruction.opcode == _ELEMENT and not has_tuples:
      source = by_id[_follow(instead, instruction.operand_ids[0])]
      if source.opcode == "tuple":
        instead[instruction.id] = source.operand_ids[instruction.tuple_index]
  return instead


def _follow(instead: Mapping[int, int], instruction_id: int) -> int:
  while instruction_id in instead:
    instruction_id = instead[instruction_id]
  return instruction_id
