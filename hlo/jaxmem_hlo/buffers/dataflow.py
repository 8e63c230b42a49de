"""Which value every instruction holds at every shape index.

A value is one array (or tuple table, or token) with one definition. Most
instructions define their values; some only pass on those of others (bitcast,
tuple, get-tuple-element, while, call, conditional, asynchronous pairs). Where
two definitions meet, at the carry of a loop or the result of a conditional, a
phi value stands for both, unless they are the same value all along. This is
the view that XLA's buffer assignment has of a module.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from jaxmem_hlo.module import (
  ASYNC_STARTS,
  FORWARDS,
  OPERAND_IN_START,
  RESULT_IN_START,
  Computation,
  Instruction,
  Module,
  ShapeIndex,
  shapes,
)


class UnsupportedModuleError(Exception):
  """The module holds something this package does not understand."""


class Position(NamedTuple):
  """A place where a value appears: an instruction's output at an index."""

  instruction: Instruction
  index: ShapeIndex


class Use(NamedTuple):
  """A read of a value: operand `operand_number` of `instruction`."""

  instruction: Instruction
  operand_number: int
  index: ShapeIndex


@dataclasses.dataclass(slots=True, eq=False)
class Value:
  """One value.

  Attributes:
    id: Orders values as XLA orders them: definitions in post order, then phis.
    instruction: The defining instruction.
    position: The definition.
    size_bytes: Bytes of the buffer that holds it.
    memory_space: XLA's memory space ("color"); 0 is the device's default.
    is_phi: Whether it stands for several definitions.
    positions: All places where it appears; the definition comes first.
    uses: All reads, in no particular order.
    is_live_out: Whether the entry computation returns it.
  """

  id: int
  instruction: Instruction
  position: Position
  size_bytes: int
  memory_space: int
  is_phi: bool = False
  positions: list[Position] = dataclasses.field(default_factory=list)
  uses: list[Use] = dataclasses.field(default_factory=list)
  is_live_out: bool = False

  @property
  def name(self) -> str:
    """The defining instruction's name, with the index of a tuple element."""
    index = "".join(f".{i}" for i in self.position.index)
    return f"{self.instruction.name}{index}"

  @property
  def is_tuple_table(self) -> bool:
    """Whether it is a tuple's table of pointers."""
    instruction, index = self.position
    return shapes.is_tuple(shapes.subshape(instruction.shape, index))

  def __repr__(self) -> str:
    return f"<value {self.id} {self.instruction.name}{self.position.index}>"


Tree = dict[ShapeIndex, Value]

# The computations that these opcodes call run as part of the schedule. Others
# (reductions, fusions, sorts) call theirs once per element.
_SEQUENTIAL = frozenset({"while", "call", "conditional", "async-start"})
_UNSUPPORTED = frozenset({"send", "recv", "infeed"})
# Which part of an asynchronous pair lies where is known of these only.
_ASYNCHRONOUS = ("-start", "-update", "-done")
_PAIRED = ASYNC_STARTS | {"copy-start", *RESULT_IN_START}


def _is_modelled(opcode: str) -> bool:
  is_asynchronous = opcode.endswith(_ASYNCHRONOUS)
  return opcode in _PAIRED if is_asynchronous else opcode not in _UNSUPPORTED


