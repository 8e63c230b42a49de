"""XLA's buffer assignment, predicted.

`model` goes through XLA's steps: buffers move into allocations that exist
anyway (`slots`); the others are laid out on a heap, whose events `heap` replays
and which `packing` places. `allocation` is what comes out.
"""

from jaxmem_hlo.assignment import packing
from jaxmem_hlo.assignment.allocation import Allocation, Assignment
from jaxmem_hlo.assignment.model import AssignmentModel

__all__ = [
  "Allocation",
  "Assignment",
  "AssignmentModel",
  "packing",
]
