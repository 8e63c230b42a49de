"""How this project runs CP-SAT: reproducibly, and with plain status words."""

from typing import Literal

from ortools.sat.python import cp_model

CpStatus = Literal["optimal", "feasible", "infeasible", "unknown"]

_STATUS: dict[int, CpStatus] = {
  int(cp_model.OPTIMAL): "optimal",
  int(cp_model.FEASIBLE): "feasible",
  int(cp_model.INFEASIBLE): "infeasible",
  int(cp_model.UNKNOWN): "unknown",
}


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
