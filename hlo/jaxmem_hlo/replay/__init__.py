"""Proves that a buffer assignment keeps every value until its last read."""

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
