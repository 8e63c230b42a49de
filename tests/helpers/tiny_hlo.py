"""Builds tiny scheduled HLO modules by hand.

    builder = tiny_hlo.Builder()
    main = builder.computation("main")
    x = main.parameter(tiny_hlo.f32(4))
    y = main.op("tanh", tiny_hlo.f32(4), x)
    module = builder.module(main)

The last instruction of a computation is its root, unless `root` says
otherwise; instructions are scheduled in the order in which they are made.
"""

import contextlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from jaxmem_hlo.module import Instruction, Module, xla_version
from jaxmem_hlo.proto import hlo_pb2

_PRED, _S32, _F32, _TUPLE, _TOKEN = 1, 4, 11, 13, 17


def _array(
  element_type: int, dimensions: Sequence[int], memory_space: int = 0
) -> hlo_pb2.Shape:
  return hlo_pb2.Shape(
    element_type=element_type,
    dimensions=dimensions,
    layout=hlo_pb2.Layout(
      minor_to_major=reversed(range(len(dimensions))),
      memory_space=memory_space,
    ),
  )


def f32(*dimensions: int, memory_space: int = 0) -> hlo_pb2.Shape:
  """Returns the shape of a float array, four bytes per element."""
  return _array(_F32, dimensions, memory_space)


def s32(*dimensions: int) -> hlo_pb2.Shape:
  """Returns the shape of an integer array, four bytes per element."""
  return _array(_S32, dimensions)


def pred() -> hlo_pb2.Shape:
  """Returns the shape of a truth value, one byte."""
  return _array(_PRED, ())


def token() -> hlo_pb2.Shape:
  """Returns the shape of a token, which has no bytes."""
  return hlo_pb2.Shape(element_type=_TOKEN)


def tuple_of(*shapes: hlo_pb2.Shape) -> hlo_pb2.Shape:
  """Returns the shape of a tuple; its table takes eight bytes per element."""
  return hlo_pb2.Shape(element_type=_TUPLE, tuple_shapes=shapes)


@contextlib.contextmanager
def jaxlib(version: str) -> Iterator[None]:
  """Makes modules look to the models as they do to a version's XLA."""
  with mock.patch.object(importlib.metadata, "version", lambda _: version):
    xla_version.is_at_least.cache_clear()
    try:
      yield
    finally:
      xla_version.is_at_least.cache_clear()


class ComputationBuilder:
  """Adds instructions to one computation."""

  def __init__(self, proto: hlo_pb2.Computation, *, is_scheduled: bool):
    self.proto = proto
    self.is_scheduled = is_scheduled
    self._shapes: dict[int, hlo_pb2.Shape] = {}
    self._num_parameters = 0

  def op(
    self,
    opcode: str,
    shape: hlo_pb2.Shape,
    *operands: int,
    name: str = "",
    calls: Sequence["ComputationBuilder"] = (),
    after: Sequence[int] = (),
    aliasing: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]] = (),
    **fields: Any,
  ) -> int:
    """Adds an instruction and makes it the root; returns its id.

    Args:
      opcode: Its opcode.
      shape: What it returns.
      *operands: Ids of its operands.
      name: Its name; made from the opcode if empty.
      calls: Computations that it calls.
      after: Ids of its control predecessors.
      aliasing: (operand, index in it, index in the output) of every output
        that is written over an operand.
      **fields: Other fields of the message.
    """
    number = len(self.proto.instructions)
    instruction = self.proto.instructions.add(
      id=self.proto.id << 32 | number,
      name=name or f"{opcode}.{self.proto.id}.{number}",
      opcode=opcode,
      shape=shape,
      operand_ids=operands,
      control_predecessor_ids=after,
      called_computation_ids=[c.proto.id for c in calls],
      **fields,
    )
    for operand, operand_index, output_index in aliasing:
      instruction.output_operand_aliasing.add(
        operand_index=operand,
        operand_shape_index=operand_index,
        output_shape_index=output_index,
      )
    self._shapes[instruction.id] = shape
    self.proto.root_id = instruction.id
    return instruction.id

  def parameter(self, shape: hlo_pb2.Shape, name: str = "") -> int:
    """Adds the next parameter."""
    self._num_parameters += 1
    return self.op(
      "parameter",
      shape,
      name=name,
      parameter_number=self._num_parameters - 1,
    )

  def element(self, operand: int, index: int, name: str = "") -> int:
    """Adds a get-tuple-element."""
    shape = self._shapes[operand].tuple_shapes[index]
    return self.op(
      "get-tuple-element", shape, operand, name=name, tuple_index=index
    )

  def tuple(self, *operands: int, name: str = "") -> int:
    """Adds a tuple."""
    shape = tuple_of(*(self._shapes[o] for o in operands))
    return self.op("tuple", shape, *operands, name=name)

  def root(self, instruction_id: int) -> None:
    """Makes an instruction the root."""
    self.proto.root_id = instruction_id


