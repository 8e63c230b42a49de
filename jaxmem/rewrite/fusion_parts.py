"""Parts of fusions: the body that makes only some of the outputs."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem_hlo.buffers import aliasing
from jaxmem_hlo.module import (
  Computation,
  Instruction,
  Module,
  list_in_post_order,
  shapes,
)
from jaxmem_hlo.proto import hlo_pb2

from jaxmem.graph import reachable

# Fusions whose kernel XLA derives from the body alone.
_DERIVED_KINDS = frozenset({"kLoop", "kInput"})


def can_split(module: Module, instruction: Instruction) -> bool:
  """Returns whether a fusion can be cut down to some of its outputs.

  False for anything whose code depends on more than its body: a kernel of its
  own kind, a tiling or partition that the backend chose for it, an output
  written over an operand; and where an output is just an operand.

  Args:
    module: The module.
    instruction: Any of its instructions.
  """
  proto = instruction.proto
  if (
    instruction.opcode != "fusion"
    or proto.fusion_kind not in _DERIVED_KINDS
    or proto.backend_config
    or proto.sharding
    or len(instruction.shape.tuple_shapes) < 2
    or len(instruction.callees) != 1
    or aliasing.in_place_pairs(module, instruction)
  ):
    return False
  body = module.by_id[instruction.callees[0]]
  return (
    body.root.opcode == "tuple"
    and not any(map(shapes.is_tuple, instruction.shape.tuple_shapes))
    and all(_is_computed(body, output) for output in body.root.operands)
  )


def needed_operands(
  module: Module, fusion: Instruction, outputs: Sequence[int]
) -> tuple[int, ...]:
  """Returns which operands (by number) some outputs of a fusion depend on.

  Args:
    module: The module.
    fusion: A fusion that `can_split`.
    outputs: Indices of outputs.
  """
  body = module.by_id[fusion.callees[0]]
  roots = [body.root.operands[k] for k in outputs]
  needed = _needed(body, roots)
  return tuple(n for n, p in enumerate(body.parameters) if p.id in needed)


def part_of_body(
  body: Computation, outputs: Sequence[int]
) -> tuple[hlo_pb2.Computation, tuple[int, ...]]:
  """Cuts a fusion's body down to some outputs.

  Args:
    body: The body of a fusion that `can_split`.
    outputs: Indices of the outputs to keep, ascending, at least one.

  Returns:
    A new body, listed in XLA's post order, whose instructions have the ids of
    the old one, and the numbers of the parameters that are left. With one
    output the body returns an array, otherwise a tuple.
  """
  roots = [body.root.operands[k] for k in outputs]
  needed = _needed(body, roots)
  if len(outputs) > 1:
    needed.add(body.root.id)
  kept = tuple(n for n, p in enumerate(body.parameters) if p.id in needed)
  part = hlo_pb2.Computation()
  part.CopyFrom(body.proto)
  del part.instructions[:]
  for instruction in body.instructions:
    if instruction.id in needed:
      part.instructions.append(instruction.proto)
  for proto in part.instructions:
    if proto.opcode == "parameter":
      proto.parameter_number = kept.index(proto.parameter_number)
    if proto.id == body.root.id:
      proto.operand_ids[:] = roots
      proto.shape.CopyFrom(part_of_shape(body.root.shape, outputs))
      proto.ClearField("original_value")
    predecessors = [i for i in proto.control_predecessor_ids if i in needed]
    proto.control_predecessor_ids[:] = predecessors
  part.root_id = body.root.id if len(outputs) > 1 else roots[0]
  list_in_post_order(part)
  _set_program_shape(part)
  return part, kept


def part_of_shape(
  shape: hlo_pb2.Shape, outputs: Sequence[int]
) -> hlo_pb2.Shape:
  """Returns the shape of some elements of a tuple: one is no tuple."""
  part = hlo_pb2.Shape()
  if len(outputs) == 1:
    part.CopyFrom(shape.tuple_shapes[outputs[0]])
    return part
  part.CopyFrom(shape)
  del part.tuple_shapes[:]
  part.tuple_shapes.extend(shape.tuple_shapes[k] for k in outputs)
  return part


def _is_computed(body: Computation, output: int) -> bool:
  instruction = body.by_id[output]
  while instruction.opcode == "bitcast":
    instruction = body.by_id[instruction.operands[0]]
  return instruction.opcode != "parameter"


def _needed(body: Computation, roots: Sequence[int]) -> set[int]:
  return reachable(roots, lambda i: body.by_id[i].operands)


def _set_program_shape(part: hlo_pb2.Computation) -> None:
  parameters = [i for i in part.instructions if i.opcode == "parameter"]
  parameters.sort(key=lambda i: i.parameter_number)
  (root,) = (i for i in part.instructions if i.id == part.root_id)
  shape = part.program_shape
  del shape.parameters[:], shape.parameter_names[:]
  shape.parameters.extend(p.shape for p in parameters)
  shape.parameter_names.extend(p.name for p in parameters)
  shape.result.CopyFrom(root.shape)
