"""The order search: directed passes, guided by minimum cuts.

  1. Bound the initial order: it may be optimal already.
  2. Passes with the initial order as priority, backward and then forward,
     bisecting the soft budget between the bound and the best peak.
  3. Rounds until the best meets the bound or nothing was gained: partition the
     best order at its bottlenecks by their minimum cuts, and use the result as
     a candidate and as the priority of new passes.

Deterministic: no clock and no randomness; effort is counted in passes, node
executions and flows.
"""

import dataclasses
from typing import Literal

import numpy as np

from jaxmem.graph import Graph, MinCut, liveness, lower_bound
from jaxmem.order.directed_pass import DirectedPass
from jaxmem.order.pass_state import Budget
from jaxmem.order.result import OrderResult

_Made = tuple[Budget, tuple[int, ...] | None, int]

# How many of the best orders a result names, for whoever prices them.
_MAX_CANDIDATES = 8
# The search ends at so many times `max_runs`, even if it keeps improving.
_MAX_EXTENSION = 5
# Only the highest bottlenecks are cut, since each takes a minimum cut.
_MAX_BOTTLENECKS = 24
_MAX_STALLED_ROUNDS = 2
_NUM_BISECTIONS = 6
_NUM_BISECTIONS_IN_ROUND = 3
# Minimum cuts to raise the bound by before the rounds, and after each.
_MAX_FLOWS_BEFORE = 20
_MAX_FLOWS_IN_ROUND = 10
# A round's threshold for bottlenecks, between the bound (0) and the peak (1).
_THRESHOLDS = (0.5, 0.8, 0.2, 0.95)
# How many buffers a node touches, at most, in most programs: to run one that
# touches more takes as much longer, so that fewer of those are run.
_USUAL_TOUCHES = 4
# A bisection ends when what is left is this part of the peak.
_FINEST_BISECTION = 5000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MinCutSearch:
  """An orderer that searches with passes, for graphs of any size.

  Contract the graph first: it pays.

  Attributes:
    max_passes: How many passes to make at most.
    max_runs: After how many node executions, a few microseconds each, without
      a better order to begin no new pass; fewer where nodes touch many buffers.
      Five times as many end the search in any case.
    max_stalled_passes: After how many passes without a better order to begin no
      new one.
    max_flows: How many minimum cuts to spend on the final bound.
    tolerance: The gap to stop at, relative to the bound less
      `graph.base_bytes`.
  """

  max_passes: int = 160
  max_runs: int = 1_000_000
  max_stalled_passes: int = 160
  max_flows: int = 150
  tolerance: float = 0.0

  def improve(self, graph: Graph, known: OrderResult) -> OrderResult:
    """Searches for a lower peak; see `Orderer.improve`."""
    return _SearchRun(self, graph, known).run()