class Builder:
  """Makes a module of computations, callees first."""

  def __init__(self):
    self._computations: list[ComputationBuilder] = []

  def computation(
    self, name: str, *, is_scheduled: bool = True
  ) -> ComputationBuilder:
    """Adds a computation that runs as part of the schedule."""
    number = len(self._computations) + 1
    proto = hlo_pb2.Computation(name=name, id=number)
    made = ComputationBuilder(proto, is_scheduled=is_scheduled)
    self._computations.append(made)
    return made

  def fusion(self, name: str) -> ComputationBuilder:
    """Adds the body of a fusion."""
    made = self.computation(name, is_scheduled=False)
    made.proto.is_fusion_computation = True
    return made

  def module(
    self,
    entry: ComputationBuilder,
    donations: Sequence[tuple[int, tuple[int, ...]]] = (),
  ) -> Module:
    """Returns the module.

    Args:
      entry: The entry computation.
      donations: (parameter number, output index) of each donated parameter.
    """
    proto = hlo_pb2.Module(
      name="jit_tiny", id=1, entry_computation_id=entry.proto.id
    )
    for number, index in donations:
      proto.input_output_alias.entries.add(
        parameter_number=number, output_shape_index=index
      )
    for computation in self._computations:
      proto.computations.append(computation.proto)
      if computation.is_scheduled:
        ids = [i.id for i in computation.proto.instructions]
        proto.schedule.sequences[computation.proto.id].instruction_ids[:] = ids
    return Module(proto)


def named(module: Module, name: str) -> Instruction:
  """Returns an instruction by its name."""
  (found,) = [
    i for c in module.computations for i in c.instructions if i.name == name
  ]
  return found


def loop(*, kinds: str, is_one_initial: bool = False) -> Module:
  """Returns a module with one loop over a counter and f32[8] values.

  Args:
    kinds: One letter for each value: "k" if the body keeps it, "u" if it
      updates it, "n" if it hands back the next one instead, "s" if it swaps it
      with the next one, which is "s" too.
    is_one_initial: Whether all values are `initial0` at first.
  """
  builder = Builder()
  carried = tuple_of(s32(), *(f32(8) for _ in kinds))
  condition = builder.computation("condition")
  seen = condition.parameter(carried, "seen")
  counter = condition.element(seen, 0)
  limit = condition.op("constant", s32())
  condition.op("compare", pred(), counter, limit, name="test")

  body = builder.computation("body")
  carry = body.parameter(carried, "carry")
  counter = body.element(carry, 0)
  one = body.op("constant", s32())
  count = body.op("add", s32(), counter, one, name="count")
  old = [body.element(carry, i + 1) for i in range(len(kinds))]
  new = []
  for i, kind in enumerate(kinds):
    if kind == "k":
      new.append(old[i])
    elif kind == "u":
      new.append(body.op("dot", f32(8), old[i], name=f"update{i}"))
    elif kind == "n":
      new.append(old[i + 1])
    else:
      first = kinds[:i].count("s") % 2 == 0
      new.append(old[i + 1 if first else i - 1])
  body.tuple(count, *new, name="next")

  main = builder.computation("main")
  zero = main.op("constant", s32(), name="zero")
  values = [
    main.parameter(f32(8), name=f"initial{i}") for i in range(len(kinds))
  ]
  if is_one_initial:
    values = values[:1] * len(kinds)
  start = main.tuple(zero, *values, name="start")
  main.op("while", carried, start, calls=(body, condition), name="loop")
  return builder.module(main)
