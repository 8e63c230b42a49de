"""The entry runs in XLA's order where another saves nothing.

A search for few bytes orders the whole program, but only what runs around its
peak has to run as found. What shares no memory XLA:CPU runs at once, and XLA's
own order leaves more of that. So its beginning and its end are given back, as
far as that takes no more bytes, and parts of what lies between
(docs/how-it-works.md).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

from jaxmem_hlo.assignment import AssignmentModel

from jaxmem import cost
from jaxmem.graph import (
  ComputationGraph,
  callee_peaks,
  from_hlo,
  liveness,
  successors_of,
  topological_order,
)
from jaxmem.planning.callee_orders import checked_schedule
from jaxmem.planning.decision import Decision, ModulePlan, PlannedModule

# How finely it is found where XLA's order has to end, or may begin again.
_NUM_PARTS = 64
# The most predictions of parts of what lies between, and nodes in all of them.
_MAX_PREDICTED = 32
_MAX_NODES = 10_000


def with_own_order[D: Decision](planned: PlannedModule[D]) -> PlannedModule[D]:
  """Returns a plan of as few bytes whose entry runs more in XLA's order.

  Where anything is transferred, the order hides that, and is kept.

  Args:
    planned: A plan that nothing edits any more.
  """
  if cost.has_transfers(planned.module):
    return planned
  model, entry_id = planned.model, planned.given.entry.id
  entry = from_hlo(model, model.module.entry, callee_peaks(model))
  own = _own_order(planned, entry)
  nodes = _NearOrders(
    model, entry, own, planned.decision.planned_bytes
  ).nearest()
  if nodes == [*range(len(own))]:
    return planned
  ids = checked_schedule(entry, nodes)
  num_bytes = model.temp_bytes({entry_id: ids})
  decision = planned.decision
  changed = dataclasses.replace(decision, planned_bytes=num_bytes)
  if isinstance(changed, ModulePlan):
    orders = {**changed.orders, entry_id: ids}
    changed = dataclasses.replace(changed, orders=orders)
  else:
    changed = dataclasses.replace(changed, order=ids)
  return PlannedModule.of(planned.given, changed)


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
    most_bytes: What orders may take.
  """

  def __init__(
    self,
    model: AssignmentModel,
    entry: ComputationGraph,
    own: Sequence[int],
    most_bytes: int,
  ):
    self._model = model
    self._entry = entry
    self._own = own
    self._most_bytes = most_bytes
    self._num_predicted = 0

  def nearest(self) -> list[int]:
    """Returns the order that has most of XLA's, of those that are tried."""
    number = len(self._own)
    last = _most(lambda last: self._fits(self._ends(0, last)), number)
    first = _most(
      lambda first: self._fits(self._ends(first, last)), number - last
    )
    return self._with_parts(self._ends(first, last), first, number - last)

  def _ends(self, first: int, last: int) -> list[int]:
    """Returns the order that begins and ends with so many nodes as XLA's.

    The first nodes of an order need none but each other, and the last ones are
    needed by none but each other: so all such orders are valid.
    """
    begin, end = self._own[:first], self._own[len(self._own) - last :]
    taken = {*begin, *end}
    between = (n for n in range(len(self._own)) if n not in taken)
    return [*begin, *between, *end]

  def _with_parts(self, nodes: list[int], begin: int, end: int) -> list[int]:
    """Returns an order in which halves of a part, or of halves, are XLA's.

    Args:
      nodes: The order.
      begin: Where the part begins.
      end: The end of the part, exclusive.
    """
    rank = {node: i for i, node in enumerate(self._own)}
    parts = collections.deque([(begin, end)])
    most = min(_MAX_PREDICTED, _MAX_NODES // max(1, len(nodes)))
    most += self._num_predicted
    while parts and self._num_predicted < most:
      begin, end = parts.popleft()
      middle = (begin + end) // 2
      for start, stop in ((begin, middle), (middle, end)):
        part = sorted(nodes[start:stop], key=rank.__getitem__)
        if part == nodes[start:stop]:
          continue
        tried = [*nodes[:start], *part, *nodes[stop:]]
        if self._fits(tried):
          nodes = tried
        else:
          parts.append((start, stop))
    return nodes

  def _fits(self, nodes: Sequence[int]) -> bool:
    graph = self._entry.graph
    live_bytes = liveness.peak_bytes(graph, nodes) - graph.base_bytes
    if live_bytes > self._most_bytes:
      # No assignment takes fewer bytes than what is live.
      return False
    self._num_predicted += 1
    orders = {self._entry.computation.id: self._entry.schedule(nodes)}
    found = self._model.temp_bytes(orders, self._most_bytes)
    return found <= self._most_bytes


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