class _SearchRun:
  """The best order so far and what may still be spent."""

  def __init__(self, limits: MinCutSearch, graph: Graph, known: OrderResult):
    touches = sum(map(len, graph.buffers_of_node)) / max(1, graph.num_nodes)
    max_runs = int(limits.max_runs / max(1.0, touches / _USUAL_TOUCHES))
    self._limits = dataclasses.replace(limits, max_runs=max_runs)
    self._known = known
    self._graph = graph
    self._cut = MinCut(graph)
    self._passes: dict[bool, DirectedPass] = {}
    # By direction and priority: budgets, and to which orders they led after how
    # many runs. The limit only falls: what reached one reaches a lower one.
    self._made: dict[tuple[bool, tuple[int, ...]], list[_Made]] = {}
    self._num_passes = 0
    # Each order is better than the one before it; the first was given.
    self._improvements = [known.order]
    self._num_runs_at_best = 0
    self._num_passes_at_best = 0
    self._peak_bytes = known.peak_bytes
    self._bound = known.lower_bound_bytes

  @property
  def _best(self) -> tuple[int, ...]:
    return self._improvements[-1]

  def run(self) -> OrderResult:
    self._raise_bound(_MAX_FLOWS_BEFORE)
    for forward in (False, True):
      self._bisect(forward, self._improvements[0], _NUM_BISECTIONS)
      self._raise_bound(_MAX_FLOWS_BEFORE)
    num_rounds = num_stalled = 0
    while not self._is_done() and num_stalled < _MAX_STALLED_ROUNDS:
      peak_bytes = self._peak_bytes
      self._round(_THRESHOLDS[num_rounds % len(_THRESHOLDS)])
      num_rounds += 1
      num_stalled = num_stalled + 1 if self._peak_bytes == peak_bytes else 0
    self._raise_bound(self._limits.max_flows)
    # The initial order comes last even if it is also the best.
    kept = self._improvements[:-_MAX_CANDIDATES:-1]
    candidates = dict.fromkeys((*kept, *self._known.candidates))
    return OrderResult(
      order=self._best,
      peak_bytes=self._peak_bytes,
      lower_bound_bytes=self._bound,
      method="search",
      num_passes=self._known.num_passes + self._num_passes,
      candidates=tuple(candidates),
    )

  def _is_done(self) -> bool:
    limits = self._limits
    num_runs = self._num_runs()
    rest_bytes = max(0, self._bound - self._graph.base_bytes)
    num_stalled = self._num_passes - self._num_passes_at_best
    return (
      self._peak_bytes <= self._bound + limits.tolerance * rest_bytes
      or self._num_passes >= limits.max_passes
      or num_stalled >= limits.max_stalled_passes
      or num_runs >= self._num_runs_at_best + limits.max_runs
      or num_runs >= _MAX_EXTENSION * limits.max_runs
    )

  def _num_runs(self) -> int:
    return sum(made.num_runs for made in self._passes.values())

  def _raise_bound(self, max_flows: int) -> None:
    if self._peak_bytes > self._bound:
      bound = lower_bound(self._graph, self._best, max_flows, self._cut)
      self._bound = max(self._bound, bound)

  def _round(self, fraction: float) -> None:
    """Two thresholds, both sides of the cuts, then the best as priority."""
    for guided in (True, False):
      for side in ("least", "most"):
        if self._is_done():
          return
        threshold = self._peak_bytes - 1
        if guided:
          threshold = min(threshold, self._between(fraction))
        order = self._partition_at_bottlenecks(threshold, side)
        self._offer(order)
        for forward in (False, True):
          for soft_bytes in dict.fromkeys(
            (self._peak_bytes - 1, threshold, self._between(0.5))
          ):
            self._make_pass(forward, order, soft_bytes)
    for forward in (False, True):
      self._bisect(forward, self._best, _NUM_BISECTIONS_IN_ROUND)
    self._raise_bound(_MAX_FLOWS_IN_ROUND)

  def _between(self, fraction: float) -> int:
    return self._bound + int(fraction * (self._peak_bytes - self._bound))

  def _bisect(
    self, forward: bool, priority_order: tuple[int, ...], num_steps: int
  ) -> None:
    """Looks for the soft budget at which a pass does best."""
    low, high = self._bound, self._peak_bytes
    soft_bytes = low
    for step in range(num_steps):
      peak_bytes = self._make_pass(forward, priority_order, soft_bytes)
      if peak_bytes is None or peak_bytes > soft_bytes:
        low = max(low, soft_bytes)
      if peak_bytes is not None:
        high = min(high, peak_bytes)
      rest_bytes = (high - self._graph.base_bytes) // _FINEST_BISECTION
      if high - low <= 1 + rest_bytes:
        return
      soft_bytes = high - 1 if step == 0 else (low + high) // 2

  def _make_pass(
    self, forward: bool, priority_order: tuple[int, ...], soft_bytes: int
  ) -> int | None:
    if self._is_done():
      return None
    if forward not in self._passes:
      self._passes[forward] = DirectedPass(self._graph, forward=forward)
    self._num_passes += 1
    make_pass = self._passes[forward]
    made = self._made.setdefault((forward, priority_order), [])
    alike = (m for m in made if m[0].decides_alike(soft_bytes))
    budget, order, num_runs = next(alike, (None, None, 0))
    make_pass.num_runs += num_runs
    if budget is None:
      budget, before = Budget(soft_bytes), make_pass.num_runs
      order = make_pass(priority_order, budget, self._peak_bytes)
      made.append((budget, order, make_pass.num_runs - before))
    return None if order is None else self._offer(order)

  def _offer(self, order: tuple[int, ...]) -> int:
    peak_bytes = liveness.peak_bytes(self._graph, order)
    if peak_bytes < self._peak_bytes:
      self._improvements.append(order)
      self._peak_bytes = peak_bytes
      self._num_runs_at_best = self._num_runs()
      self._num_passes_at_best = self._num_passes
    return peak_bytes

  def _partition_at_bottlenecks(
    self, threshold: int, side: Literal["least", "most"]
  ) -> tuple[int, ...]:
    """The best order, stably partitioned by the cut of each bottleneck."""
    best = order = self._best
    live = liveness.live_bytes(self._graph, order)
    peaks = sorted(_bottlenecks(live, threshold), key=lambda i: (-live[i], -i))
    for step in sorted(peaks[:_MAX_BOTTLENECKS]):
      node = best[step]
      inside = self._cut.side(node, side)
      self._bound = max(self._bound, self._cut.bound(node))
      first = [v for v in order if v in inside]
      rest = [v for v in order if v not in inside and v != node]
      order = (*first, node, *rest)
    return order


def _bottlenecks(live: np.ndarray, threshold: int) -> list[int]:
  """Returns the highest step of each run of steps above a threshold."""
  above = np.flatnonzero(live > threshold)
  runs = np.split(above, np.flatnonzero(np.diff(above) > 1) + 1)
  return [int(run[np.argmax(live[run])]) for run in runs if run.size]
