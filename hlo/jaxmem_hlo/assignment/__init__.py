"""XLA's buffer assignment, predicted."""

from jaxmem_hlo.assignment.allocation import Allocation, Assignment
from jaxmem_hlo.assignment.model import AssignmentModel

__all__ = [
  "Allocation",
  "Assignment",
  "AssignmentModel",
]
