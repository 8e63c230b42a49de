"""Drops what loops stack for their backward pass, and recomputes it there."""

from jaxmem.scan.pairs import Skipped
from jaxmem.scan.step import (
  Rewritten,
  ScanCandidate,
  drop_scan_residuals,
  find_candidates,
  rewrite_step,
)

__all__ = [
  "Rewritten",
  "ScanCandidate",
  "Skipped",
  "drop_scan_residuals",
  "find_candidates",
  "rewrite_step",
]
