"""Copies to and from the host's memory, placed so that kernels hide them.

A step that keeps arguments on the host copies them in, and their successors
out. Where that stands in the schedule is XLA's choice, or that of a search for
few bytes, which waits for each copy at once. Here kernels keep their order, and
the step is walked as the device would run it: what goes out is waited for once
the link is done with it, or when its memory is needed; what comes in next is
started as soon as the link is idle, if there is memory for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem.cost import Device, Rates, copies, instruction_seconds
from jaxmem.graph import ComputationGraph, from_hlo, liveness, successors_of
from jaxmem.planning.decision import ModulePlan, PlannedModule
from jaxmem.planning.tuning import TUNING


@dataclasses.dataclass(frozen=True, slots=True)
class HiddenCopies:
  """An order that waits less.

  Attributes:
    order: Ids of the entry's instructions in execution order.
    temp_bytes: Predicted temporaries.
    module: The module with that order.
  """

  order: tuple[int, ...]
  temp_bytes: int
  module: Module


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
  """A copy that may move between kernels.

  Attributes:
    start: The node that starts it.
    done: The node that waits for it.
    to_host: Its direction.
    size_bytes: Of what is copied.
    seconds: On an idle link.
    first: The first gap that it may stand in; gap k is before kernel k.
    last: The last one.
  """

  start: int
  done: int
  to_host: bool
  size_bytes: int
  seconds: float
  first: int
  last: int


def hide_copies(
  module: Module, device: Device, room_bytes: int
) -> HiddenCopies | None:
  """Finds an order in which less time is spent waiting for copies.

  Args:
    module: A scheduled module.
    device: The device planned for.
    room_bytes: Temporaries that the order may take.

  Returns:
    The order; None if the one that the module has is as fast, or if no faster
    one fits.
  """
  if not copies.has_transfers(module):
    return None
  rates = device.rates
  given = copies.step_time(module, rates)
  if not given.waiting_s:
    return None
  model = AssignmentModel(module, device.platform)
  mover = _Mover(from_hlo(model, module.entry), module, rates)
  if not mover.can_move:
    return None
  limit = mover.room(room_bytes)
  best: HiddenCopies | None = None
  least_s = given.seconds
  for _ in range(TUNING.overlap.num_limits):
    ids = tuple(mover.order(limit))
    changed = module.with_schedules({module.entry.id: ids})
    seconds = copies.step_time(changed, rates).seconds
    excess = 0
    if seconds < least_s:
      temp_bytes = AssignmentModel(changed, device.platform, model).temp_bytes()
      excess = max(0, temp_bytes - room_bytes)
      if not excess:
        best, least_s = HiddenCopies(ids, temp_bytes, changed), seconds
    limit -= max(excess, int(TUNING.overlap.least_lowering * limit))
  return best


def hide_planned_copies(
  planned: PlannedModule[ModulePlan], device: Device
) -> PlannedModule[ModulePlan]:
  """Returns a plan that waits less for copies, in the bytes of XLA's own."""
  decision = planned.decision
  room = max(decision.baseline_bytes, decision.planned_bytes)
  hidden = hide_copies(planned.module, device, room)
  if hidden is None:
    return planned
  is_larger = hidden.temp_bytes > decision.planned_bytes
  entry_id = planned.given.entry.id
  decision = dataclasses.replace(
    decision,
    orders={**decision.orders, entry_id: hidden.order},
    planned_bytes=hidden.temp_bytes,
    status="feasible" if is_larger else decision.status,
  )
  return PlannedModule(
    given=planned.given, module=hidden.module, decision=decision
  )


class _Mover:
  """Moves the copies of one module between its kernels."""

  def __init__(self, entry: ComputationGraph, module: Module, rates: Rates):
    self._entry = entry
    seconds = instruction_seconds(module, rates)
    self._pairs = _pairs(entry)
    moving = {node for pair in self._pairs for node in pair}
    nodes = range(len(entry.instructions))
    self._kernels = [n for n in nodes if n not in moving]
    self._seconds = [seconds[entry.instructions[n].id] for n in self._kernels]
    self._copies = self._describe(rates)
    self._live = self._compact_live()

  @property
  def can_move(self) -> bool:
    """Whether there is any copy to move."""
    return bool(self._copies)

  def room(self, temp_bytes: int) -> int:
    """Returns the live bytes that a number of temporaries may hold."""
    return temp_bytes + self._entry.graph.base_bytes

  def order(self, limit_bytes: int) -> list[int]:
    """Returns ids in execution order.

    Args:
      limit_bytes: Where as much is live already, no copy takes more memory.
    """
    walk = _Walk(self._copies, self._kernels, self._seconds, self._live)
    return self._entry.schedule(walk.nodes(limit_bytes))

  def _describe(self, rates: Rates) -> list[_Copy]:
    """Describes the copies and between which kernels they may stand."""
    gap = {n: k for k, n in enumerate(self._kernels)}
    partner = {n: pair for pair in self._pairs for n in pair}
    predecessors = self._entry.predecessors
    successors = successors_of(predecessors)
    latest: dict[tuple[int, int], int] = {}

    def last(pair: tuple[int, int]) -> int:
      """The last gap before all that needs a copy."""
      if pair not in latest:
        followers = {s for n in pair for s in successors[n]} - {*pair}
        gaps = [gap[s] if s in gap else last(partner[s]) for s in followers]
        latest[pair] = min(gaps, default=len(self._kernels))
      return latest[pair]

    def first(pair: tuple[int, int]) -> int:
      """The first gap after all that a copy needs, wherever that stands."""
      needed = {p for n in pair for p in predecessors[n]} - {*pair}
      gaps = [gap[p] + 1 if p in gap else last(partner[p]) for p in needed]
      return max(gaps, default=0)

    found = []
    for pair in self._pairs:
      instruction = self._entry.instructions[pair[0]]
      to_host = bool(copies.direction(instruction))
      size_bytes = copies.copied_bytes(instruction)
      found.append(
        _Copy(
          start=pair[0],
          done=pair[1],
          to_host=to_host,
          size_bytes=size_bytes,
          seconds=copies.copy_seconds(size_bytes, to_host, rates),
          first=first(pair),
          last=last(pair),
        )
      )
    return found

  def _compact_live(self) -> np.ndarray:
    """Live bytes at each kernel where no copy takes any time."""
    idle = np.zeros(len(self._kernels), np.int64)
    order = _Walk(self._copies, self._kernels, self._seconds, idle).nodes(-1)
    live = liveness.live_bytes(self._entry.graph, order)
    at = {node: step for step, node in enumerate(order)}
    return live[[at[n] for n in self._kernels]]


