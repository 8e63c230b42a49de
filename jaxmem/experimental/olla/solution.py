"""What the programs return."""

import dataclasses
from typing import Literal

from ortools.sat.python import cp_model

Status = Literal["optimal", "feasible"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
  """How large the model was.

  Attributes:
    num_variables: Variables, before presolve.
    num_constraints: Constraints, before presolve; intervals count.
  """

  num_variables: int = 0
  num_constraints: int = 0

  @classmethod
  def of(cls, model: cp_model.CpModel) -> "ModelSize":
    """Counts a model."""
    return cls(
      num_variables=len(model.proto.variables),
      num_constraints=len(model.proto.constraints),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Proof:
  """How good a value is known to be.

  Attributes:
    value_bytes: What the program minimises.
    lower_bound_bytes: No solution of the full program has a lower value.
    status: "optimal" iff the value equals the bound. "feasible" if a limit was
      reached, or if a heuristic took away solutions.
    seconds: Wall time, model building included. It decides nothing, and
      solutions that differ only in it are equal.
    size: The model; all zero if none was needed.
  """

  value_bytes: int
  lower_bound_bytes: int
  status: Status = dataclasses.field(init=False)
  seconds: float = dataclasses.field(compare=False)
  size: ModelSize

  def __post_init__(self):
    if self.lower_bound_bytes > self.value_bytes:
      raise ValueError(
        "lower_bound_bytes must not exceed value_bytes, got"
        f" {self.lower_bound_bytes} and {self.value_bytes}."
      )
    is_optimal = self.lower_bound_bytes == self.value_bytes
    status = "optimal" if is_optimal else "feasible"
    object.__setattr__(self, "status", status)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OrderSolution(_Proof):
  """A solution of program 14; its value is the peak of live bytes.

  Attributes:
    order: The execution sequence, as indices into `graph.nodes`.
  """

  order: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddressSolution(_Proof):
  """A solution of program 15; its value is the height of the arena.

  Attributes:
    offsets_bytes: The offset of each buffer of the placement problem.
  """

  offsets_bytes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JointSolution(_Proof):
  """A solution of program 9; its value is the height of the arena.

  Attributes:
    order: The execution sequence, as indices into `graph.nodes`.
    offsets_bytes: The offset of each buffer of
      `address_problem(graph, order)`.
  """

  order: tuple[int, ...]
  offsets_bytes: tuple[int, ...]
