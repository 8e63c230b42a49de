"""Recomputes repeated blocks of a step in its backward pass."""

from jaxmem.versions.blocks.step import (
  BlockChoice,
  BlockStep,
  Recomputed,
)

__all__ = ["BlockChoice", "BlockStep", "Recomputed"]