class _Walk:
  """Runs the kernels in their order, and puts copies between them.

  Args:
    pending: The copies.
    kernels: The nodes that keep their order.
    seconds: Of each kernel.
    live: Bytes at each kernel where no copy takes longer than it must.
  """

  def __init__(
    self,
    pending: Sequence[_Copy],
    kernels: Sequence[int],
    seconds: Sequence[float],
    live: np.ndarray,
  ):
    self._kernels = kernels
    self._seconds = seconds
    self._live = live
    self._stores: dict[int, list[_Copy]] = {}
    for copy in pending:
      if copy.to_host:
        self._stores.setdefault(copy.first, []).append(copy)
    fetches = (c for c in pending if not c.to_host)
    self._fetches = sorted(fetches, key=lambda c: (-c.last, -c.start))
    self._now = 0.0
    self._free_at = {True: 0.0, False: 0.0}
    # When each copy under way is done, in the order in which they began.
    self._leaving: dict[_Copy, float] = {}
    self._coming: dict[_Copy, float] = {}
    self._held_bytes = 0
    # What comes in early, at each kernel in between.
    self._early = np.zeros(len(kernels), np.int64)
    self._nodes: list[int] = []

  def nodes(self, limit_bytes: int) -> list[int]:
    """Returns all nodes in execution order; walks once.

    Args:
      limit_bytes: Most live bytes, where fewer are possible.
    """
    for k in range(len(self._kernels) + 1):
      self._receive(k)
      self._send(k)
      if k == len(self._kernels):
        break
      self._release(int(self._live[k] + self._early[k]), limit_bytes)
      self._look_ahead(k, limit_bytes)
      self._nodes.append(self._kernels[k])
      self._now += self._seconds[k]
    self._release(1, 0)
    return self._nodes

  def _begin(self, copy: _Copy) -> float:
    self._nodes.append(copy.start)
    begin = max(self._now, self._free_at[copy.to_host])
    self._free_at[copy.to_host] = begin + copy.seconds
    return self._free_at[copy.to_host]

  def _wait(self, copy: _Copy, done_at: float) -> None:
    self._nodes.append(copy.done)
    self._now = max(self._now, done_at)

  def _receive(self, k: int) -> None:
    """Waits for what is needed from here on, in either direction."""
    for copy in [c for c in self._leaving if c.last <= k]:
      self._settle(copy)
    while self._fetches and self._fetches[-1].last <= k:
      copy = self._fetches.pop()
      self._coming[copy] = self._begin(copy)
    for copy in [c for c in self._coming if c.last <= k]:
      self._wait(copy, self._coming.pop(copy))

  def _send(self, k: int) -> None:
    for copy in self._stores.get(k, ()):
      self._leaving[copy] = self._begin(copy)
      self._held_bytes += copy.size_bytes
      if copy.last <= k:
        self._settle(copy)

  def _settle(self, copy: _Copy) -> None:
    self._wait(copy, self._leaving.pop(copy))
    self._held_bytes -= copy.size_bytes

  def _release(self, other_bytes: int, limit_bytes: int) -> None:
    """Waits for what has left, and for more until the rest fits."""
    while self._leaving:
      copy, done_at = next(iter(self._leaving.items()))
      fits = other_bytes + self._held_bytes <= limit_bytes
      if fits and done_at > self._now:
        return
      self._settle(copy)

  def _look_ahead(self, k: int, limit_bytes: int) -> None:
    """Starts what is needed next if the link would be idle in this kernel."""
    while self._fetches:
      copy = self._fetches[-1]
      is_idle = self._free_at[False] < self._now + self._seconds[k]
      span = slice(k, copy.last)
      there = self._live[span] + self._early[span] + copy.size_bytes
      there[0] += self._held_bytes
      if copy.first > k or not is_idle or there.max() > limit_bytes:
        return
      self._early[span] += copy.size_bytes
      self._fetches.pop()
      self._coming[copy] = self._begin(copy)


def _pairs(entry: ComputationGraph) -> list[tuple[int, int]]:
  """Returns the start and the end of each copy that may move.

  What comes back after it went out stays where it was put: that was done with
  the link in mind.
  """
  number = {i.id: n for n, i in enumerate(entry.instructions)}
  found: list[tuple[int, int]] = []
  for done, instruction in enumerate(entry.instructions):
    if instruction.opcode != "copy-done":
      continue
    start = number[instruction.operands[0]]
    begun = entry.instructions[start]
    source = number.get(begun.operands[0], start)
    comes_back = entry.instructions[source].opcode == "copy-done"
    if copies.direction(begun) is not None and not comes_back:
      found.append((start, done))
  return found
