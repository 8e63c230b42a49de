"""The entry runs in XLA's order where another saves nothing.

A search for few bytes orders the whole program, but only what runs around its
peak has to run as found. What shares no memory XLA:CPU runs at once, and XLA's
own order leaves more of that. So the end of it is given back, as far as the
bytes stay the same, and parts of what comes before (docs/how-it-works.md).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jaxmem_hlo.assignment import AssignmentModel

from jaxmem import cost
from jaxmem.graph import (
  ComputationGraph,
  from_hlo,
  liveness,
  successors_of,
  topological_order,
)
from jaxmem.planning.callee_orders import checked_schedule
from jaxmem.planning.decision import Decision, ModulePlan, PlannedModule

# How finely it is found where XLA's order may begin again.
_NUM_PARTS = 16
# The most nodes in all orders that are tried with parts of XLA's.
_MAX_NODES = 8_000


def with_own_order[D: Decision](planned: PlannedModule[D]) -> PlannedModule[D]:
  """Returns a plan of the same bytes whose entry runs more in XLA's order.

  Where anything is transferred, the order hides that, and is kept.

  Args:
    planned: A plan that nothing edits any more.
  """
  decision, model = planned.decision, planned.model
  if not decision.is_changed or cost.has_transfers(planned.module):
    return planned
  entry = from_hlo(model, model.module.entry)
  own = _own_order(planned, entry)
  as_planned = [*range(len(own))]
  if own == as_planned:
    return planned
  nodes = _NearOrders(model, entry, own, decision.planned_bytes).nearest()
  if nodes == as_planned:
    return planned
  ids = checked_schedule(entry, nodes)
  changed: dict[str, Any] = {"order": ids}
  if isinstance(decision, ModulePlan):
    changed = {"orders": {**decision.orders, entry.computation.id: ids}}
  found = dataclasses.replace(decision, **changed)
  return PlannedModule.of(planned.given, found)


def _own_order[D: Decision](
  planned: PlannedModule[D], entry: ComputationGraph
) -> list[int]:
  """Returns the nodes of a planned entry in XLA's order.

  What edits added comes just before the first of its readers.
  """
  given = planned.given.schedule(planned.given.entry.id)
  rank = {instruction.id: i for i, instruction in enumerate(given)}
  successors = successors_of(entry.predecessors)
  keys = [len(rank)] * len(successors)
  for node in reversed(range(len(keys))):
    key = rank.get(entry.instructions[node].id)
    if key is None:
      key = min((keys[s] for s in successors[node]), default=len(rank))
    keys[node] = key
  return topological_order(entry.predecessors, keys)


class _NearOrders:
  """Orders that are XLA's in parts, and as planned in others.

  Args:
    model: Of the planned module.
    entry: Its entry, whose nodes are listed as planned.
    own: The nodes in XLA's order.
    num_bytes: What orders have to take.
  """

  def __init__(
    self,
    model: AssignmentModel,
    entry: ComputationGraph,
    own: Sequence[int],
    num_bytes: int,
  ):
    self._model = model
    self._entry = entry
    self._own = own
    self._num_bytes = num_bytes

  def nearest(self) -> list[int]:
    """Returns the order that has most of XLA's, of those that are tried."""
    number = len(self._own)
    last = _most(lambda last: self._fits(self._with_end(last)), number)
    return self._with_parts(self._with_end(last), number - last)

  def _with_end(self, last: int) -> list[int]:
    """Returns the order that ends with so many nodes as XLA's does.

    The last nodes of an order are needed by none but each other: so all such
    orders are valid.
    """
    end = self._own[len(self._own) - last :]
    taken = {*end}
    return [*(n for n in range(len(self._own)) if n not in taken), *end]

  def _with_parts(self, nodes: list[int], end: int) -> list[int]:
    """Returns an order in which halves of what comes first are XLA's.

    Or halves of halves. Nothing in a part needs what comes after it.

    Args:
      nodes: The order.
      end: Where XLA's order begins.
    """
    rank = {node: i for i, node in enumerate(self._own)}
    parts = collections.deque([(0, end)])
    left = _MAX_NODES // max(1, len(nodes))
    while parts and left > 0:
      begin, end = parts.popleft()
      middle = (begin + end) // 2
      for start, stop in ((begin, middle), (middle, end)):
        part = sorted(nodes[start:stop], key=rank.__getitem__)
        if part == nodes[start:stop]:
          continue
        left -= 1
        tried = [*nodes[:start], *part, *nodes[stop:]]
        if self._fits(tried):
          nodes = tried
        else:
          parts.append((start, stop))
    return nodes

  def _fits(self, nodes: Sequence[int]) -> bool:
    """Whether an order takes as many bytes as the planned one.

    Where one took fewer by luck, a limit of those bytes would not be met: its
    search begins with the planned order.
    """
    graph = self._entry.graph
    live_bytes = liveness.peak_bytes(graph, nodes) - graph.base_bytes
    if live_bytes > self._num_bytes:
      # No assignment takes fewer bytes than what is live.
      return False
    orders = {self._entry.computation.id: self._entry.schedule(nodes)}
    return self._model.temp_bytes(orders, self._num_bytes) == self._num_bytes


def _most(fits: Callable[[int], bool], most: int) -> int:
  """Returns about the largest number that fits, by halves; zero does."""
  fitting, too_many = 0, most + 1
  while too_many - fitting > max(1, most // _NUM_PARTS):
    middle = (fitting + too_many) // 2
    if fits(middle):
      fitting = middle
    else:
      too_many = middle
  return fitting
