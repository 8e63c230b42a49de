"""Recomputes repeated blocks of a step in its backward pass."""

from jaxmem.versions.blocks.step import (
  BlockChoice,
  Blocks,
  BlockStep,
  Recomputed,
  describe_blocks,
  recompute_blocks,
  recompute_step,
)

__all__ = [
  "BlockChoice",
  "BlockStep",
  "Blocks",
  "Recomputed",
  "describe_blocks",
  "recompute_blocks",
  "recompute_step",
]
