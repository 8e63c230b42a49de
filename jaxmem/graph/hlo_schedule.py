"""From the nodes of a computation back to a schedule of all its instructions.

Parameters and constants come first in every order, and instructions that only
rename values (bitcast, tuple, get-tuple-element) follow at once when their
operands are there; none of these costs memory, so none of them is a node.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from jaxmem_hlo.module import RENAMES, Computation, Instruction

_FIRST_OPCODES = frozenset({"parameter", "constant"})


def is_node(instruction: Instruction) -> bool:
  """Whether an order says when an instruction runs."""
  return (
    instruction.opcode not in _FIRST_OPCODES
    and instruction.opcode not in RENAMES
  )


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
