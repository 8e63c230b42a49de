"""Proves that a buffer assignment keeps every value until its last read.

`check` executes a scheduled module on symbols; `memory` holds them, `accesses`
checks each read and write, and `placed_values` what a place alone can have
wrong.
"""

from jaxmem_hlo.replay.check import (
  FaultyAssignmentError,
  ReplayReport,
  check_assignment,
)

__all__ = [
  "FaultyAssignmentError",
  "ReplayReport",
  "check_assignment",
]
