"""Puts starts and dones of transfers between kernels, step by step.

The walk runs a computation as the device would: a kernel at a time, and beside
it one transfer on each link. It begins with an order that needs few bytes, in
which each transfer is waited for at once, and leaves it only to wait less:

- A transfer starts as soon as its link will be idle, what is needed first
  before the rest, but no earlier than the next kernels can hide.
- Where the next kernel would have to wait, later ones that need not wait run
  before it.
- Nothing does either where more bytes would be live than a limit allows. Where
  memory is short, transfers that left are waited for.
"""

from __future__ import annotations

import heapq

from jaxmem.cost import Link, LinkClock
from jaxmem.planning.overlapped_program import Memory, Program
from jaxmem.planning.tuning import TUNING

_TUNING = TUNING.overlap


def walk(program: Program, limit_bytes: int) -> list[int]:
  """Returns all nodes in an order that waits little.

  Args:
    program: The computation.
    limit_bytes: Nothing is moved where more would be live by estimate. Walks
      were seen to take up to 4 % more: what must fit has to be priced.
  """
  return _Walk(program, limit_bytes).run()


class _Walk:
  """One walk."""

  def __init__(self, program: Program, limit_bytes: int):
    self._program = program
    self._limit = limit_bytes
    self._memory = Memory(program.graph)
    self._order: list[int] = []
    self._has_run = [False] * program.graph.num_nodes
    self._now = 0.0
    # Without what was waited for.
    self._worked_s = 0.0
    self._links = LinkClock()
    self._first_pending = dict.fromkeys(program.of_link, 0)
    # When each transfer under way is done, in the order in which they began.
    self._done_at: dict[int, float] = {}
    # How many nodes each node still waits for, dones not counted.
    self._waiting = [
      sum(not self._is_done(p) for p in set(node.predecessors))
      for node in program.graph.nodes
    ]
    # Kernels that wait for nothing but transfers.
    self._ready = [
      n for n, c in enumerate(self._waiting) if not c and self._is_kernel(n)
    ]
    heapq.heapify(self._ready)

  def run(self) -> list[int]:
    """Walks once."""
    for kernel in range(self._program.graph.num_nodes):
      while self._is_kernel(kernel) and not self._has_run[kernel]:
        self._step(kernel)
    for number in range(len(self._program.transfers)):
      self._require(number)
    for number in [*self._done_at]:
      self._settle(number)
    return self._order

  def _step(self, kernel: int) -> None:
    """Runs a kernel: the next one, or one that need not wait."""
    self._settle_finished()
    self._look_ahead(kernel)
    if not self._has_run[kernel]:
      chosen = self._choose(kernel)
      self._make_room(chosen)
      self._run_kernel(chosen)

  def _choose(self, kernel: int) -> int:
    if self._awaited(kernel) <= self._now:
      return kernel
    tried, found = list[int](), kernel
    while self._ready and len(tried) < _TUNING.num_looked_at:
      candidate = heapq.heappop(self._ready)
      if self._has_run[candidate]:
        continue
      tried.append(candidate)
      if self._awaited(candidate) <= self._now and self._has_room(candidate):
        found = candidate
        break
    for candidate in tried:
      heapq.heappush(self._ready, candidate)
    return found

  def _has_room(self, candidate: int) -> bool:
    """Whether a later kernel may run already, before one that waits."""
    if self._memory.needed_bytes(candidate) > self._limit:
      return False
    return self._fits(candidate, self._memory.added_bytes(candidate))

  def _fits(self, end: int, added_bytes: int) -> bool:
    """Whether more bytes may be live until a later step of the given order.

    What differs from that order now, is taken to differ until then.
    """
    if added_bytes <= 0:
      return True
    here = min(len(self._order), self._program.graph.num_nodes - 1)
    ahead = self._program.live[here : max(end, here + 1)]
    drift = self._memory.live_bytes - self._program.before[here]
    return int(ahead.max()) + drift + added_bytes <= self._limit

  def _look_ahead(self, kernel: int) -> None:
    """Starts what is needed next on links that are about to be idle."""
    ahead_s = self._program.seconds[kernel]
    for link, numbers in self._program.of_link.items():
      takes = any(self._program.takes_memory[n] for n in numbers)
      num_passed = 0
      for number in self._pending(link):
        is_early = self._program.takes_memory[number] and (
          self._program.begin_by[number] > self._worked_s + ahead_s
        )
        # Where all make memory free, none can come before its turn.
        is_busy = takes and (self._links.free_at(link) >= self._now + ahead_s)
        if is_busy or num_passed > _TUNING.num_passed_over:
          break
        if not is_early and not self._begin_early(number):
          num_passed += 1

  def _begin_early(self, number: int) -> bool:
    """Starts a transfer if nothing has to be waited for, and there is room."""
    start = self._program.transfers[number].start
    needed = self._needed_kernels(start)
    seconds = sum(self._program.seconds[n] for n in needed or ())
    if needed is None or seconds > self._program.transfers[number].seconds:
      return False
    added = sum(self._memory.added_bytes(n) for n in (*needed, start))
    if not self._fits(self._program.needed_at[number], added):
      return False
    self._require(number)
    return True

  def _pending(self, link: Link) -> list[int]:
    """Transfers that may be started soon, what is needed first at the front."""
    numbers, first = self._program.of_link[link], self._first_pending[link]
    transfers = self._program.transfers
    while (
      first < len(numbers) and self._has_run[transfers[numbers[first]].start]
    ):
      first += 1
    self._first_pending[link] = first
    soon = numbers[first : first + _TUNING.num_looked_at]
    return [n for n in soon if not self._has_run[transfers[n].start]]

  def _needed_kernels(self, start: int) -> list[int] | None:
    """Kernels to run before a start; None if they are many or have to wait."""
    found: dict[int, None] = {}
    stack = [start]
    while stack:
      node = stack.pop()
      if self._has_run[node] or node in found:
        continue
      number = self._program.of_node.get(node)
      if number is not None and node != start:
        done_at = self._done_at.get(number)
        if done_at is None or done_at > self._now:
          return None
        continue
      found[node] = None
      if len(found) > _TUNING.num_pulled:
        return None
      stack += self._program.graph.nodes[node].predecessors
    del found[start]
    return sorted(found)

  def _awaited(self, node: int) -> float:
    """Returns when the transfers that a node needs are done.

    Infinity if one has not begun, or another kernel has to run before.
    """
    if self._waiting[node]:
      return float("inf")
    latest = 0.0
    for needed in self._program.graph.nodes[node].predecessors:
      number = self._program.of_node.get(needed)
      if number is None or self._has_run[needed]:
        continue
      latest = max(latest, self._done_at.get(number, float("inf")))
    return latest

  def _run_kernel(self, node: int) -> None:
    self._require_inputs(node)
    self._emit(node)

  def _require_inputs(self, node: int) -> None:
    for needed in self._program.graph.nodes[node].predecessors:
      if not self._has_run[needed]:
        self._require_node(needed)

  def _require_node(self, node: int) -> None:
    number = self._program.of_node.get(node)
    if number is None:
      self._run_kernel(node)
    else:
      self._require(number)
      if self._is_done(node):
        self._settle(number)

  def _require(self, number: int) -> None:
    """Starts a transfer, whatever it takes."""
    each = self._program.transfers[number]
    if self._has_run[each.start]:
      return
    self._require_inputs(each.start)
    done_at = self._links.begin(each.link, self._now, each.seconds)
    self._done_at[number] = done_at
    self._emit(each.start)

  def _settle(self, number: int) -> None:
    """Waits for a transfer."""
    done = self._program.transfers[number].done
    self._require_inputs(done)
    self._now = max(self._now, self._done_at.pop(number))
    self._emit(done)

  def _settle_finished(self) -> None:
    """Lets go of what finished transfers held."""
    for number, done_at in [*self._done_at.items()]:
      if done_at <= self._now and not self._program.takes_memory[number]:
        self._settle(number)

  def _make_room(self, node: int) -> None:
    """Waits for transfers that hold memory, until a kernel fits."""
    for number in [*self._done_at]:
      if self._memory.needed_bytes(node) <= self._limit:
        return
      if not self._program.takes_memory[number]:
        self._settle(number)

  def _emit(self, node: int) -> None:
    self._memory.run(node)
    self._order.append(node)
    self._has_run[node] = True
    self._now += self._program.seconds[node]
    self._worked_s += self._program.seconds[node]
    if self._is_done(node):
      return
    for after in self._program.graph.successors[node]:
      self._waiting[after] -= 1
      if not self._waiting[after] and self._is_kernel(after):
        heapq.heappush(self._ready, after)

  def _is_kernel(self, node: int) -> bool:
    return node not in self._program.of_node

  def _is_done(self, node: int) -> bool:
    number = self._program.of_node.get(node)
    return number is not None and self._program.transfers[number].done == node
