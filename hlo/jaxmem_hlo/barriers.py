"""Optimization barriers, which XLA takes out after it has scheduled a module.

They keep passes from merging or moving what lies on their two sides. Once the
order is fixed they say nothing more, and buffers are assigned without them; so
a plan has to be made without them, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxmem_hlo.module import Module
from jaxmem_hlo.post_order import list_in_post_order
from jaxmem_hlo.proto import hlo_pb2

_BARRIER = "opt-barrier"


def expand_barriers(module: Module) -> Module:
  """Returns a module in which users of barriers read what the barriers read.

  Args:
    module: A scheduled module; it is not changed.

  Returns:
    The module itself if it has no barriers. Who had to wait for a barrier need
    not any more, as in XLA; a barrier that had to wait for others stays.
  """
  if not any(
    i.opcode == _BARRIER for c in module.computations for i in c.instructions
  ):
    return module
  proto = hlo_pb2.Module()
  proto.CopyFrom(module.proto)
  for computation in proto.computations:
    sequences = proto.schedule.sequences
    sequence = None
    if computation.id in sequences:
      sequence = sequences[computation.id].instruction_ids
    gone = _expand(computation)
    if sequence is not None and gone:
      kept = [i for i in sequence if i not in gone]
      del sequence[:]
      sequence.extend(kept)
  return Module(proto)


def _expand(computation: hlo_pb2.Computation) -> set[int]:
  """Takes the barriers out of a computation; returns the ids that are gone."""
  instead = _replacements(computation)
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
  tuples = {_follow(instead, i) for i in instead}
  gone = {
    i.id
    for i in computation.instructions
    if i.id in instead
    or (i.opcode == "tuple" and i.id in tuples and i.id not in used)
  }
  for number in reversed(range(len(computation.instructions))):
    if computation.instructions[number].id in gone:
      del computation.instructions[number]
  list_in_post_order(computation)
  return gone


def _replacements(computation: hlo_pb2.Computation) -> dict[int, int]:
  """Barriers, and what is picked out of them: the ids to be read instead."""
  by_id = {i.id: i for i in computation.instructions}
  instead: dict[int, int] = {}
  for instruction in computation.instructions:
    waits = instruction.control_predecessor_ids
    if instruction.opcode == _BARRIER and not waits:
      instead[instruction.id] = instruction.operand_ids[0]
  for instruction in computation.instructions:
    if instruction.opcode == "get-tuple-element":
      operand = instruction.operand_ids[0]
      source = by_id[_follow(instead, operand)]
      if operand in instead and source.opcode == "tuple":
        instead[instruction.id] = source.operand_ids[instruction.tuple_index]
  return instead


def _follow(instead: Mapping[int, int], instruction_id: int) -> int:
  while instruction_id in instead:
    instruction_id = instead[instruction_id]
  return instruction_id
