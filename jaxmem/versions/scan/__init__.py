"""Drops what loops stack for their backward pass, and recomputes it there."""

from jaxmem.versions.scan.narrow import Narrowed, narrow_stacks
from jaxmem.versions.scan.step import (
  Rewritten,
  SaveBytes,
  droppable_bytes,
  rewrite_step,
)
from jaxmem.versions.scan.updates import Updated, update_in_loops

__all__ = [
  "Narrowed",
  "Rewritten",
  "SaveBytes",
  "Updated",
  "droppable_bytes",
  "narrow_stacks",
  "rewrite_step",
  "update_in_loops",
]
