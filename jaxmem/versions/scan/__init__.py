"""Drops what loops stack for their backward pass, and recomputes it there."""

from jaxmem.versions.scan.step import (
  Rewritten,
  SaveBytes,
  droppable_bytes,
  rewrite_step,
)

__all__ = ["Rewritten", "SaveBytes", "droppable_bytes", "rewrite_step"]
