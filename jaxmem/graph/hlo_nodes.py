"""The nodes of a computation, and what must run before each of them."""

from __future__ import annotations

import itertools

from jaxmem_hlo.buffers import UnsupportedModuleError
from jaxmem_hlo.module import (
  STATEFUL_PREFIXES,
  Computation,
  Instruction,
  Module,
)

from jaxmem.graph.hlo_schedule import is_node
from jaxmem.graph.topological import least_first_order

# Instructions that run the schedule of another computation.
CALLERS = frozenset({"async-start", "call", "conditional", "while"})
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
    self.instructions = [i for i in schedule if is_node(i)]
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
    order = least_first_order(self.predecessors, numbers)
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
