"""Proves that a buffer assignment keeps every value until its last read.

Translation validation: the scheduled module is executed on symbols. Memory is
a map from byte ranges to versions; a version is what one execution of an
instruction leaves at one shape index. In the order of the schedule every
instruction reads its operands, which must be found whole and in the version
that the operand's definition stands for, and then writes its outputs over
whatever was there. Nothing is taken from XLA's liveness analysis or from this
package's prediction of it, so a mistake in either shows up as a fault.

How each kind of control flow is covered:

- A loop runs two iterations. When those find no fault, carried values are in
  distinct places exactly if they are different versions, before and after an
  iteration alike; every further iteration then reads and writes what the
  second did. No iteration at all is right because the loop's result is in the
  place of its initial value.
- Each branch of a conditional starts from the same memory; after it, the
  writes of all of them count.
- An asynchronous operation writes when it starts, and all that it reads and
  writes must still be in place when it is done, so nothing in between may
  touch it.

Tuple tables are treated like arrays, as XLA's buffer assignment does, although
neither backend's generated code reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jaxmem_hlo.buffers import (
  BufferAnalysis,
  UnsupportedModuleError,
  while_computations,
)
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
from jaxmem_hlo.proto import hlo_pb2
from jaxmem_hlo.replay.accesses import Accesses, Reads
from jaxmem_hlo.replay.memory import Tree, Version
from jaxmem_hlo.replay.placed_values import (
  Fault,
  FaultKind,
  PlacedValues,
  order_faults,
  place_faults,
)

_NUM_ITERATIONS = 2
_MAX_SHOWN_FAULTS = 20


class FaultyAssignmentError(Exception):
  """A buffer assignment or its schedule breaks a rule.

  Attributes:
    faults: All of them.
  """

  def __init__(self, faults: tuple[Fault, ...]):
    self.faults = faults
    shown = [str(fault) for fault in faults[:_MAX_SHOWN_FAULTS]]
    if len(faults) > len(shown):
      shown.append(f"and {len(faults) - len(shown)} more")
    super().__init__("; ".join(shown))


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayReport:
  """What a replay found.

  Attributes:
    num_reads: Checked reads, of every iteration and branch that was run.
    num_writes: Writes of values, constants and parameters included.
    faults: Broken rules, each once, in the order in which they were met.
      Where a schedule is out of order or a value has no place, nothing is
      replayed and only such faults are given.
  """

  num_reads: int
  num_writes: int
  faults: tuple[Fault, ...]

  def raise_if_faulty(self) -> None:
    """Raises FaultyAssignmentError if there are faults."""
    if self.faults:
      raise FaultyAssignmentError(self.faults)


def check_assignment(
  module: Module, assignment: hlo_pb2.BufferAssignment, platform: str
) -> ReplayReport:
  """Checks that every read of a scheduled module finds the value it should.

  Args:
    module: A scheduled module.
    assignment: The buffer assignment that XLA made for it, or one that is to
      replace it.
    platform: "cpu" or "cuda"; their fusions differ in which outputs may be
      written over operands.

  Returns:
    The number of checks and the faults; deterministic.

  Raises:
    ValueError: If the platform is neither.
    UnsupportedModuleError: If the module or the assignment holds something
      that is not understood.
  """
  if platform not in ("cpu", "cuda"):
    raise ValueError(f'platform must be "cpu" or "cuda", got {platform!r}.')
  analysis = BufferAnalysis(module)
  placed = PlacedValues(module, analysis.dataflow, assignment)
  faults = order_faults(module, analysis.dataflow)
  faults += [f for f in placed.faults if f.kind is FaultKind.UNASSIGNED]
  if faults:
    return ReplayReport(0, 0, tuple(faults))
  access = Accesses(analysis, placed, platform)
  _Replay(module, access).run(analysis.dataflow.computations)
  faults = [*placed.faults, *place_faults(placed), *access.faults]
  return ReplayReport(
    access.num_reads, len(access.writes), tuple(dict.fromkeys(faults))
  )


class _Replay:
  """Executes a module on symbols.

  Each instruction gives a tree: the version that its shape has at each index.
  """

  def __init__(self, module: Module, access: Accesses):
    self._module = module
    self._access = access
    self._trees: dict[int, Tree] = {}
    self._constants: dict[int, Tree] = {}
    # What must not change until an asynchronous start is done, by the start's
    # id.
    self._windows: dict[int, list[Version]] = {}
    self._rules: dict[str, Callable[[Instruction, int], Tree]] = {
      **dict.fromkeys(FORWARDS, self._forward),
      **dict.fromkeys(ASYNC_STARTS, self._start),
      **dict.fromkeys(RESULT_IN_START, self._done),
      "constant": self._constant,
      "copy": self._copy,
      "get-tuple-element": self._element,
      "tuple": self._tuple,
      "call": self._call,
      "while": self._while,
      "conditional": self._conditional,
    }

  def run(self, computations: Sequence[Computation]) -> None:
    """Executes the entry computation and reads its outputs.

    Args:
      computations: All that the entry runs, itself included.
    """
    entry = self._module.entry
    for computation in computations:
      for instruction in computation.instructions:
        if instruction.opcode == "constant":
          self._constants[instruction.id] = self._access.preset(instruction)
    outputs = self._run(
      entry, [self._access.preset(p) for p in entry.parameters]
    )
    step = len(self._module.schedule(entry.id))
    self._access.read(entry.root, step, entry.root, outputs)

  def _run(self, computation: Computation, parameters: list[Tree]) -> Tree:
    schedule = self._module.schedule(computation.id)
    for step, instruction in enumerate(schedule):
      if instruction.opcode == "parameter":
        tree = parameters[instruction.proto.parameter_number]
      else:
        tree = self._execute(instruction, step)
      self._trees[instruction.id] = tree
    for instruction in schedule:
      if instruction.id in self._windows:
        raise UnsupportedModuleError(
          f"{instruction.name} is not done when {computation.name} ends."
        )
    return self._trees[computation.root.id]

  def _execute(self, instruction: Instruction, step: int) -> Tree:
    rule = self._rules.get(instruction.opcode, self._compute)
    return rule(instruction, step)

  def _compute(self, instruction: Instruction, step: int) -> Tree:
    if instruction.opcode.endswith(("-start", "-done", "-update")):
      raise UnsupportedModuleError(
        f"Instruction {instruction.name} has opcode {instruction.opcode}."
      )
    reads = self._read_all(instruction, step)
    return self._access.define(instruction, step, {}, reads)

  # The next rules are of instructions that pass values on.

  def _constant(self, instruction: Instruction, step: int) -> Tree:
    del step  # It was written before the program started.
    return self._constants[instruction.id]

  def _forward(self, instruction: Instruction, step: int) -> Tree:
    del step  # It neither reads nor writes.
    return self._operand(instruction, 0)

  def _element(self, instruction: Instruction, step: int) -> Tree:
    self._read_top(instruction, step)
    prefix = (instruction.proto.tuple_index,)
    return shapes.subtree(self._operand(instruction, 0), prefix)

  def _tuple(self, instruction: Instruction, step: int) -> Tree:
    return self._access.define(
      instruction, step, self._passed_on(instruction), {}
    )

  def _copy(self, instruction: Instruction, step: int) -> Tree:
    # A copy of a tuple has a table of its own, but the same elements.
    reads = self._read_top(instruction, step)
    kept = dict(self._operand(instruction, 0))
    del kept[()]
    return self._access.define(instruction, step, kept, reads)

  def _operand(self, instruction: Instruction, number: int) -> Tree:
    return self._trees[instruction.operands[number]]

  def _operands(self, instruction: Instruction) -> list[Tree]:
    return [self._trees[operand] for operand in instruction.operands]

  def _passed_on(self, instruction: Instruction) -> Tree:
    """Returns the operands as elements of one tuple."""
    return {
      (number, *index): version
      for number, operand in enumerate(self._operands(instruction))
      for index, version in operand.items()
    }

  # The next rules are of control flow.

  def _call(self, call: Instruction, step: int) -> Tree:
    del step  # The reads are those of the callee.
    callee = self._module.by_id[call.callees[0]]
    return self._run(callee, self._operands(call))

  def _while(self, loop: Instruction, step: int) -> Tree:
    body, condition = while_computations(self._module, loop)
    self._read_all(loop, step)
    carry = self._operand(loop, 0)
    self._test(loop, step, condition, carry)
    for _ in range(_NUM_ITERATIONS):
      carry = self._run(body, [carry])
      self._access.read(loop, step, body.root, carry)
      self._test(loop, step, condition, carry)
    return carry

  def _test(
    self, loop: Instruction, step: int, condition: Computation, carry: Tree
  ) -> None:
    predicate = self._run(condition, [carry])
    self._access.read(loop, step, condition.root, predicate)

  def _conditional(self, choice: Instruction, step: int) -> Tree:
    self._read_all(choice, step)
    before = self._access.memory
    results: list[Tree] = []
    written: list[Version] = []
    for number, callee in enumerate(choice.callees, start=1):
      branch = self._module.by_id[callee]
      mark = len(self._access.writes)
      self._access.memory = before.copy()
      results.append(self._run(branch, [self._operand(choice, number)]))
      self._access.read(choice, step, branch.root, results[-1])
      written += self._access.writes[mark:]
    self._access.memory = before
    for version in written:
      self._access.memory.write(version)
    same = {
      index: version
      for index, version in results[0].items()
      if all(result[index] is version for result in results)
    }
    return self._access.define(choice, step, same, {})

  def _start(self, start: Instruction, step: int) -> Tree:
    mark = len(self._access.writes)
    reads = self._read_all(start, step)
    if start.opcode == "async-start":
      callee = self._module.by_id[start.callees[0]]
      result = self._run(callee, self._operands(start))
      kept = _prefixed(self._passed_on(start), (0,)) | _prefixed(result, (1,))
    else:
      at = OPERAND_IN_START.get(start.opcode)
      kept = {} if at is None else _prefixed(self._operand(start, 0), at)
    tree = self._access.define(start, step, kept, reads)
    touched = dict.fromkeys([*reads, *self._access.writes[mark:]])
    # An operand that its own operation replaced in place is gone already.
    self._windows[start.id] = [
      v for v in touched if self._access.memory.holds(v)
    ]
    return tree

  def _done(self, done: Instruction, step: int) -> Tree:
    start = self._module.instruction(done.operands[0])
    if start.id not in self._windows:
      raise UnsupportedModuleError(f"{done.name} ends what was not started.")
    for version in self._windows.pop(start.id):
      self._access.check_held(done, step, start, (), version)
    prefix = RESULT_IN_START[done.opcode]
    return shapes.subtree(self._operand(done, 0), prefix)

  # The next methods read operands.

  def _read_all(self, reader: Instruction, step: int) -> Reads:
    """Reads all operands; returns where each version was read."""
    reads: Reads = {}
    for number, operand in enumerate(reader.operands):
      source = self._module.instruction(operand)
      self._access.read(reader, step, source, self._trees[operand])
      for index, version in self._trees[operand].items():
        reads.setdefault(version, []).append((number, index))
    return reads

  def _read_top(self, reader: Instruction, step: int) -> Reads:
    """Reads the table of the operand, a tuple."""
    source = self._module.instruction(reader.operands[0])
    top = self._operand(reader, 0)[()]
    self._access.read(reader, step, source, {(): top})
    return {top: [(0, ())]}


def _prefixed(tree: Tree, prefix: ShapeIndex) -> Tree:
  return {(*prefix, *index): version for index, version in tree.items()}
