"""The nodes of a computation, and what must run before each of them.

Parameters and constants come first in every order, and instructions that only
rename values (bitcast, tuple, get-tuple-element) follow at once when their
operands are there; none of these costs memory, so none of them is a node.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from jaxmem_hlo.buffers import UnsupportedModuleError
from jaxmem_hlo.module import (
  RENAMES,
  STATEFUL_PREFIXES,
  Computation,
  Instruction,
  Module,
)

from jaxmem.graph.topological import topological_order

# Instructions that run the schedule of another computation.
CALLERS = frozenset({"async-start", "call", "conditional", "while"})
_FIRST_OPCODES = frozenset({"parameter", "constant"})
_NO_NODES = _FIRST_OPCODES | RENAMES
# Stateful by their prefix, but only who reads their results can tell when these
# run.
_FREE_TO_MOVE = frozenset({"copy-done", "copy-start", "rng-bit-generator"})


class HloNodes:
  """The instructions of a computation that an order is about.

  Attributes:
    instructions: In the order of the module's schedule.
    index: Instruction id -> its number.
    predecessors: For each node, the nodes that must run before it: data and
      control dependencies, the order of side effects, and whatever is added.
    num_pinned: Nodes with side effects; they keep their mutual order.

  Args:
    module: A scheduled module.
    computation: One that it schedules.
  """

  def __init__(self, module: Module, computation: Computation):
    self._module = module
    self._computation = computation
    schedule = module.schedule(computation.id)
    self.instructions = [i for i in schedule if i.opcode not in _NO_NODES]
    self.index = {i.id: n for n, i in enumerate(self.instructions)}
    self.predecessors = self._dependencies()
    self.num_pinned = self._pin_ordered()

  def is_completed_by(self, writer: int, node: int) -> bool:
    """Whether a node is the second half of an asynchronous writer."""
    return (
      self.instructions[node].opcode.endswith("-done")
      and self.instructions[writer].id in self.instructions[node].operands
    )

  def repair_order(self) -> dict[int, int]:
    """Renumbers the nodes where a predecessor comes after its node.

    Returns:
      Old number -> new number; empty if the order was right.

    Raises:
      UnsupportedModuleError: If the predecessors form a cycle.
    """
    if all(max(p, default=-1) < n for n, p in enumerate(self.predecessors)):
      return {}
    numbers = range(len(self.instructions))
    order = topological_order(self.predecessors, numbers)
    if len(order) < len(numbers):
      raise UnsupportedModuleError(
        f"{self._computation.name}: its in-place writes and their readers form"
        " a cycle."
      )
    renumbered = {old: new for new, old in enumerate(order)}
    self.instructions = [self.instructions[n] for n in order]
    self.index = {i.id: n for n, i in enumerate(self.instructions)}
    self.predecessors = [
      {renumbered[p] for p in self.predecessors[n]} for n in order
    ]
    return renumbered

  def _dependencies(self) -> list[set[int]]:
    behind: dict[int, set[int]] = {}
    predecessors: list[set[int]] = [set() for _ in self.instructions]
    for instruction in self._module.schedule(self._computation.id):
      found: set[int] = set()
      for needed in (*instruction.operands, *instruction.control_predecessors):
        found |= behind[needed]
      if instruction.id in self.index:
        node = self.index[instruction.id]
        predecessors[node] = found
        found = {node}
      behind[instruction.id] = found
    return predecessors

  def _pin_ordered(self) -> int:
    pinned = [n for n, i in enumerate(self.instructions) if self._is_ordered(i)]
    for before, after in itertools.pairwise(pinned):
      self.predecessors[after].add(before)
    return len(pinned)

  def _is_ordered(self, instruction: Instruction) -> bool:
    if instruction.proto.custom_call_has_side_effect:
      return True
    if instruction.opcode in _FREE_TO_MOVE:
      return False
    if instruction.opcode.startswith(STATEFUL_PREFIXES):
      return True
    if instruction.opcode in CALLERS:
      return any(
        self._is_ordered(inner)
        for callee in instruction.callees
        for inner in self._module.by_id[callee].instructions
      )
    return False


def full_schedule(
  computation: Computation, nodes: Iterable[Instruction]
) -> list[int]:
  """Returns the ids of all instructions in execution order.

  Args:
    computation: The computation.
    nodes: Those of its instructions that are nodes, in execution order.
  """
  # How many operands each renaming instruction waits for, and who waits.
  waiting: dict[int, int] = {}
  dependents: dict[int, list[Instruction]] = {}
  for instruction in computation.instructions:
    if instruction.opcode in RENAMES:
      needed = {*instruction.operands, *instruction.control_predecessors}
      waiting[instruction.id] = len(needed)
      for operand in needed:
        dependents.setdefault(operand, []).append(instruction)
  first = [
    i
    for i in computation.instructions
    if i.opcode in _FIRST_OPCODES or waiting.get(i.id) == 0
  ]
  order: list[int] = []
  for instruction in itertools.chain(first, nodes):
    stack = [instruction]
    while stack:
      done = stack.pop()
      order.append(done.id)
      for dependent in reversed(dependents.get(done.id, ())):
        waiting[dependent.id] -= 1
        if waiting[dependent.id] == 0:
          stack.append(dependent)
  # The root comes last where nothing needs it.
  root = computation.root.id
  if order[-1] != root and root in waiting:
    order.remove(root)
    order.append(root)
  return order
