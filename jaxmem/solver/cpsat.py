"""How this project runs CP-SAT: reproducibly, and with plain status words."""

from collections.abc import Iterable
from typing import Literal

from ortools.sat.python import cp_model

CpStatus = Literal["optimal", "feasible", "infeasible", "unknown"]

_STATUS: dict[int, CpStatus] = {
  int(cp_model.OPTIMAL): "optimal",
  int(cp_model.FEASIBLE): "feasible",
  int(cp_model.INFEASIBLE): "infeasible",
  int(cp_model.UNKNOWN): "unknown",
}


class Clauses:
  """Adds clauses to a model, without the literals that are known.

  Attributes:
    true: A literal that holds.
    false: A literal that does not.
  """

  def __init__(self, model: cp_model.CpModel):
    self.true = model.new_constant(1)
    self.false = model.new_constant(0)
    self._model = model

  def add(
    self,
    positive: Iterable[cp_model.IntVar],
    negative: Iterable[cp_model.IntVar],
  ) -> None:
    """Adds: one of `positive` is true or one of `negative` is false."""
    positive = [x for x in positive if x is not self.false]
    negative = [x for x in negative if x is not self.true]
    if any(x is self.true for x in positive):
      return
    if any(x is self.false for x in negative):
      return
    literals = [*positive, *(x.negated() for x in negative)]
    self._model.add_bool_or(literals)


def make_solver(max_deterministic_time: float) -> cp_model.CpSolver:
  """Returns a solver that does the same on every machine.

  Args:
    max_deterministic_time: The limit, in CP-SAT's own unit, which counts work;
      it is roughly a second.

  Raises:
    ValueError: If the limit is not positive.
  """
  if max_deterministic_time <= 0:
    raise ValueError(
      f"max_deterministic_time must be positive, got {max_deterministic_time}."
    )
  solver = cp_model.CpSolver()
  # It would leave Ctrl-C to the system, which ends the process at once, from
  # then on.
  solver.parameters.catch_sigint_signal = False
  solver.parameters.num_workers = 1
  solver.parameters.random_seed = 0
  solver.parameters.max_deterministic_time = max_deterministic_time
  return solver


def solve(solver: cp_model.CpSolver, model: cp_model.CpModel) -> CpStatus:
  """Solves a model.

  Returns:
    "optimal" and "feasible" come with a solution; "infeasible" is proven;
    "unknown" means that the limit was reached without any of these.

  Raises:
    RuntimeError: If CP-SAT rejects the model: a fault of the model's author.
  """
  status = solver.solve(model)
  if int(status) not in _STATUS:
    raise RuntimeError(f"CP-SAT must accept the model: {model.validate()}")
  return _STATUS[int(status)]


def objective_bound(solver: cp_model.CpSolver) -> int:
  """Returns the proven lower bound of the last solve's objective: a variable.

  `solver.best_objective_bound` is a float, which may be off above 2**53, to
  either side. 0 if the search ended before it had any bound, so for objectives
  that cannot be negative only.
  """
  return solver.response_proto.inner_objective_lower_bound
