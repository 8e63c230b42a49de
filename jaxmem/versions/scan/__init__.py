"""Drops what loops stack for their backward pass, and recomputes it there."""

from jaxmem.versions.scan.pairs import Skipped
from jaxmem.versions.scan.step import (
  Rewritten,
  SaveBytes,
  ScanCandidate,
  drop_scan_residuals,
  find_candidates,
  rewrite_step,
)

__all__ = [
  "Rewritten",
  "SaveBytes",
  "ScanCandidate",
  "Skipped",
  "drop_scan_residuals",
  "find_candidates",
  "rewrite_step",
]
