"""Writes an order and removed copies into a scheduled module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxmem_hlo.module import Module


def without_copies(module: Module, copies: Iterable[int]) -> Module:
  """Returns a module in which some copies are bitcasts of their operands.

  The schedule is unchanged; it may now read a buffer after its overwriting,
  so it has to be repaired before XLA sees it.

  Args:
    module: The module; it is not changed.
    copies: Ids of copy instructions of its entry computation.
  """
  changed = module.with_schedules({})
  for copy in copies:
    changed.instruction(copy).proto.opcode = "bitcast"
  return Module(changed.proto)


def apply(
  module: Module,
  orders: Mapping[int, Sequence[int]],
  removed_copies: Iterable[int],
) -> Module:
  """Returns the module with removed copies and new schedules.

  Args:
    module: The module; it is not changed.
    orders: Computation id -> instruction ids in execution order.
    removed_copies: Ids of copy instructions of its entry computation.
  """
  return without_copies(module, removed_copies).with_schedules(orders)
