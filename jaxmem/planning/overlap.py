"""Transfers placed so that kernels hide them.

A search for few bytes waits for each collective, and for each copy to or from
the host, at once. Here its order is walked as the device would run it, and
transfers begin earlier, or end later (`overlapped_walk`). How much memory that
may take is found by trying limits of live bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import cost
from jaxmem.cost import Device
from jaxmem.graph import ComputationGraph, from_hlo
from jaxmem.options import Options
from jaxmem.planning.decision import ModulePlan, PlannedModule
from jaxmem.planning.late_kernels import fill_waits
from jaxmem.planning.overlapped_program import Program, Transfer
from jaxmem.planning.overlapped_walk import walk
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.overlap
# Sums of the same seconds in another order differ by less.
_ROUNDING = 1 + 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overlapped:
  """An order that waits less.

  Attributes:
    order: Ids of the instructions in execution order.
    temp_bytes: Predicted temporaries.
    seconds: Estimated, of a run.
    num_synchronous: Collectives that run beside nothing.
    module: The module with that order.
  """

  order: tuple[int, ...]
  temp_bytes: int
  seconds: float
  num_synchronous: int
  module: Module


def hide_transfers(
  module: Module, device: Device, room_bytes: int
) -> Overlapped | None:
  """Finds an order in which less time is spent waiting for transfers.

  Args:
    module: A scheduled module.
    device: The device planned for.
    room_bytes: Temporaries that the order may take.

  Returns:
    The fastest; None if the order that the module has is as fast, or if no
    faster one fits.
  """
  if not cost.has_transfers(module):
    return None
  given = cost.step_time(module, device.rates)
  if not given.waiting_s + given.exposed_s:
    return None
  orders = _Orders(module, device)
  limit = room_bytes + orders.base_bytes
  best: Overlapped | None = None
  least_s = given.seconds
  for _ in range(_TUNING.num_limits):
    excess = 0
    for found in orders.fastest(limit, least_s):
      # Limits above what is taken change nothing.
      limit = min(limit, found.temp_bytes + orders.base_bytes)
      if found.temp_bytes <= room_bytes:
        if found.seconds * _ROUNDING < least_s:
          best, least_s = found, found.seconds
        break
      excess = excess or found.temp_bytes - room_bytes
    limit -= max(excess, int(_TUNING.least_lowering * limit))
  return best


def hide_planned_transfers(
  planned: PlannedModule[ModulePlan], device: Device, options: Options
) -> PlannedModule[ModulePlan]:
  """Returns a plan that is not slower than XLA's own order.

  Copies to and from the host are waited for as little as the bytes of XLA's own
  order allow. Where there are only collectives, the plan takes the fewest bytes
  that a step as fast as XLA's does.

  Args:
    planned: A plan that minds only bytes.
    device: The device planned for.
    options: How much slower than XLA's own order it may be, and what it must
      save to be taken.
  """
  if not cost.has_transfers(planned.module, in_loops=True):
    return planned
  rates = device.rates
  own = cost.step_time(planned.given, rates)
  slower = (1.0 + options.max_slowdown) * _ROUNDING
  planned = _with_fast_bodies(planned, device, slower)
  decision = planned.decision
  if own.to_host_bytes or own.from_host_bytes:
    room = max(decision.baseline_bytes, decision.planned_bytes)
    hidden = hide_transfers(planned.module, device, room)
    return planned if hidden is None else _with(planned, hidden)
  slowest_s = own.seconds * slower
  if cost.step_time(planned.module, rates).seconds <= slowest_s:
    return planned
  enough = decision.baseline_bytes * (1.0 - options.min_gain)
  as_given = PlannedModule.of(planned.given, decision.as_given())
  for base in (planned, as_given):
    orders = _Orders(base.module, device)
    fewest = _fewest_bytes(
      orders, decision.baseline_bytes, slowest_s, own.num_synchronous
    )
    if fewest is not None and fewest.temp_bytes <= enough:
      return _with(base, fewest)
  return as_given


def _with_fast_bodies(
  planned: PlannedModule[ModulePlan], device: Device, slower: float
) -> PlannedModule[ModulePlan]:
  """Returns a plan in which no loop's body takes longer than XLA's.

  Args:
    planned: A plan that minds only bytes.
    device: The device planned for.
    slower: How many times as long a body may take.
  """
  timer = cost.ScheduleTimer(planned.given, device.rates)
  reordered = planned.decision.orders.keys() - {planned.given.entry.id}
  # What others run comes before them.
  for body_id in planned.given.scheduled_ids:
    if body_id not in reordered:
      continue
    own = timer.time(planned.given, body_id)
    slowest_s = slower * own.seconds
    if timer.time(planned.module, body_id).seconds <= slowest_s:
      continue
    orders = _Orders(planned.module, device, body_id)
    order = [i.id for i in planned.given.schedule(body_id)]
    given = orders.timed(order, slowest_s)
    if given is None:
      continue  # A loop within takes longer already.
    found = _fewest_bytes(
      orders, given.temp_bytes, slowest_s, own.num_synchronous
    )
    if found is None or found.temp_bytes > given.temp_bytes:
      found = given
    planned = _with(planned, found, body_id)
  return planned


def _fewest_bytes(
  orders: _Orders, most_bytes: int, slowest_s: float, num_synchronous: int
) -> Overlapped | None:
  """Finds the order with the fewest bytes that is fast enough.

  It differs from that of a plan only where something else would be waited for.
  Orders with no more synchronous collectives than are given come before others:
  how well they hide depends less on estimates.
  """

  def fast(limit: int) -> Overlapped | None:
    return orders.fast(limit, slowest_s, num_synchronous)

  tight = filter(None, map(fast, orders.tight_limits()))
  fewest = min(
    tight,
    key=lambda f: (f.num_synchronous > num_synchronous, f.temp_bytes),
    default=None,
  )
  loose = filter(None, map(fast, orders.loose_limits(most_bytes)))
  return fewest or next(loose, None)


def _with(
  planned: PlannedModule[ModulePlan],
  hidden: Overlapped,
  computation_id: int | None = None,
) -> PlannedModule[ModulePlan]:
  """Returns a plan with another order of a computation, the entry if None."""
  decision = planned.decision
  is_as_small = hidden.temp_bytes == decision.planned_bytes
  if computation_id is None:
    computation_id = planned.given.entry.id
  decision = dataclasses.replace(
    decision,
    orders={**decision.orders, computation_id: hidden.order},
    planned_bytes=hidden.temp_bytes,
    status=decision.status if is_as_small else "feasible",
  )
  return PlannedModule(
    given=planned.given, module=hidden.module, decision=decision
  )


class _Orders:
  """Orders of one computation that wait less, for limits of live bytes.

  Args:
    module: A scheduled module.
    device: The device planned for.
    computation_id: Of what is ordered; None for the entry.

  Attributes:
    base_bytes: Live bytes that are no temporaries.
  """

  def __init__(
    self, module: Module, device: Device, computation_id: int | None = None
  ):
    self._module = module
    computation = module.entry
    if computation_id is not None:
      computation = module.by_id[computation_id]
    self._platform = device.platform
    self._model = AssignmentModel(module, device.platform)
    self._graph = from_hlo(self._model, computation)
    self.base_bytes = self._graph.graph.base_bytes
    self._timer = cost.ScheduleTimer(module, device.rates)
    self._program = Program(
      self._graph.graph,
      [self._timer.seconds[i.id] for i in self._graph.instructions],
      _transfers(self._graph, self._timer),
    )

  def tight_limits(self) -> Iterator[int]:
    """Yields limits of live bytes that are hard to keep, or cannot be kept.

    How well XLA packs an order is luck: each of these gives another one.
    """
    for share in _TUNING.tight_shares:
      yield int(share * self._program.peak_bytes)

  def loose_limits(self, most_temp_bytes: int) -> Iterator[int]:
    """Yields higher and higher ones.

    Args:
      most_temp_bytes: Temporaries that would be too many.
    """
    low = max(1, self._program.peak_bytes)
    ratio = max(1.0, (most_temp_bytes + self.base_bytes) / low)
    for step in range(1, _TUNING.num_limits + 1):
      yield int(low * math.pow(ratio, step / _TUNING.num_limits))

  def fast(
    self, limit_bytes: int, slowest_s: float, num_synchronous: int
  ) -> Overlapped | None:
    """Returns an order for a limit of live bytes, if one is fast enough.

    Kernels run later only where that is needed, as it takes memory: to be fast
    enough, or to leave no more collectives synchronous than are given.
    """
    nodes = walk(self._program, limit_bytes)
    found = self.timed(self._graph.schedule(nodes), slowest_s)
    if found is not None and found.num_synchronous <= num_synchronous:
      return found
    nodes = fill_waits(self._program, nodes, limit_bytes)
    filled = self.timed(self._graph.schedule(nodes), slowest_s)
    if filled is None or found is None:
      return filled or found
    return min(filled, found, key=lambda f: f.num_synchronous)

  def fastest(self, limit_bytes: int, slowest_s: float) -> Iterator[Overlapped]:
    """Yields the orders that are found for a limit of live bytes.

    First the one that waits least, then the one that takes less memory; none
    that is not fast enough.
    """
    nodes = walk(self._program, limit_bytes)
    filled = fill_waits(self._program, nodes, limit_bytes)
    for order in (filled, nodes) if filled != nodes else (nodes,):
      found = self.timed(self._graph.schedule(order), slowest_s)
      if found is not None:
        yield found

  def timed(self, order: Sequence[int], slowest_s: float) -> Overlapped | None:
    """Returns an order of ids with its bytes, if it is fast enough."""
    computation_id = self._graph.computation.id
    changed = self._module.with_schedules({computation_id: order})
    run = self._timer.time(changed, computation_id)
    if run.seconds > slowest_s:
      return None
    model = AssignmentModel(changed, self._platform, self._model)
    return Overlapped(
      order=tuple(order),
      temp_bytes=model.temp_bytes(),
      seconds=run.seconds,
      num_synchronous=run.num_synchronous,
      module=changed,
    )


def _transfers(
  entry: ComputationGraph, timer: cost.ScheduleTimer
) -> list[Transfer]:
  """Lists what goes on beside the kernels of the entry.

  What comes back from the host after it went out stays where it was put: that
  was done with the link in mind.
  """
  number = {i.id: n for n, i in enumerate(entry.instructions)}
  found: list[Transfer] = []
  for done, instruction in enumerate(entry.instructions):
    is_done = instruction.opcode.endswith("-done")
    if not is_done or instruction.operands[0] not in timer.transfers:
      continue
    start = number[instruction.operands[0]]
    source = number.get(entry.instructions[start].operands[0], start)
    if entry.instructions[source].opcode != "copy-done":
      link, seconds = timer.transfers[instruction.operands[0]]
      found.append(Transfer(start=start, done=done, link=link, seconds=seconds))
  return found
