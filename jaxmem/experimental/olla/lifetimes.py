"""When tensors are created and preserved, as booleans: equations 1 to 5."""

from collections.abc import Sequence

from ortools.sat.python import cp_model

from jaxmem.experimental.olla.problem import Problem
from jaxmem.experimental.olla.windows import Windows
from jaxmem.solver import cpsat


class BooleanLifetimes:
  """C[e, t]: e is created at step t. P[e, t]: e is preserved at step t.

  Args:
    model: What to add to.
    problem: The edges.
    windows: The steps that are tracked for each edge.
    one_node_per_step: Whether nodes may not share a step.
  """

  def __init__(
    self,
    model: cp_model.CpModel,
    problem: Problem,
    windows: Windows,
    *,
    one_node_per_step: bool,
  ):
    self._model = model
    self._problem = problem
    self._windows = windows
    self._clauses = cpsat.Clauses(model)
    self._true = self._clauses.true
    self._false = self._clauses.false
    self._created: list[dict[int, cp_model.IntVar]] = []
    self._preserved: list[dict[int, cp_model.IntVar]] = []
    self._add_created()
    self._add_preserved()
    self._add_created_or_preserved()
    self._add_continuity()
    self._add_creation()
    self._add_fan_in()
    self._add_siblings()
    self._add_outputs()
    if one_node_per_step:
      self._add_one_node_per_step()

  def created(self, e: int, t: int) -> cp_model.IntVar:
    """C[e, t]."""
    return self._created[e].get(t, self._false)

  def preserved(self, e: int, t: int) -> cp_model.IntVar:
    """P[e, t]."""
    return self._preserved[e].get(t, self._false)

  def live(self, e: int, t: int) -> cp_model.LinearExpr:
    """C[e, t] + P[e, t]."""
    return self.created(e, t) + self.preserved(e, t)

  def add_capacity(self, peak: cp_model.IntVar) -> None:
    """Equation 13: all that is created or preserved fits below the peak."""
    unit = self._problem.unit_bytes
    edges = self._problem.edges
    for t in range(self._windows.num_steps):
      terms = [
        edge.size_bytes // unit * self.live(e, t)
        for e, edge in enumerate(edges)
        if edge.size_bytes and t in self._windows.useful(edge)
      ]
      self._model.add(cp_model.LinearExpr.sum(terms) <= peak)

  def add_hint(self, order: Sequence[int]) -> None:
    """Suggests C and P of an order to start from."""
    position = {v: t for t, v in enumerate(order)}
    for e, edge in enumerate(self._problem.edges):
      first = -1 if edge.source is None else position[edge.source]
      last = max((position[v] for v in edge.last_touchers), default=first)
      if edge.live_at_end:
        last = self._windows.num_steps - 1
      for t, variable in self._created[e].items():
        self._model.add_hint(variable, t == first)
      for t, variable in self._preserved[e].items():
        if variable is not self._true:
          self._model.add_hint(variable, first < t <= last)

  def convert_to_order(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
    """Function 1: runs the source of what is created, each node once."""
    sequence: list[int] = []
    for t in range(self._windows.num_steps):
      for e, edge in enumerate(self._problem.edges):
        if edge.source is not None and solver.value(self.created(e, t)):
          sequence.append(edge.source)
    # Several edges have the same source.
    return tuple(dict.fromkeys(sequence))

  def _add_created(self) -> None:
    """Equation 10: no C outside the span of the source."""
    for e, edge in enumerate(self._problem.edges):
      span = () if edge.source is None else self._windows.span(edge.source)
      self._created.append(
        {t: self._model.new_bool_var(f"created_{e}_{t}") for t in span}
      )

  def _add_preserved(self) -> None:
    """Equations 11 and 12: no P outside the useful lifetime; P where certain.

    What is live at the start is not created, but preserved from step 0 on.
    """
    for e, edge in enumerate(self._problem.edges):
      useful = self._windows.useful(edge)
      certain = self._windows.certain(edge)
      first = useful.start + (edge.source is not None)
      self._preserved.append(
        {
          t: self._true
          if t in certain
          else self._model.new_bool_var(f"preserved_{e}_{t}")
          for t in range(first, useful.stop)
        }
      )

  def _add_created_or_preserved(self) -> None:
    """Equation 1: not both at once."""
    for e, created in enumerate(self._created):
      for t in created:
        self._clauses.add([], [self.created(e, t), self.preserved(e, t)])

  def _add_continuity(self) -> None:
    """Equation 2: what is preserved was there in the step before."""
    for e, edge in enumerate(self._problem.edges):
      for t in self._preserved[e]:
        if t or edge.source is not None:
          before = [self.created(e, t - 1), self.preserved(e, t - 1)]
          self._clauses.add(before, [self.preserved(e, t)])

  def _add_creation(self) -> None:
    """Equation 3: every tensor is created once."""
    for created in self._created:
      if created:
        self._model.add_exactly_one(created.values())

  def _add_fan_in(self) -> None:
    """Equation 4: to create a tensor, its source's inputs must be there."""
    for v, fan_out in enumerate(self._problem.fan_out):
      for f in self._problem.fan_in[v]:
        for e in fan_out:
          for t, created in self._created[e].items():
            self._clauses.add([self.preserved(f, t)], [created])

  def _add_siblings(self) -> None:
    """Equation 5: what a node creates, it creates at once."""
    for first, *others in self._problem.fan_out:
      for e in others:
        for t, created in self._created[first].items():
          self._model.add(self.created(e, t) == created)

  def _add_outputs(self) -> None:
    """What is live at the end is there in the last step."""
    last = self._windows.num_steps - 1
    for e, edge in enumerate(self._problem.edges):
      if edge.live_at_end and last >= 0:
        self._clauses.add([self.created(e, last), self.preserved(e, last)], [])

  def _add_one_node_per_step(self) -> None:
    """Exactly one node runs in each step; not in the paper."""
    for t in range(self._windows.num_steps):
      running = [self.created(e, t) for e, *_ in self._problem.fan_out]
      self._model.add_exactly_one(x for x in running if x is not self._false)