class Dataflow:
  """Values of all computations that run as part of the schedule.

  Attributes:
    module: The module.
    computations: The entry and every computation that its schedule runs,
      callers before callees.
    values: All values, ordered by id.
    trees: Instruction id -> value at each index.
    callers: Computation id -> the one instruction that calls it.

  Raises:
    UnsupportedModuleError: On an instruction that is not understood, or a
      computation with several callers.
  """

  def __init__(self, module: Module):
    self.module = module
    self.trees: dict[int, Tree] = {}
    self.callers: dict[int, Instruction] = {}
    self.computations = self._sequential_computations()
    self._number = self._number_definitions()
    self._made: list[Value] = []
    self._phi_inputs: dict[Value, list[Value]] = {}
    self._forward: dict[Value, Value] = {}
    self._run(module.entry, [])
    self._replace_phis()
    self._resolve_all()
    self.values = self._collect()

  def call_in(
    self, computation: Computation, instruction: Instruction
  ) -> Instruction | None:
    """Returns what of a computation runs an instruction of another one.

    Args:
      computation: One that the schedule runs.
      instruction: Any instruction.

    Returns:
      The call, however deep the instruction lies in it; None if it is the
      computation's own, or runs elsewhere.
    """
    call = self.callers.get(instruction.computation.id)
    while call is not None and call.computation is not computation:
      call = self.callers.get(call.computation.id)
    return call if instruction.computation is not computation else None

  # The next methods find which computations run, and in what order XLA numbers
  # definitions.

  def _sequential_computations(self) -> list[Computation]:
    found: list[Computation] = []
    stack = [self.module.entry]
    while stack:
      computation = stack.pop()
      found.append(computation)
      for instruction in computation.instructions:
        if not _is_modelled(instruction.opcode):
          raise UnsupportedModuleError(
            f"Instruction {instruction.name} has opcode {instruction.opcode}."
          )
        if instruction.opcode not in _SEQUENTIAL:
          continue
        for callee in instruction.callees:
          if callee in self.callers:
            raise UnsupportedModuleError(
              f"Computation {self.module.by_id[callee].name} has several"
              " callers."
            )
          self.callers[callee] = instruction
          stack.append(self.module.by_id[callee])
    return found

  def _number_definitions(self) -> dict[int, int]:
    numbers: dict[int, int] = {}
    here = set(self.computations)
    for computation in self.module.computations:
      if computation not in here:
        continue
      for instruction in computation.instructions:
        numbers[instruction.id] = len(numbers)
    return numbers

  # The next methods make values.

  def _make(self, instruction: Instruction, index: ShapeIndex) -> Value:
    shape = shapes.subshape(instruction.shape, index)
    value = Value(
      # The final ids follow in _collect; this one only has to sort.
      id=len(self._made),
      instruction=instruction,
      position=Position(instruction, index),
      size_bytes=shapes.top_level_bytes(shape),
      memory_space=shape.layout.memory_space,
    )
    self._made.append(value)
    return value

  def _make_phi(self, instruction: Instruction, index: ShapeIndex) -> Value:
    phi = self._make(instruction, index)
    phi.is_phi = True
    self._phi_inputs[phi] = []
    return phi

  def _define_all(self, instruction: Instruction) -> Tree:
    return {
      index: self._make(instruction, index)
      for index, _ in shapes.subshapes(instruction.shape)
    }

  def _resolved(self, value: Value) -> Value:
    while value in self._forward:
      value = self._forward[value]
    return value

  # The next methods let values flow through one computation.

  def _run(self, computation: Computation, parameters: list[Tree]) -> Tree:
    for instruction in computation.instructions:
      if instruction.opcode == "parameter" and parameters:
        tree = parameters[instruction.proto.parameter_number]
      else:
        tree = self._flow(instruction)
      self.trees[instruction.id] = tree
    return self.trees[computation.root.id]

  def _flow(self, instruction: Instruction) -> Tree:
    opcode = instruction.opcode
    if opcode in FORWARDS:
      return self.trees[instruction.operands[0]]
    if opcode == "get-tuple-element":
      index = (instruction.proto.tuple_index,)
      return shapes.subtree(self.trees[instruction.operands[0]], index)
    if opcode == "tuple":
      return self._tuple(instruction)
    if opcode in RESULT_IN_START:
      start = self.trees[instruction.operands[0]]
      return shapes.subtree(start, RESULT_IN_START[opcode])
    if opcode == "copy" and shapes.is_tuple(instruction.shape):
      tree = dict(self.trees[instruction.operands[0]])
      tree[()] = self._make(instruction, ())
      return tree
    if opcode in OPERAND_IN_START:
      return self._start(instruction)
    if opcode == "async-start":
      return self._async_start(instruction)
    if opcode == "call":
      return self._call(instruction)
    if opcode == "while":
      return self._while(instruction)
    if opcode == "conditional":
      return self._conditional(instruction)
    return self._define_all(instruction)

  def _tuple(self, instruction: Instruction) -> Tree:
    tree: Tree = {(): self._make(instruction, ())}
    for i, operand in enumerate(instruction.operands):
      for index, value in self.trees[operand].items():
        tree[(i, *index)] = value
    return tree

  def _start(self, instruction: Instruction) -> Tree:
    at = OPERAND_IN_START[instruction.opcode]
    if len(instruction.operands) != 1:
      raise UnsupportedModuleError(
        f"{instruction.name} starts several transfers at once."
      )
    operand = self.trees[instruction.operands[0]]
    tree: Tree = {}
    for index, _ in shapes.subshapes(instruction.shape):
      if index[: len(at)] == at:
        tree[index] = operand[index[len(at) :]]
      else:
        tree[index] = self._make(instruction, index)
    return tree

  def _async_start(self, instruction: Instruction) -> Tree:
    operands = [self.trees[o] for o in instruction.operands]
    callee = self.module.by_id[instruction.callees[0]]
    result = self._run(callee, operands)
    tree: Tree = {}
    for index, _ in shapes.subshapes(instruction.shape):
      if index[:1] == (0,) and len(index) > 1:
        tree[index] = operands[index[1]][index[2:]]
      elif index[:1] == (1,):
        tree[index] = result[index[1:]]
      else:
        tree[index] = self._make(instruction, index)
    return tree

  def _call(self, instruction: Instruction) -> Tree:
    callee = self.module.by_id[instruction.callees[0]]
    return dict(
      self._run(callee, [self.trees[o] for o in instruction.operands])
    )

  def _while(self, instruction: Instruction) -> Tree:
    body, condition = while_computations(self.module, instruction)
    initial = self.trees[instruction.operands[0]]
    carry = {i: self._make_phi(body.parameters[0], i) for i in initial}
    root = self._run(body, [carry])
    seen = {i: self._make_phi(condition.parameters[0], i) for i in initial}
    self._run(condition, [seen])
    left = {i: self._make_phi(instruction, i) for i in initial}
    for tree in (carry, seen, left):
      for index, phi in tree.items():
        self._phi_inputs[phi] = [initial[index], root[index]]
    return left

  def _conditional(self, instruction: Instruction) -> Tree:
    roots = [
      self._run(self.module.by_id[callee], [self.trees[operand]])
      for callee, operand in zip(
        instruction.callees, instruction.operands[1:], strict=True
      )
    ]
    tree = {index: self._make_phi(instruction, index) for index in roots[0]}
    for index, phi in tree.items():
      self._phi_inputs[phi] = [root[index] for root in roots]
    return tree

  # The next methods replace phis that stand for one definition only.

  def _replace_phis(self) -> None:
    """Replaces phis by the one value that they can be, until none is left.

    Such are the phi of what a loop's body hands back untouched, and several
    phis that take what they are from each other and from one other value.
    """
    is_changed = True
    while is_changed:
      is_changed = False
      for phi in self._phi_inputs:
        replaced, by = self._replaceable(phi)
        self._forward |= dict.fromkeys(replaced, by)
        is_changed |= bool(replaced)

  def _replaceable(self, phi: Value) -> tuple[list[Value], Value]:
    """Returns the phis to replace, this one among them, and by what."""
    if phi in self._forward:
      return [], phi
    inputs = self._inputs_of(phi)
    if len(inputs) == 1:
      return [phi], inputs[0]
    phis, others = {phi: None}, dict[Value, None]()
    waiting = inputs
    while waiting:
      value = waiting.pop()
      if not value.is_phi:
        others[value] = None
        if len(others) > 1:
          return [], phi
      elif value not in phis:
        phis[value] = None
        waiting += self._inputs_of(value)
    return list(phis), next(iter(others))

  def _inputs_of(self, phi: Value) -> list[Value]:
    """Returns the values that a phi stands for, except itself."""
    inputs = dict.fromkeys(map(self._resolved, self._phi_inputs[phi]))
    return [value for value in inputs if value is not phi]

  # The next methods find final ids, positions and uses.

  def _resolve_all(self) -> None:
    for tree in self.trees.values():
      for index, value in tree.items():
        tree[index] = self._resolved(value)

  def _collect(self) -> list[Value]:
    kept = [v for v in self._made if v not in self._forward]
    kept.sort(
      key=lambda v: (
        v.is_phi,
        v.id if v.is_phi else self._number[v.instruction.id],
        v.position.index,
      )
    )
    for i, value in enumerate(kept):
      value.id = i
      value.positions.append(value.position)
    for computation in self.computations:
      for instruction in computation.instructions:
        self._add_places(instruction)
    for value in self.trees[self.module.entry.root.id].values():
      value.is_live_out = True
    return kept

  def _add_places(self, instruction: Instruction) -> None:
    for index, value in self.trees[instruction.id].items():
      position = Position(instruction, index)
      if position != value.position:
        value.positions.append(position)
    if instruction.opcode == "tuple":
      return
    top_only = instruction.opcode in ("get-tuple-element", "copy")
    for number, operand in enumerate(instruction.operands):
      for index, value in self.trees[operand].items():
        if index and top_only:
          continue
        value.uses.append(Use(instruction, number, index))


def while_computations(
  module: Module, instruction: Instruction
) -> tuple[Computation, Computation]:
  """Returns the (body, condition) of a while instruction."""
  body, condition = (module.by_id[c] for c in instruction.callees)
  if condition.root.shape.element_type != 1 or shapes.is_tuple(
    condition.root.shape
  ):
    body, condition = condition, body
  return body, condition
