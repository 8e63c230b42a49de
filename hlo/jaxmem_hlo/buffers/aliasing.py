"""Which outputs XLA writes over which operands.

Two relations. An in-place pair must share: the operation writes its output
into the operand's buffer, and a reader that comes later sees the new value.
A sharing pair may share: buffer assignment places the output on top of an
operand that dies at the instruction, where every output element depends only
on operand elements at the same place.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from jaxmem_hlo.module import (
  ELEMENTWISE,
  Computation,
  Instruction,
  Module,
  ShapeIndex,
  shapes,
)
from jaxmem_hlo.proto import hlo_pb2


class InPlacePair(NamedTuple):
  """Output `output_index` is written into operand `operand_number`."""

  operand_number: int
  operand_index: ShapeIndex
  output_index: ShapeIndex


def in_place_pairs(
  module: Module, instruction: Instruction
) -> list[InPlacePair]:
  """Returns the pairs that must share one buffer, other than loop carries."""
  pairs = module.in_place_pairs.get(instruction.id)
  if pairs is None:
    pairs = _find_pairs(module, instruction)
    module.in_place_pairs[instruction.id] = pairs
  return pairs


def _find_pairs(module: Module, instruction: Instruction) -> list[InPlacePair]:
  opcode = instruction.opcode
  if opcode == "dynamic-update-slice":
    return [InPlacePair(0, (), ())]
  if opcode == "scatter":
    return _per_operand((len(instruction.operands) - 1) // 2)
  if opcode == "all-reduce-start":
    return _per_operand(len(instruction.operands))
  pairs = _fusion_pairs(module, instruction) if opcode == "fusion" else []
  for entry in instruction.proto.output_operand_aliasing:
    pairs.append(
      InPlacePair(
        entry.operand_index,
        tuple(entry.operand_shape_index),
        tuple(entry.output_shape_index),
      )
    )
  return pairs


def _per_operand(count: int) -> list[InPlacePair]:
  if count == 1:
    return [InPlacePair(0, (), ())]
  return [InPlacePair(i, (), (i,)) for i in range(count)]


def _fusion_pairs(module: Module, fusion: Instruction) -> list[InPlacePair]:
  body = module.by_id[fusion.callees[0]]
  pairs = []
  for index, shape in shapes.subshapes(fusion.shape):
    if shapes.is_tuple(shape):
      continue
    writer, writer_index = _follow(body, body.root, index)
    for pair in in_place_pairs(module, writer):
      if pair.output_index != writer_index:
        continue
      operand = body.by_id[writer.operands[pair.operand_number]]
      source, source_index = _follow(body, operand, pair.operand_index)
      if source.opcode == "parameter":
        pairs.append(
          InPlacePair(source.proto.parameter_number, source_index, index)
        )
  return pairs


def _follow(
  body: Computation, instruction: Instruction, index: ShapeIndex
) -> tuple[Instruction, ShapeIndex]:
  """Follows tuples and no-ops back to where a value comes from."""
  while True:
    if instruction.opcode == "tuple" and index:
      instruction = body.by_id[instruction.operands[index[0]]]
      index = index[1:]
    elif instruction.opcode == "get-tuple-element":
      index = (instruction.proto.tuple_index, *index)
      instruction = body.by_id[instruction.operands[0]]
    elif instruction.opcode == "bitcast" and not index:
      instruction = body.by_id[instruction.operands[0]]
    else:
      return instruction, index


def can_share(
  module: Module,
  platform: str,
  operand: Instruction,
  operand_index: ShapeIndex,
  user: Instruction,
  user_index: ShapeIndex,
) -> bool:
  """Returns whether XLA may place a user's output over a dying operand.

  Args:
    module: The module of both instructions.
    platform: "cpu" or "cuda"; their fusions follow different rules.
    operand: The instruction that holds the operand, an operand of `user`.
    operand_index: Where in it.
    user: The instruction that reads the operand.
    user_index: Which of its outputs.
  """
  if operand.opcode == "constant" or user.opcode == "copy":
    return False
  operand_shape = shapes.subshape(operand.shape, operand_index)
  user_shape = shapes.subshape(user.shape, user_index)
  equal = shapes.same_shape(operand_shape, user_shape)
  if equal:
    for pair in in_place_pairs(module, user):
      if (
        pair.output_index == user_index
        and user.operands[pair.operand_number] == operand.id
        and pair.operand_index == operand_index
      ):
        return True
  if platform == "cuda" and user.opcode == "fusion":
    return _gpu_fusion_rule(module, operand, operand_shape, user, user_index)
  return equal and _default_rule(module, operand, user, user_index)


def is_elementwise_update(
  module: Module, user: Instruction, number: int, output_index: ShapeIndex
) -> bool:
  """Returns whether an output may safely overwrite an operand it reads.

  Stricter than `can_share`: every path from the operand is elementwise, of
  the output's own shape and layout, so that each element is read only where,
  and no later than when, it is written.

  Args:
    module: The module.
    user: The instruction.
    number: Which operand.
    output_index: Which of its outputs is written over the operand.
  """
  operand = user.computation.by_id[user.operands[number]]
  output_shape = shapes.subshape(user.shape, output_index)
  if not shapes.same_shape(operand.shape, output_shape):
    return False
  if user.opcode == "fusion":
    if user.proto.fusion_kind not in ("kLoop", "kInput"):
      return False
    body = module.by_id[user.callees[0]]
    return body.parameters[number].id in body.before_elementwise
  return user.opcode != "copy" and user.opcode in ELEMENTWISE


def _default_rule(
  module: Module, operand: Instruction, user: Instruction, index: ShapeIndex
) -> bool:
  opcode = user.opcode
  if opcode == "fusion":
    return _fusion_rule(module, user.operands.index(operand.id), user)
  if opcode in ("while", "conditional") or opcode in ELEMENTWISE:
    return True
  numbers = [i for i, o in enumerate(user.operands) if o == operand.id]
  if opcode in ("dynamic-update-slice", "scatter", "set-dimension-size"):
    return numbers == [0]
  if opcode == "triangular-solve":
    return numbers == [1]
  if opcode == "sort":
    if len(operand.computation.users[operand.id]) != 1:
      return False
    return len(user.operands) == 1 or [index[0]] == numbers
  return False


def _fusion_rule(module: Module, number: int, fusion: Instruction) -> bool:
  body = module.by_id[fusion.callees[0]]
  parameter = body.parameters[number]
  kind = fusion.proto.fusion_kind
  if kind == "kOutput" and body.root.opcode == "add":
    operands = [body.by_id[o] for o in body.root.operands]
    heavy = [
      i for i, o in enumerate(operands) if o.opcode in ("dot", "convolution")
    ]
    users = body.users[parameter.id]
    return (
      bool(heavy)
      and users == [body.root]
      and [i for i, o in enumerate(operands) if o is parameter]
      == [1 - heavy[0]]
    )
  return parameter.id in body.before_elementwise


def _gpu_fusion_rule(
  module: Module,
  operand: Instruction,
  operand_shape: hlo_pb2.Shape,
  user: Instruction,
  user_index: ShapeIndex,
) -> bool:
  """XLA:GPU's rule for fusions.

  The operand's elements must be read in the order in which the output is
  written, so only elementwise operations and bitcasts may lie between them.
  The first reduction among the outputs may read the operand besides, and the
  output: its kernel reduces before it writes the other outputs. A sort works
  in place.
  """
  output_shape = shapes.subshape(user.shape, user_index)
  if operand_shape.tuple_shapes or output_shape.tuple_shapes:
    return False
  if not _same_extent(operand_shape, output_shape):
    return False
  body = module.by_id[user.callees[0]]
  parameter = body.parameters[user.operands.index(operand.id)]
  output = body.root
  for i in user_index:
    output = body.by_id[output.operands[i]]
  if body.root.opcode == "sort":
    return output is parameter and body.users[parameter.id] == [body.root]
  reductions = (o for o in _outputs(body) if o.opcode == "reduce")
  return _gpu_path(body, parameter, output, next(reductions, None))


def _same_extent(a: hlo_pb2.Shape, b: hlo_pb2.Shape) -> bool:
  return shapes.num_elements(a) == shapes.num_elements(
    b
  ) and shapes.element_bytes(a.element_type) == shapes.element_bytes(
    b.element_type
  )


def _gpu_path(
  body: Computation,
  parameter: Instruction,
  output: Instruction,
  hero: Instruction | None,
) -> bool:
  writer = output
  if writer.opcode == "bitcast":
    writer = body.by_id[writer.operands[0]]
  found = False
  seen = {parameter.id}
  queue = deque([parameter])
  while queue:
    instruction = queue.popleft()
    if instruction is output:
      found = True
    if instruction is hero:
      continue
    for user in body.users[instruction.id]:
      if user is not hero and not _gpu_step(user, instruction, writer):
        return False
      if user.id not in seen:
        seen.add(user.id)
        queue.append(user)
  return found


def _gpu_step(
  user: Instruction, instruction: Instruction, writer: Instruction
) -> bool:
  """Whether the path may go from an instruction on to one of its users."""
  if user.opcode in ("bitcast", "tuple"):
    return True
  if user is writer and user.opcode == "dynamic-update-slice":
    return True
  if (
    user.opcode == "dynamic-slice"
    and writer.opcode == "dynamic-update-slice"
    and user.operands[0] == writer.operands[0]
    and user.operands[1:] == writer.operands[2:]
  ):
    return True
  return user.opcode != "copy" and user.is_elementwise_on(instruction.id)


def _outputs(body: Computation) -> list[Instruction]:
  """The fusion's outputs, with bitcasts looked through."""
  root = body.root
  outputs = (
    [body.by_id[o] for o in root.operands] if root.opcode == "tuple" else [root]
  )
  return [_follow(body, o, ())[0] for o in outputs]
