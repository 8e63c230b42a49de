"""What XLA still takes out of a module after it has scheduled it.

Optimization barriers keep passes from merging or moving what lies on their two
sides. Once the order is fixed they say nothing more. Tuples of which only
elements are read go, too, on GPUs since jaxlib 0.12: a barrier leaves one, and
a step that returns an argument has one; and so do those that only put together
again what was one tuple. What nobody reads any more goes with them, unless it
has a side effect: a barrier may have kept products alive that no one wants.
Buffers are assigned without all that; so a plan has to be made without it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Collection, Mapping, Sequence

from jaxmem_hlo.module import shapes, xla_version
from jaxmem_hlo.module.hlo_module import Module
from jaxmem_hlo.module.post_order import list_in_post_order
from jaxmem_hlo.proto import hlo_pb2

_BARRIER = "opt-barrier"
_ELEMENT = "get-tuple-element"
_HasEffect = Callable[[hlo_pb2.Instruction], bool]
# Opcodes that begin so stay although nobody reads them.
_EFFECTS = ("infeed", "outfeed", "recv", "rng-get-and-update-state", "send")


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
  if not _may_change(module, has_tuples):
    return module
  proto = hlo_pb2.Module()
  proto.CopyFrom(module.proto)
  sequences = proto.schedule.sequences
  has_effect = _effects(proto)
  by_id = {computation.id: computation for computation in proto.computations}
  for computation in proto.computations:
    gone = _expand(computation, has_tuples, has_effect)
    if not gone:
      continue
    _merge_operands(computation, by_id)
    if computation.id in sequences:
      ids = sequences[computation.id].instruction_ids
      ids[:] = [i for i in ids if i not in gone]
  return Module(proto)


def _may_change(module: Module, has_tuples: bool) -> bool:
  """Whether there are barriers, or tuples that go.

  Args:
    module: The module.
    has_tuples: Whether elements and tuples stay.
  """
  for computation in module.computations:
    # Read of the messages: nobody else asks most computations.
    opcodes = {i.opcode for i in computation.proto.instructions}
    if _BARRIER in opcodes:
      return True
    may_go = not has_tuples and {_ELEMENT, "tuple"} <= opcodes
    if may_go and _replacements(computation.proto, has_tuples):
      return True
  return False


def _effects(proto: hlo_pb2.Module) -> _HasEffect:
  """Returns what says of an instruction whether it has a side effect."""
  computations = {c.id: c.instructions for c in proto.computations}

  @functools.cache
  def has_within(computation_id: int) -> bool:
    return any(map(has_effect, computations[computation_id]))

  def has_effect(instruction: hlo_pb2.Instruction) -> bool:
    return (
      instruction.opcode.startswith(_EFFECTS)
      or instruction.opcode.endswith(("-start", "-done"))
      or instruction.custom_call_has_side_effect
      or any(map(has_within, instruction.called_computation_ids))
    )

  return has_effect


def _expand(
  computation: hlo_pb2.Computation, has_tuples: bool, has_effect: _HasEffect
) -> set[int]:
  """Takes out of a computation what goes; returns its ids."""
  instead = _replacements(computation, has_tuples)
  if not instead:
    return set()
  _redirect(computation, instead)
  gone = _unused(computation, instead, has_effect)
  _remove(computation, gone)
  return gone


def _redirect(
  computation: hlo_pb2.Computation, instead: Mapping[int, int]
) -> None:
  """Lets all read what is to be read instead; nobody waits for the former."""
  computation.root_id = _follow(instead, computation.root_id)
  for instruction in computation.instructions:
    if instruction.id not in instead:
      waits = instruction.control_predecessor_ids
      instruction.operand_ids[:] = [
        _follow(instead, o) for o in instruction.operand_ids
      ]
      waits[:] = [p for p in waits if p not in instead]


def _remove(computation: hlo_pb2.Computation, gone: Collection[int]) -> None:
  """Deletes what nothing reads, and lists the rest as XLA does."""
  for number in reversed(range(len(computation.instructions))):
    if computation.instructions[number].id in gone:
      del computation.instructions[number]
  list_in_post_order(computation)


def _merge_operands(
  computation: hlo_pb2.Computation, by_id: Mapping[int, hlo_pb2.Computation]
) -> None:
  """Has fusions read each operand once, as XLA has where it replaces one.

  Not custom ones, whose kernels may count on their operands.

  Args:
    computation: The computation, in which operands were replaced.
    by_id: All computations.
  """
  for instruction in computation.instructions:
    operands = instruction.operand_ids
    if (
      instruction.opcode == "fusion"
      and instruction.fusion_kind != "kCustom"
      and not instruction.output_operand_aliasing
      and len({*operands}) < len(operands)
    ):
      _merge_parameters(by_id[instruction.called_computation_ids[0]], operands)
      operands[:] = [*dict.fromkeys(operands)]


def _merge_parameters(
  body: hlo_pb2.Computation, operands: Sequence[int]
) -> None:
  """Makes one parameter of a fusion's body of those that are one operand.

  Args:
    body: The body.
    operands: The operand of each of its parameters.
  """
  parameters = {
    i.parameter_number: i for i in body.instructions if i.opcode == "parameter"
  }
  # By operand, the id of the parameter that stays.
  first: dict[int, int] = {}
  instead: dict[int, int] = {}
  merged: list[int] = []
  for number, operand in enumerate(operands):
    parameter = parameters[number]
    if operand in first:
      instead[parameter.id] = first[operand]
      merged.append(number)
    else:
      parameter.parameter_number = len(first)
      first[operand] = parameter.id
  _redirect(body, instead)
  _remove(body, instead)
  shape = body.program_shape
  for number in reversed(merged):
    del shape.parameters[number : number + 1]
    del shape.parameter_names[number : number + 1]


def _unused(
  computation: hlo_pb2.Computation,
  instead: Mapping[int, int],
  has_effect: _HasEffect,
) -> set[int]:
  """What is read no more, and what only such things read.

  Parameters stay, and so does what others wait for, or what waits for others.

  Args:
    computation: The computation, in which nothing reads what is replaced.
    instead: What is replaced.
    has_effect: What has a side effect stays.
  """
  by_id = {i.id: i for i in computation.instructions}
  num_reads = collections.Counter(
    needed
    for i in computation.instructions
    if i.id not in instead
    for needed in (*i.operand_ids, *i.control_predecessor_ids)
  )
  num_reads[computation.root_id] += 1
  gone = set(instead)
  stack = [_follow(instead, o) for i in instead for o in by_id[i].operand_ids]
  while stack:
    instruction = by_id[stack.pop()]
    if (
      instruction.id not in gone
      and not num_reads[instruction.id]
      and not instruction.control_predecessor_ids
      and instruction.opcode != "parameter"
      and not has_effect(instruction)
    ):
      gone.add(instruction.id)
      num_reads.subtract(instruction.operand_ids)
      stack += instruction.operand_ids
  return gone


def _replacements(
  computation: hlo_pb2.Computation, has_tuples: bool
) -> dict[int, int]:
  """Barriers, elements of tuples, tuples of all elements: what to read instead.

  Args:
    computation: The computation.
    has_tuples: Whether tuples stay.
  """
  by_id = {i.id: i for i in computation.instructions}
  instead: dict[int, int] = {}
  # Operands are listed first.
  for instruction in computation.instructions:
    if instruction.opcode == _BARRIER:
      if not instruction.control_predecessor_ids:
        instead[instruction.id] = instruction.operand_ids[0]
    elif instruction.opcode == _ELEMENT and not has_tuples:
      source = by_id[_follow(instead, instruction.operand_ids[0])]
      if source.opcode == "tuple":
        instead[instruction.id] = source.operand_ids[instruction.tuple_index]
    elif instruction.opcode == "tuple" and not has_tuples:
      operands = [by_id[_follow(instead, o)] for o in instruction.operand_ids]
      whole = _whole(operands)
      if whole is not None:
        source = by_id[_follow(instead, whole)]
        if shapes.same_shape(source.shape, instruction.shape):
          instead[instruction.id] = source.id
  return instead


def _whole(operands: Sequence[hlo_pb2.Instruction]) -> int | None:
  """Of what operands are elements 0, 1, and so on, if of anything."""
  sources = {o.operand_ids[0] for o in operands if o.opcode == _ELEMENT}
  if len(sources) != 1 or any(
    o.opcode != _ELEMENT or o.tuple_index != n for n, o in enumerate(operands)
  ):
    return None
  return sources.pop()


def _follow(instead: Mapping[int, int], instruction_id: int) -> int:
  while instruction_id in instead:
    instruction_id = instead[instruction_id]
  return instruction_id
