"""Copies to and from the host's memory, placed so that kernels hide them.

A step that keeps arguments on the host starts to copy them in and to copy their
successors out. Where that stands in the schedule is XLA's choice, or that of a
search for few bytes, which waits for each copy at once. Here kernels keep their
order, and copies move between them: what goes out starts when it is made, and
is waited for when the link may be done with it; what comes in is waited for by
its first reader, and starts as early as the link needs. Both hold the device's
memory longer, so they go as far as bytes allow.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxmem_hlo.assignment import AssignmentModel
from jaxmem_hlo.module import Module

from jaxmem import liveness
from jaxmem.cost import copies
from jaxmem.cost.rates import Rates
from jaxmem.cost.roofline import instruction_costs
from jaxmem.extract import ComputationGraph, from_hlo

# A limit of live bytes is lowered by this share at least until XLA's packing
# of what is live fits.
_STEP = 0.02
_MAX_TRIES = 8

if TYPE_CHECKING:
  from jaxmem.module_plan import ModulePlan


@dataclasses.dataclass(frozen=True, slots=True)
class HiddenCopies:
  """An order that waits less.

  Attributes:
    order: Ids of the entry's instructions in execution order.
    temp_bytes: Predicted temporaries.
  """

  order: tuple[int, ...]
  temp_bytes: int


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


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
  """The gaps where a copy starts and where it is waited for."""

  start: int
  done: int


def hide_copies(
  module: Module, platform: str, rates: Rates, room_bytes: int
) -> HiddenCopies | None:
  """Finds an order in which less time is spent waiting for copies.

  Args:
    module: A scheduled module.
    platform: "cpu" or "cuda".
    rates: Of the device.
    room_bytes: Temporaries that the order may take.

  Returns:
    The order; None if the one that the module has is as fast, or if no faster
    one fits.
  """
  if not any(
    copies.direction(i) is not None for i in module.entry.instructions
  ):
    return None
  given = copies.step_time(module, rates)
  if not given.waiting_s:
    return None
  model = AssignmentModel(module, platform)
  mover = _Mover(from_hlo(model, module.entry), module, rates)
  limit = mover.room(room_bytes)
  for _ in range(_MAX_TRIES):
    ids = mover.order(limit)
    changed = module.with_schedules({module.entry.id: ids})
    temp_bytes = AssignmentModel(changed, platform, model).temp_bytes()
    if temp_bytes <= room_bytes:
      is_faster = copies.step_time(changed, rates).seconds < given.seconds
      return HiddenCopies(tuple(ids), temp_bytes) if is_faster else None
    limit -= max(temp_bytes - room_bytes, int(_STEP * limit))
  return None


def hide_planned_copies(
  module: Module, decided: ModulePlan, rates: Rates
) -> ModulePlan:
  """Returns a plan that waits less for copies, in the bytes of XLA's own.

  Args:
    module: The module that was planned.
    decided: Its plan.
    rates: Of the device.
  """
  room = max(decided.baseline_bytes, decided.planned_bytes)
  changed = decided.apply(module)
  hidden = hide_copies(changed, decided.platform, rates, room)
  if hidden is None:
    return decided
  is_larger = hidden.temp_bytes > decided.planned_bytes
  return dataclasses.replace(
    decided,
    orders={**decided.orders, module.entry.id: hidden.order},
    planned_bytes=hidden.temp_bytes,
    status="feasible" if is_larger else decided.status,
  )


class _Mover:
  """Moves the copies of one module between its kernels."""

  def __init__(self, entry: ComputationGraph, module: Module, rates: Rates):
    self._entry = entry
    costs = instruction_costs(module, rates)
    self._pairs = _pairs(entry)
    moving = {node for pair in self._pairs for node in pair}
    nodes = range(len(entry.instructions))
    self._kernels = [n for n in nodes if n not in moving]
    seconds = [costs[entry.instructions[n].id].seconds for n in self._kernels]
    self._clock = [0.0, *itertools.accumulate(seconds)]
    self._copies = self._describe(rates)
    self._live = self._compact_live()

  def room(self, temp_bytes: int) -> int:
    """Returns the live bytes that a number of temporaries may hold."""
    return temp_bytes + self._entry.graph.base_bytes

  def order(self, limit_bytes: int) -> list[int]:
    """Returns ids in execution order.

    Args:
      limit_bytes: No copy takes longer for hiding where more would be live.
    """
    live = self._live.copy()
    spans: dict[_Copy, _Span] = {}
    for copy, wanted in [*self._stores(), *self._fetches()]:
      spans[copy] = _within(copy, wanted, live, limit_bytes)
    return self._entry.schedule(self._nodes(spans))

  def _describe(self, rates: Rates) -> list[_Copy]:
    """Describes the copies and between which kernels they may stand."""
    gap = {n: k for k, n in enumerate(self._kernels)}
    partner = {n: pair for pair in self._pairs for n in pair}
    predecessors = self._entry.predecessors
    successors = _successors(predecessors)
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
    order = self._nodes({c: _at_once(c) for c in self._copies})
    live = liveness.live_bytes(self._entry.graph, order)
    at = {node: step for step, node in enumerate(order)}
    return live[[at[n] for n in self._kernels]]

  def _stores(self) -> list[tuple[_Copy, _Span]]:
    """Copies to the host, and when the link would be done with them."""
    found, free_at = [], 0.0
    stores = [c for c in self._copies if c.to_host]
    for copy in sorted(stores, key=lambda c: (c.first, c.start)):
      begin = max(free_at, self._clock[copy.first])
      free_at = begin + copy.seconds
      done = bisect.bisect_left(self._clock, free_at)
      done = max(copy.first, min(done, copy.last))
      found.append((copy, _Span(copy.first, done)))
    return found

  def _fetches(self) -> list[tuple[_Copy, _Span]]:
    """Copies from the host, and when the link would have to begin them."""
    found, due = [], math.inf
    fetches = [c for c in self._copies if not c.to_host]
    for copy in sorted(fetches, key=lambda c: (-c.last, -c.start)):
      due = min(due, self._clock[copy.last]) - copy.seconds
      start = bisect.bisect_right(self._clock, due) - 1
      start = min(copy.last, max(start, copy.first))
      found.append((copy, _Span(start, copy.last)))
    return found

  def _nodes(self, spans: dict[_Copy, _Span]) -> list[int]:
    """Returns the nodes in the order that gaps of copies say.

    In a gap, what may be done by then is waited for first, and what is needed
    first is started first.
    """
    gaps: list[list[tuple[tuple[int, int, int], int]]] = [
      [] for _ in range(len(self._kernels) + 1)
    ]
    for copy, span in spans.items():
      begin = (1, copy.last, copy.start)
      gaps[span.start].append((begin, copy.start))
      # In the gap of its start, a wait follows the start.
      is_short = span.start == span.done
      rank = begin if is_short else (0, 0, copy.done)
      gaps[span.done].append((rank, copy.done))
    order: list[int] = []
    for k, gap in enumerate(gaps):
      order += [node for _, node in sorted(gap)]
      if k < len(self._kernels):
        order.append(self._kernels[k])
    return order


def _pairs(entry: ComputationGraph) -> list[tuple[int, int]]:
  """Returns the start and the end of each copy that may move.

  A value that goes out and comes back stays where it was put: that was done
  with the link in mind.
  """
  number = {i.id: n for n, i in enumerate(entry.instructions)}
  found: dict[int, int] = {}
  fixed: set[int] = set()
  for done, instruction in enumerate(entry.instructions):
    if instruction.opcode != "copy-done":
      continue
    start = entry.instructions[number[instruction.operands[0]]]
    if copies.direction(start) is None:
      continue
    found[number[start.id]] = done
    source = number.get(start.operands[0], -1)
    if source in found.values():
      fixed |= {done, source}
  return [(s, d) for s, d in found.items() if d not in fixed]


def _successors(predecessors: Sequence[Sequence[int]]) -> list[list[int]]:
  found: list[list[int]] = [[] for _ in predecessors]
  for node, needed in enumerate(predecessors):
    for other in needed:
      found[other].append(node)
  return found


def _at_once(copy: _Copy) -> _Span:
  gap = copy.first if copy.to_host else copy.last
  return _Span(gap, gap)


def _within(
  copy: _Copy, wanted: _Span, live: np.ndarray, limit_bytes: int
) -> _Span:
  """Shortens a span to what fits, and adds its bytes to those that are live."""
  held = live[wanted.start : wanted.done]
  full = np.flatnonzero(held + copy.size_bytes > limit_bytes)
  start, done = wanted.start, wanted.done
  if full.size:
    if copy.to_host:
      done = start + int(full[0])
    else:
      start += int(full[-1]) + 1
  live[start:done] += copy.size_bytes
  return _Span(start, done)
