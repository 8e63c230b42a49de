"""The least peak of a small graph by CP-SAT, with proof.

The time-indexed program of OLLA (Steiner et al., 2022, equation 14), written
with one variable family: done[v, t] says that node v has run by the end of step
t. A buffer is live at t iff its first toucher has run by t and one of its last
touchers had not run by t - 1.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from ortools.sat.python import cp_model

from jaxmem.graph import Graph, lower_bound
from jaxmem.order import reachability
from jaxmem.order.result import OrderResult
from jaxmem.solver import cpsat


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CpSatOrderer:
  """An orderer that improves on an order, or proves that none is better.

  Attributes:
    max_nodes: Larger graphs are left as they are: above about 100 nodes the
      model seldom finishes.
    max_deterministic_time: CP-SAT's limit, roughly in seconds.
  """

  max_nodes: int = 200
  max_deterministic_time: float = 2.0

  def improve(self, graph: Graph, known: OrderResult) -> OrderResult:
    """Solves the model for lower peaks; see `Orderer.improve`."""
    if graph.num_nodes > self.max_nodes:
      return known
    cuts_bytes = lower_bound(graph, known.order, graph.num_nodes)
    bound = max(known.lower_bound_bytes, cuts_bytes)
    method = f"{known.method} + cp-sat"
    found = known
    if bound < known.peak_bytes:
      model = OrderModel(graph, bound, known.peak_bytes - 1)
      status, order, proven = model.solve(self.max_deterministic_time)
      if status == "infeasible":
        bound = known.peak_bytes
      elif order:
        # The model may share more bytes than the order really does.
        found = known.with_order(graph, order, method)
      bound = max(bound, proven)
    return dataclasses.replace(found, lower_bound_bytes=bound, method=method)


class OrderModel:
  """The program above, for peaks within a range."""

  def __init__(self, graph: Graph, min_peak_bytes: int, max_peak_bytes: int):
    self._graph = graph
    self._ancestors, self._descendants = reachability.closure(graph)
    self._model = cp_model.CpModel()
    self._clauses = cpsat.Clauses(self._model)
    self._peak = self._model.new_int_var(
      min_peak_bytes, max_peak_bytes, "peak_bytes"
    )
    self._terms: list[list[cp_model.LinearExprT]] = [
      [] for _ in range(graph.num_nodes)
    ]
    self._add_done_variables()
    self._add_order()
    self._add_live_buffers()
    self._add_extra_bytes()
    self._add_shares()
    for terms in self._terms:
      self._model.add(cp_model.LinearExpr.sum(terms) <= self._peak)
    self._model.minimize(self._peak)

  def solve(
    self, max_deterministic_time: float
  ) -> tuple[cpsat.CpStatus, tuple[int, ...] | None, int]:
    """Returns the status, an order if there is one, and the proven bound."""
    solver = cpsat.make_solver(max_deterministic_time)
    status = cpsat.solve(solver, self._model)
    if status == "infeasible":
      return status, None, 0
    bound = cpsat.objective_bound(solver)
    if status == "unknown":
      return status, None, bound
    steps = range(self._graph.num_nodes)
    first = [
      sum(not solver.value(self._done(v, t)) for t in steps) for v in steps
    ]
    return status, tuple(sorted(steps, key=lambda v: first[v])), bound

  def _done(self, v: int, t: int) -> cp_model.IntVar:
    """Whether v has run by the end of step t; constant outside its window."""
    if t < self._first_step[v]:
      return self._clauses.false
    if t >= self._last_step[v]:
      return self._clauses.true
    return self._variables[v][t - self._first_step[v]]

  def _add_done_variables(self) -> None:
    num_nodes = self._graph.num_nodes
    self._first_step = [ancestors.bit_count() for ancestors in self._ancestors]
    self._last_step = [
      num_nodes - 1 - descendants.bit_count()
      for descendants in self._descendants
    ]
    self._variables = [
      [self._model.new_bool_var(f"done_{v}_{t}") for t in range(first, last)]
      for v, (first, last) in enumerate(
        zip(self._first_step, self._last_step, strict=True)
      )
    ]
    for row in self._variables:
      for earlier, later in itertools.pairwise(row):
        self._model.add_implication(earlier, later)

  def _add_order(self) -> None:
    steps = range(self._graph.num_nodes)
    for t in steps:
      self._model.add(sum(self._done(v, t) for v in steps) == t + 1)
    for v, node in enumerate(self._graph.nodes):
      for p in node.predecessors:
        for t in steps:
          self._clauses.add([self._done(p, t - 1)], [self._done(v, t)])

  def _add_live_buffers(self) -> None:
    for b, buffer in enumerate(self._graph.buffers):
      if not buffer.size_bytes:
        continue
      first, last = self._ends(buffer.touchers)
      for t in range(self._graph.num_nodes):
        live = self._model.new_bool_var(f"live_{b}_{t}")
        begun = [self._done(v, t) for v in first]
        ended = [self._done(v, t - 1) for v in last]
        if buffer.live_at_start:
          begun = [self._clauses.true]
        if buffer.live_at_end:
          ended = [self._clauses.false]
        for x in begun:
          for y in ended:
            self._clauses.add([live, y], [x])
        self._terms[t].append(buffer.size_bytes * live)

  def _ends(self, touchers: Sequence[int]) -> tuple[list[int], list[int]]:
    """The touchers that may be first, and those that may be last."""
    mask = sum(1 << v for v in touchers)
    first = [v for v in touchers if not self._ancestors[v] & mask]
    last = [v for v in touchers if not self._descendants[v] & mask]
    return first, last

  def _add_extra_bytes(self) -> None:
    for v, node in enumerate(self._graph.nodes):
      if node.extra_bytes:
        for t in range(self._first_step[v], self._last_step[v] + 1):
          runs = self._done(v, t) - self._done(v, t - 1)
          self._terms[t].append(node.extra_bytes * runs)

  def _add_shares(self) -> None:
    """Lets the solver choose the pairs: at least as good as in any order."""
    for v, node in enumerate(self._graph.nodes):
      chosen: dict[int, list[cp_model.IntVar]] = {}
      for operand, output in node.shares:
        if self._graph.buffers[operand].live_at_end:
          continue
        for t in range(self._first_step[v], self._last_step[v] + 1):
          shared = self._add_share(v, operand, output, t)
          for buffer in (operand, output):
            chosen.setdefault(buffer, []).append(shared)
      for literals in chosen.values():
        self._model.add_at_most_one(literals)

  def _add_share(
    self, v: int, operand: int, output: int, t: int
  ) -> cp_model.IntVar:
    shared = self._model.new_bool_var(f"shared_{operand}_{output}_{t}")
    self._clauses.add([self._done(v, t)], [shared])
    self._clauses.add([], [shared, self._done(v, t - 1)])
    for u in self._graph.buffers[operand].touchers:
      if u != v:
        self._clauses.add([self._done(u, t - 1)], [shared])
    sizes = [self._graph.buffers[b].size_bytes for b in (operand, output)]
    self._terms[t].append(-min(sizes) * shared)
    return shared
