"""XLA's post order of a computation's instructions.

XLA numbers values, and breaks ties in buffer assignment, by this order, which
it derives from the order in which a message lists the instructions: depth
first from each instruction without users, in the listed order; first what it
has control dependencies on, last to first, then its operands, first to last.
Listing the instructions of an edited computation in this very order makes XLA
see what the models here see.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmem_hlo.proto import hlo_pb2


def instruction_post_order(
  instructions: Sequence[hlo_pb2.Instruction],
) -> list[int]:
  """Returns instruction ids in XLA's post order.

  Args:
    instructions: Of one computation, as listed.

  Raises:
    ValueError: If the instructions depend on each other in a cycle.
  """
  needed = {i.id: _needed(i) for i in instructions}
  used = set().union(*needed.values())
  order: list[int] = []
  # An instruction is False while those that it needs are visited, and True once
  # it is behind them.
  is_done: dict[int, bool] = {}
  for start in needed:
    if start in used:
      continue
    stack = [start]
    while stack:
      current = stack[-1]
      if current in is_done:
        stack.pop()
        if not is_done[current]:
          is_done[current] = True
          order.append(current)
        continue
      is_done[current] = False
      # What is pushed last is visited first.
      for before in reversed(needed[current]):
        if before not in is_done:
          stack.append(before)
        elif not is_done[before]:
          names = {i.id: i.name for i in instructions}
          raise ValueError(f"{names[before]} needs itself.")
  if len(order) < len(instructions):
    raise ValueError("The instructions depend on each other in a cycle.")
  return order


def list_in_post_order(computation: hlo_pb2.Computation) -> None:
  """Lists the instructions of an edited computation in XLA's post order.

  Raises:
    ValueError: If the instructions depend on each other in a cycle.
  """
  order = instruction_post_order(computation.instructions)
  place = {instruction_id: n for n, instruction_id in enumerate(order)}
  computation.instructions.sort(key=lambda i: place[i.id])


def _needed(instruction: hlo_pb2.Instruction) -> tuple[int, ...]:
  controls = reversed(instruction.control_predecessor_ids)
  return (*controls, *instruction.operand_ids)
